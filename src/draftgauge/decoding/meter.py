"""The cost meter: what drafting, verifying and the rest of a step cost on this machine, measured inside the live loop.

Timing ``propose`` and ``forward`` on their own flatters them: live, each finds the processor's caches full of the
other's weights, and the draft must first take in what the last step committed. So the meter runs the loop itself on
real text, with draft lengths in random order, and reads a stopwatch around its parts. What a step takes beyond them,
its overhead, is that of the loop without the stopwatch, which takes its own time there. It stops as soon as which
length is best is settled, or when its time is over, and says what is left open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Generator

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.decisions import time_decisions
from draftgauge.decoding.fitted_costs import BACKLOGS, fitted_costs, step_uncertainty
from draftgauge.decoding.levels import steadied
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.results import Origin
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.decoding.stopwatch import Sample, StepTimer, Stopwatch, TimedDrafter
from draftgauge.drafters.base import Drafter, RunsModel, device_of, keeps_drafted
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.policies.base import Policy
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.registry import make_policy, timed_policies
from draftgauge.traces.costs import CostCurve, CostTable, PolicySeconds
from draftgauge.verification import Sampling

SPAN = 64  # tokens decoded in one go: a context length is measured around its value, over that many tokens
PLAIN_SPAN = 16
UNWATCHED = 2  # tokens a draft where the stopwatch does not run
LEAST = 4  # samples of every draft length and set of signals, over all contexts; one where the time is over before
DECIDING = 0.1  # of the time: for what policies take to decide, after all else


def default_contexts(prompt_tokens: Sequence[int], output_tokens: Sequence[int]) -> tuple[int, ...]:
    """Context lengths worth measuring for some prompts: where the first step starts, the median, where the last one
    ends.

    Args:
        prompt_tokens, output_tokens: of each prompt.
    """
    prompts, outputs = np.asarray(prompt_tokens), np.asarray(output_tokens)
    return tuple(sorted({int(prompts.min()), int(np.median(prompts + outputs // 2)), int((prompts + outputs).max())}))


def measured_span(gamma_max: int, context_limit: int) -> int:
    """Tokens that are decoded in one go for a measurement: room for several of the longest drafts, as far as the models
    take them.

    Raises:
        DraftgaugeError: if not even two of the longest drafts fit.
    """
    span = min(max(SPAN, 4 * (gamma_max + 1)), context_limit - 1)
    if span < 2 * (gamma_max + 1):
        raise DraftgaugeError(
            f"the models take {context_limit} tokens, and measuring drafts of {gamma_max} needs "
            f"{2 * gamma_max + 3}: lower gamma_max"
        )
    return span


@dataclass(frozen=True)
class MeterPlan:
    """What to measure, and for how long.

    Attributes:
        text: token ids of real text; the contexts are cut from it, repeated as often as needed.
        contexts: lengths in tokens; those past the limit are measured at the limit.
        gamma_max: longest draft.
        seconds: time that measuring may take once every length has a few samples; it ends earlier where the costs are
            known well enough to settle which length is best.
        context_limit: longest sequence that target and draft take, the target's if None.
        compression: of the target, by name.
        vocabulary: of the pair, see :class:`~draftgauge.traces.costs.CostCurve`.
        sampling: of the target.

    Raises:
        DraftgaugeError: for a plan that measures nothing.
    """

    text: Sequence[int]
    contexts: Sequence[int]
    gamma_max: int = 16
    seconds: float = 15.0
    context_limit: int | None = None
    compression: str = "none"
    vocabulary: str = ""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not self.text or not self.contexts or self.gamma_max < 1 or self.seconds < 0:
            raise DraftgaugeError(
                "measuring costs needs text, at least one context length, gamma_max 1 or more and seconds, 0 or more"
            )


def measure_costs(
    target: CachedModel,
    drafter: Drafter,
    plan: MeterPlan,
    rng: np.random.Generator,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CostCurve:
    """Measure a cost curve by decoding with the pair, greedily or as it samples.

    Args:
        target: its cache is overwritten.
        drafter: knows no end tokens, so that it drafts as many tokens as asked.
        plan: what to measure, and for how long.
        rng: for the order of measurements and the positions in the text.
        generator: on the target's device, needed to sample.
        progress: told (hundredths of the time that are over, 100).

    Raises:
        DraftgaugeError: if the models' context is too short to decode in.
    """
    limit = target.spec.context if plan.context_limit is None else min(target.spec.context, plan.context_limit)
    span = measured_span(plan.gamma_max, limit)
    lengths = sorted({max(1, min(context, limit)) for context in plan.contexts})
    starts = {length: min(max(1, length - span // 2), limit - span) for length in lengths}
    benches = [_Bench(target, drafter, plan, (length, starts[length], span), rng, generator) for length in lengths]
    begun = time.perf_counter()
    if target.spec.device.type == "cuda":
        _warm(benches)
    benches[-1].run_all()  # warms up, and is not counted
    benches[-1].forget()
    for bench in _by_turns(benches, rng):
        bench.run_all()
        spent = time.perf_counter() - begun
        samples = sum(each.fewest() for each in benches) if all(each.measured for each in benches) else 0
        progress(min(99, int(100 * spent / max(plan.seconds, 1e-9))), 100)
        if samples >= (1 if spent >= plan.seconds > 0 else LEAST):
            for each in benches:
                each.steady()
            if spent >= plan.seconds or not step_uncertainty([each.samples for each in benches], spent).undecided:
                break
    curve = _curve(benches, plan, target, spent)
    policies = {name: make_policy(name, plan.gamma_max, curve) for name in timed_policies()}
    decisions = benches[len(benches) // 2].time_decisions(policies, max(plan.seconds, spent) * DECIDING)
    progress(100, 100)
    return replace(curve, decisions=decisions)


def _warm(benches: Sequence[_Bench]) -> None:
    """Warm all of them, the longest context first: a cache that grows forgets the passes that were recorded over it."""
    for bench in reversed(benches):
        bench.warm()


def _by_turns(benches: Sequence[_Bench], rng: np.random.Generator) -> Iterator[_Bench]:
    """All of them in random order, over and over."""
    while True:
        yield from (benches[index] for index in rng.permutation(len(benches)))


class _Bench:
    """The measurements at one context length."""

    def __init__(
        self,
        target: CachedModel,
        drafter: Drafter,
        plan: MeterPlan,
        where: tuple[int, int, int],
        rng: np.random.Generator,
        generator: Generator | None,
    ) -> None:
        """``where`` is the context length, where decoding starts for it, and how many tokens it decodes."""
        self.context, self._start, self._span = where
        self.keeps_drafted = keeps_drafted(drafter)
        device = target.spec.device
        self._stopwatch = Stopwatch(device, device_of(drafter, device))
        self._target = target
        self._drafter = drafter
        self._text = np.asarray(plan.text)
        self._rng = rng
        self._gamma_max = plan.gamma_max
        self._generator = generator
        self._speculative = DecodingSettings(self._span, plan.sampling)
        self._plain = DecodingSettings(min(PLAIN_SPAN, self._span), plan.sampling)
        self._phases = DecodingSettings(min(PLAIN_SPAN, self._span), plan.sampling, time_phases=True)
        self.forget()

    def forget(self) -> None:
        """Drop what was measured."""
        self._timer = StepTimer(self._stopwatch, self._gamma_max, self._rng)
        self.samples: list[Sample] = []
        self.plain: list[float] = []
        self.overheads: list[float] = []

    @property
    def measured(self) -> bool:
        """Whether there is anything to go by."""
        return bool(self.plain and self.overheads and self._timer.samples)

    def fewest(self) -> int:
        """Samples of what has the fewest, see :meth:`StepTimer.fewest`."""
        return self._timer.fewest()

    def steady(self) -> None:
        """Let ``samples`` be all steps timed so far, without the machine's drift."""
        self.samples = steadied(self._timer.samples)

    def warm(self) -> None:
        """Let the models take in every number of tokens that a step may take, at both ends of the span, three times: an
        engine that records its passes does so when they come again, which is no part of what a step costs.
        """
        passes = [(self._target, self._gamma_max + 1)]
        if isinstance(self._drafter, RunsModel):
            passes.append((self._drafter.model, BACKLOGS))
        for model, most in passes:
            for length in (self._start - 1, self._start + self._span - most):
                model.reset()
                if length:
                    model.forward(upload(self._some_text(length), model.spec.device), last_only=True)
                for count in range(1, most + 1):
                    for _ in range(3):
                        model.forward(upload(self._some_text(count), model.spec.device))
                        model.truncate(length)

    def _some_text(self, length: int) -> list[int]:
        """Tokens from anywhere in the text."""
        positions = (int(self._rng.integers(len(self._text))) + np.arange(length)) % len(self._text)
        tokens: list[int] = self._text[positions].tolist()
        return tokens

    def run_all(self) -> None:
        """Decode plainly, twice under the stopwatch and once without, in random order, from anywhere in the text."""
        prompt = self._some_text(self._start)
        runs = (self._run_plain, self._run_speculative, self._run_speculative, self._run_unwatched)
        for index in self._rng.permutation(len(runs)):
            runs[index](prompt)

    def time_decisions(self, policies: Mapping[str, Policy], seconds: float) -> tuple[PolicySeconds, ...]:
        """Measure what policies take to decide, for about ``seconds``."""
        prompts = iter(lambda: self._some_text(self._start), None)
        return time_decisions(
            self._target, self._drafter, policies, prompts, self._speculative, seconds, self._generator
        )

    def _run_speculative(self, prompt: list[int]) -> None:
        timer = self._timer
        drafter = TimedDrafter(self._drafter, timer, filler=prompt[0])
        speculative_decode(self._target, drafter, timer, prompt, self._speculative, self._generator)
        timer.settle()

    def _run_unwatched(self, prompt: list[int]) -> None:
        policy = FixedLength(min(UNWATCHED, self._gamma_max))
        result = speculative_decode(self._target, self._drafter, policy, prompt, self._phases, self._generator)
        assert result.phases is not None
        self.overheads.append(result.phases.other / len(result.steps))

    def _run_plain(self, prompt: list[int]) -> None:
        moments: list[float] = []

        def committed(tokens: list[int], origins: list[Origin]) -> None:
            moments.append(time.perf_counter())  # the loop has read the token, so the device is done with it

        plain_decode(self._target, prompt, self._plain, self._generator, on_commit=committed)
        self.plain += np.diff(moments).tolist()


def _curve(benches: Sequence[_Bench], plan: MeterPlan, target: CachedModel, spent: float) -> CostCurve:
    fit = fitted_costs([bench.samples for bench in benches])
    return CostCurve(
        contexts=tuple(bench.context for bench in benches),
        verify_low=_table(fit.verify[0]),
        verify=_table(fit.verify[1]),
        verify_high=_table(fit.verify[2]),
        draft_low=_table(fit.draft[0]),
        draft=_table(fit.draft[1]),
        draft_high=_table(fit.draft[2]),
        overhead=_overhead(benches),
        signals=fit.signals,
        repeat=fit.repeat,
        catch_up=fit.catch_up,
        keeps_drafted=benches[0].keeps_drafted,
        plain=tuple(float(np.median(bench.plain)) for bench in benches),
        compression=plan.compression,
        device=str(target.spec.device),
        dtype=str(target.spec.dtype).removeprefix("torch."),
        vocabulary=plan.vocabulary,
        uncertainty=step_uncertainty([bench.samples for bench in benches], spent),
    )


def _table(rows: NDArray[np.float64]) -> CostTable:
    return tuple(tuple(row.tolist()) for row in rows)


def _overhead(benches: Sequence[_Bench]) -> float:
    """What a step takes beyond its parts, the median over all runs without the stopwatch."""
    return float(np.median([seconds for bench in benches for seconds in bench.overheads]))
