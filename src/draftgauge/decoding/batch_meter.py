"""What the passes of a batch cost on this machine, measured inside the batched loop.

As for single requests (:mod:`draftgauge.decoding.meter`), passes timed on their own would flatter them: live, each
finds the processor's caches full of the other model's weights. So the loop itself runs, over text that is cut to the
context lengths, with draft lengths drawn at random that all requests share, so that its passes are ``[B, k]``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.decoding.batched import BatchPlan, Pass, batched_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.lean import LeanModel
from draftgauge.models.static_model import StaticModel
from draftgauge.models.static_rows import StaticRows
from draftgauge.policies.base import DecisionSeconds, Signal, Step
from draftgauge.policies.batch import Opening
from draftgauge.traces.batch_costs import BatchCosts

LEAST = 6  # samples of every number of tokens
READS: Reads = frozenset({SignalName.CONFIDENCE})


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BatchMeterPlan:
    """What to measure, and for how long.

    Attributes:
        text: token ids of real text; contexts are cut from it.
        batches: requests at once; 1 is measured besides.
        contexts: lengths in tokens at which requests are measured, as far as the models take them.
        gamma_max: longest draft.
        seconds: for each batch size, once every number of tokens has a few samples.
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
        """Tokens that every request decodes around a context length."""
        return 4 * (self.gamma_max + 1)


class RandomLengths:
    """A draft length drawn anew for every step, the same for all requests; signals are read in a third of the steps."""

    decision = DecisionSeconds()

    def __init__(self, gamma_max: int, rng: np.random.Generator) -> None:
        self._gamma_max, self._rng = gamma_max, rng
        self.reads: Reads = NO_SIGNALS

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        """Nothing belongs to a request."""

    def first(self, opening: Opening) -> list[int]:
        """All requests, or none."""
        self.reads = READS if self._rng.random() < 1 / 3 else NO_SIGNALS
        self._wanted = int(self._rng.integers(self._gamma_max + 1))
        return [slot for slot, cap in opening.caps.items() if cap > 0] if self._wanted else []

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        """All, up to the length."""
        depth = next(iter(drafted.values())).depth
        return list(drafted) if depth < self._wanted else []

    def drafted_last(self, slot: int, signal: Signal) -> None:
        """Nothing to note."""

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        """All."""
        return drafted

    def observe(self, slot: int, step: Step) -> None:
        """Nothing to learn."""


def measure_batches(
    target: LeanModel,
    draft: LeanModel,
    plan: BatchMeterPlan,
    rng: np.random.Generator,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BatchCosts:
    """Measure passes of several requests together, on the lean or the static engine.

    Args:
        target, draft: their own caches are not touched.
        plan: what to measure.
        rng: for draft lengths and positions in the text.
        progress: told (batch sizes measured, all).

    Raises:
        ModelError: if the cache of the largest batch does not fit into memory.
        DraftgaugeError: if the models take too few tokens to measure in.
    """
    limit = min(target.spec.context, draft.spec.context)
    if limit <= 2 * plan.span:
        raise DraftgaugeError(
            f"the models take {limit} tokens, and measuring drafts of {plan.gamma_max} in batches needs more than "
            f"{2 * plan.span}: lower gamma_max"
        )
    starts = _starts(plan, limit)
    batches = sorted({1, *plan.batches})
    capacity = max(starts) + plan.span
    rows = [StaticRows(model, batches[-1], capacity) for model in (target, draft)]
    measured = []
    for done, batch in enumerate(batches):
        progress(done, len(batches))
        measured.append(_measure(rows[0], rows[1], plan, (batch, starts), rng))
    progress(len(batches), len(batches))
    return BatchCosts(
        batches=tuple(batches),
        contexts=tuple(start + plan.span // 2 for start in starts),
        verify=tuple(tuple(tuple(row.tolist()) for row in each.verify) for each in measured),
        draft=tuple(tuple(tuple(row.tolist()) for row in each.draft) for each in measured),
        onward=tuple(tuple(each.onward.tolist()) for each in measured),
        overhead=tuple(each.overhead for each in measured),
        asking=tuple(each.asking for each in measured),
    )


def _starts(plan: BatchMeterPlan, limit: int) -> list[int]:
    """Where requests start to decode: for the context lengths of the plan, and on both sides of every length between
    them at which passes see a larger bucket of the cache.
    """
    contexts = [min(context, limit) for context in plan.contexts]
    starts = {max(1, context - plan.span) for context in contexts}
    bucket = StaticModel.first_bucket
    while bucket < max(contexts) - plan.span:
        if bucket > min(contexts):
            starts |= {bucket - plan.span, bucket}
        bucket *= 2
    return sorted(starts)


@dataclass(frozen=True)
class _Measured:
    """Medians of one batch size: ``[C, G + 1]``, ``[C, 2]``, ``[C]``, and over all contexts."""

    verify: Floats
    draft: Floats
    onward: Floats
    overhead: float
    asking: float


def _measure(
    target: StaticRows,
    draft: StaticRows,
    plan: BatchMeterPlan,
    where: tuple[int, Sequence[int]],
    rng: np.random.Generator,
) -> _Measured:
    """All contexts of one batch size, by turns."""
    batch, starts = where
    steps: list[list[_TimedStep]] = [[] for _ in starts]
    began, rounds = time.perf_counter(), 0
    while rounds < 2 or _fewest(steps, batch, plan.gamma_max) < LEAST or time.perf_counter() - began < plan.seconds:
        for place in rng.permutation(len(starts)):
            prompts = [_cut(plan.text, starts[place], rng) for _ in range(batch)]
            run = batched_decode(
                target,
                draft,
                RandomLengths(plan.gamma_max, rng),
                prompts,
                DecodingSettings(plan.span),
                BatchPlan(batch, plan.gamma_max, drain=False, timed=True),
            )
            if rounds:  # the first warms up
                steps[place] += [
                    _TimedStep(passes, spent) for spent, passes in zip(run.seconds, run.passes, strict=True)
                ]
        rounds += 1
    every = [step for each in steps for step in each]
    overhead, bookkeeping = _line([float(len(step.drafts)) for step in every], [step.rest for step in every])
    verify = np.array([_verify(each, batch, plan.gamma_max) for each in steps])
    lines = [_first_line(each, batch) for each in steps]
    onward = np.array([_onward(each, batch, line[0]) for each, line in zip(steps, lines, strict=True)])
    added = [extra for each in zip(steps, lines, onward, strict=True) for extra in _added(*each, batch)]
    opening = np.array([[one, one + more] for one, more in lines])
    return _Measured(verify, opening + bookkeeping, onward + bookkeeping, overhead, max(0.0, float(np.median(added))))


@dataclass(frozen=True)
class _TimedStep:
    """A step: its passes and its seconds."""

    passes: list[Pass]
    seconds: float

    @property
    def drafts(self) -> list[Pass]:
        """Those of the drafter."""
        return [p for p in self.passes if p.kind == "draft"]

    @property
    def rest(self) -> float:
        """What the step took outside its passes."""
        return self.seconds - sum(p.seconds for p in self.passes)


def _cut(text: Sequence[int], length: int, rng: np.random.Generator) -> list[int]:
    """Tokens from anywhere in the text."""
    start = int(rng.integers(len(text)))
    return [text[(start + index) % len(text)] for index in range(length)]


def _fewest(steps: Sequence[Sequence[_TimedStep]], batch: int, gamma_max: int) -> int:
    """Samples of the kind of pass with the fewest, at the context with the fewest."""
    fewest = [len(samples) for each in steps for samples in _by_width(each, batch, gamma_max)]
    for each in steps:
        fewest += [len(_first(each, batch)), sum(p.signals for step in each for p in step.drafts)]
        if gamma_max > 1:
            fewest.append(len(_later(each, batch)))
    return min(fewest)


def _by_width(steps: Sequence[_TimedStep], batch: int, gamma_max: int) -> list[list[float]]:
    """Seconds of the target's passes of the whole batch over 1, 2, ... tokens of every request."""
    samples: list[list[float]] = [[] for _ in range(gamma_max + 1)]
    for step in steps:
        for p in step.passes:
            if p.kind == "verify" and p.tokens % batch == 0:
                samples[p.tokens // batch - 1].append(p.seconds)
    return samples


def _verify(steps: Sequence[_TimedStep], batch: int, gamma_max: int) -> Floats:
    return np.array([np.median(samples) for samples in _by_width(steps, batch, gamma_max)])


def _first(steps: Sequence[_TimedStep], batch: int) -> list[Pass]:
    """First passes of the drafter over the whole batch, without signals."""
    passes = [step.drafts[0] for step in steps if step.drafts]
    return [p for p in passes if p.rows == batch and not p.signals]


def _later(steps: Sequence[_TimedStep], batch: int) -> list[Pass]:
    """Its later passes likewise."""
    return [p for step in steps for p in step.drafts[1:] if p.rows == batch and not p.signals]


def _beyond(p: Pass) -> float:
    """Tokens beyond one that a request takes in, on average; more than one cost what one costs."""
    return min(1.0, p.tokens / p.rows - 1)


def _first_line(steps: Sequence[_TimedStep], batch: int) -> tuple[float, float]:
    """Seconds of a first pass over one token of every request, and what a second one adds."""
    passes = _first(steps, batch)
    return _line([_beyond(p) for p in passes], [p.seconds for p in passes])


def _onward(steps: Sequence[_TimedStep], batch: int, first: float) -> float:
    """Seconds of a later pass; where drafts of one token have none, those of the first."""
    passes = _later(steps, batch)
    return float(np.median([p.seconds for p in passes])) if passes else first


def _added(steps: Sequence[_TimedStep], line: tuple[float, float], onward: float, batch: int) -> list[float]:
    """What passes with signals took longer than those without."""
    extra = []
    for step in steps:
        for depth, p in enumerate(step.drafts):
            if p.signals and p.rows == batch:
                extra.append(p.seconds - (onward if depth else line[0] + line[1] * _beyond(p)))
    return extra


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Value at 0 and slope, neither below 0: the median slope of pairs, each of a lower and an upper half by ``x``
    (Theil's abbreviated method, 1950), and the median of what it leaves.
    """
    order = np.argsort(x, kind="stable")
    xs, ys = np.array(x)[order], np.array(y)[order]
    half = len(xs) // 2
    across, up = xs[len(xs) - half :] - xs[:half], ys[len(ys) - half :] - ys[:half]
    slopes = up[across > 0] / across[across > 0]
    slope = max(0.0, float(np.median(slopes))) if len(slopes) else 0.0
    return max(0.0, float(np.median(ys - slope * xs))), slope
