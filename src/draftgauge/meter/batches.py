"""Measures what a step of several requests together takes, inside the batched loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS
from draftgauge.decoding.batched import BatchPlan, Pass, batched_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.meter.costs import rows_of
from draftgauge.meter.steps import LOOKS
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static import StaticRows, check_caches_fit
from draftgauge.policies.base import Signal, Step
from draftgauge.traces.costs import BatchCosts

WARM_UPS = 2  # runs on an accelerator that are not counted: passes are recorded as graphs when their shape comes again


@dataclass(frozen=True)
class BatchMeterPlan:
    """What to measure, and for how long.

    Attributes:
        text: token ids of real text; contexts are cut from it.
        batches: requests at once; 1 is measured besides.
        contexts: lengths in tokens; the shortest and, where the time allows, the longest are measured, as far as the
            models take them.
        seconds: for each batch size; numbers of tokens that are not timed by then are interpolated.
    """

    text: Sequence[int]
    batches: Sequence[int]
    contexts: Sequence[int]
    gamma_max: int
    seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.text or not self.contexts or min(self.batches, default=0) < 1 or self.gamma_max < 1:
            raise DraftgaugeError(
                "measuring batches needs text, context lengths, batch sizes of at least 1 and gamma_max of at least 1"
            )

    @property
    def span(self) -> int:
        return 4 * (self.gamma_max + 1)


class EvenLengths:
    """The loop's policy while it is timed: all requests draft as many tokens, every length equally often.

    The order is random. In every third round the policy looks at the tokens.
    """

    def __init__(self, gamma_max: int, rng: np.random.Generator) -> None:
        self.reads = NO_SIGNALS
        self._gamma_max, self._rng = gamma_max, rng
        self._length, self._left, self._rounds = 0, [gamma_max, 0], 0

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        """A request begins."""

    def first(self, caps: Mapping[int, int]) -> list[int]:
        if not self._left:
            self._left = self._rng.permutation(self._gamma_max + 1).tolist()
            self._rounds += 1
        self._length = self._left.pop()
        self.reads = LOOKS if self._rounds % 3 == 1 else NO_SIGNALS
        return [slot for slot, cap in caps.items() if min(cap, self._length) > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if signal.depth < self._length]

    def observe(self, slot: int, step: Step) -> None:
        """A step is over."""


@dataclass
class _Samples:
    """Of one batch size and context: seconds by tokens a request, and the drafter's passes."""

    verify: dict[int, list[float]] = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)

    @property
    def told(self) -> bool:
        """Whether a pass was timed in which no policy looked at its tokens."""
        return not all(each.signals for each in self.passes)

    def draft(self) -> tuple[float, float]:
        """Seconds of a pass over one token of every request, and over two."""
        seconds: dict[int, list[float]] = {}
        for each in self.passes:
            if not each.signals:
                seconds.setdefault(min(2, round(each.tokens / each.rows)), []).append(each.seconds)
        one, two = (float(np.median(seconds.get(tokens) or seconds[3 - tokens])) for tokens in (1, 2))
        return one, max(one, two)

    def looking(self) -> list[float]:
        once, twice = self.draft()
        return [p.seconds - (once if round(p.tokens / p.rows) == 1 else twice) for p in self.passes if p.signals]


def measure_batches(
    target: LeanModel,
    draft: LeanModel,
    plan: BatchMeterPlan,
    rng: np.random.Generator,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BatchCosts:
    """Measure steps of several requests together, on the lean or the static engine."""
    limit = min(target.spec.context, draft.spec.context)
    if limit <= 2 * plan.span:
        raise DraftgaugeError(
            f"the models take {limit} tokens, and measuring drafts of {plan.gamma_max} in batches needs more than "
            f"{2 * plan.span}: lower gamma_max"
        )
    batches = sorted({1, *plan.batches})
    starts = sorted({max(1, min(end(plan.contexts), limit) - plan.span) for end in (min, max)})
    capacity = starts[-1] + plan.span
    check_caches_fit([(target, capacity), (draft, capacity)], batches[-1])
    rows = [StaticRows(model, batches[-1], capacity) for model in (target, draft)]
    text, samples = np.asarray(plan.text), {(batch, start): _Samples() for batch in batches for start in starts}

    def run(batch: int, start: int) -> None:
        places = rng.integers(len(text), size=(batch, 1)) + np.arange(start)
        how = BatchPlan(batch, plan.gamma_max, drain=False, timed=True)
        prompts, policy = text[places % len(text)].tolist(), EvenLengths(plan.gamma_max, rng)
        done = batched_decode(rows[0], rows[1], policy, prompts, DecodingSettings(plan.span), how)
        own = samples[batch, start]
        for passes, seconds in zip(done.passes, done.seconds, strict=True):
            *drafting, verify = passes
            if not verify.even or any(each.records for each in passes):
                continue
            own.passes += drafting
            own.verify.setdefault(verify.widest, []).append(seconds - sum(each.seconds for each in drafting))

    for done, batch in enumerate(reversed(batches)):  # the largest first: it says which contexts there is time for
        progress(done, len(batches))
        begun = time.perf_counter()
        for start in starts * (WARM_UPS if target.spec.device.type == "cuda" else 1):
            run(batch, start)
            spent = time.perf_counter() - begun
            if batch == batches[-1] and spent * starts[-1] / starts[0] > plan.seconds:
                starts = starts[:1]
                break
        for start in starts:
            samples[batch, start] = _Samples()
        while not all(samples[batch, start].told for start in starts) or time.perf_counter() - begun < plan.seconds:
            for start in starts:
                run(batch, start)
    progress(len(batches), len(batches))
    table, tokens = [[samples[batch, start] for start in starts] for batch in batches], range(1, plan.gamma_max + 2)
    looking = [[seconds for own in row for seconds in own.looking()] for row in table]
    return BatchCosts(
        batches=tuple(batches),
        contexts=tuple(start + plan.span // 2 for start in starts),
        verify=tuple(tuple(map(tuple, rows_of([own.verify for own in row], tokens).tolist())) for row in table),
        draft=tuple(tuple(own.draft() for own in row) for row in table),
        signals=tuple(max(0.0, float(np.median(seconds))) if seconds else 0.0 for seconds in looking),
    )
