"""The cost meter: what drafting, verifying and the rest of a step cost on this machine, measured inside the live loop.

Timing ``propose`` and ``forward`` on their own flatters them: live, each finds the processor's caches full of the
other's weights, and the draft must first take in what the last step committed. So the meter runs the loop itself on
real text, with draft lengths in random order, and reads a stopwatch around its parts. What a step takes beyond them is
its overhead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Generator

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.results import Origin
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.decoding.stopwatch import PRICED, Sample, StepTimer, Stopwatch, TimedDrafter, TimedModel
from draftgauge.drafters.base import Drafter
from draftgauge.models.base import CachedModel
from draftgauge.traces.costs import CostCurve, CostTable, SignalSeconds
from draftgauge.verification import Sampling

SPAN = 64  # tokens decoded in one go: a context length is measured around its value, over that many tokens
PLAIN_SPAN = 16
QUARTILES = (25, 50, 75)

Seconds = NDArray[np.float64]


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


def measure_costs(
    target: CachedModel,
    drafter: Drafter,
    text: Sequence[int],
    contexts: Sequence[int],
    rng: np.random.Generator,
    gamma_max: int = 16,
    repeats: int = 10,
    compression: str = "none",
    vocabulary: str = "",
    context_limit: int | None = None,
    sampling: Sampling | None = None,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CostCurve:
    """Measure a cost curve by decoding with the pair, greedily or as it samples.

    Args:
        target: its cache is overwritten.
        drafter: knows no end tokens, so that it drafts as many tokens as asked.
        text: token ids of real text; the contexts are cut from it, repeated as often as needed.
        contexts: lengths in tokens; those past the limit are measured at the limit.
        rng: for the order of measurements and the places in the text.
        gamma_max: longest draft.
        repeats: samples of every draft length at every context.
        compression: of the target, by name.
        vocabulary: of the pair, see :class:`~draftgauge.traces.costs.CostCurve`.
        context_limit: longest sequence that target and draft take, the target's by default.
        sampling: of the target, greedy if None.
        generator: on the target's device, needed to sample.
        progress: told (samples taken, samples wanted).

    Raises:
        DraftgaugeError: if the models' context is too short to decode in.
    """
    if not text or not contexts or repeats < 1 or gamma_max < 1:
        raise DraftgaugeError(
            "measuring costs needs text, at least one context length, one repeat and gamma_max 1 or more"
        )
    limit = target.spec.context if context_limit is None else min(target.spec.context, context_limit)
    span = measured_span(gamma_max, limit)
    lengths = sorted({max(1, min(context, limit)) for context in contexts})
    decoding = (sampling or Sampling(), generator)
    benches = [_Bench(target, drafter, text, length, limit, span, rng, gamma_max, *decoding) for length in lengths]
    for bench in benches:  # warmed up: once at every context, not counted
        bench.run_all()
        bench.forget()
    wanted = repeats * len(benches)
    while (done := sum(min(bench.fewest(), repeats) for bench in benches)) < wanted:
        progress(done, wanted)
        for index in rng.permutation(len(benches)):
            benches[index].run_all()
    progress(wanted, wanted)
    return _curve(benches, compression, vocabulary, target)


class _Bench:
    """The measurements at one context length."""

    def __init__(
        self,
        target: CachedModel,
        drafter: Drafter,
        text: Sequence[int],
        context: int,
        limit: int,
        span: int,
        rng: np.random.Generator,
        gamma_max: int,
        sampling: Sampling,
        generator: Generator | None,
    ) -> None:
        self.context = context
        self._target = target
        self._drafter = drafter
        self._text = np.asarray(text)
        self._start = min(max(1, context - span // 2), limit - span)
        self._rng = rng
        self._gamma_max = gamma_max
        self._generator = generator
        self._speculative = DecodingSettings(span, sampling)
        self._plain = DecodingSettings(min(PLAIN_SPAN, span), sampling)
        self.forget()

    def forget(self) -> None:
        """Drop what was measured."""
        self._timer = StepTimer(Stopwatch(self._target.spec.device), self._gamma_max, self._rng)
        self.plain: list[float] = []

    def fewest(self) -> int:
        """Samples of what has the fewest, see :meth:`StepTimer.fewest`."""
        return self._timer.fewest()

    @property
    def samples(self) -> list[Sample]:
        """All timed steps."""
        return self._timer.samples

    @property
    def plain_samples(self) -> list[Sample]:
        """Timed steps without signals."""
        return [sample for sample in self.samples if sample.reads == NO_SIGNALS]

    def run_all(self) -> None:
        """Decode twice with the speculative loop and once plainly, in random order, from a random place in the text."""
        places = (int(self._rng.integers(len(self._text))) + np.arange(self._start)) % len(self._text)
        prompt = self._text[places].tolist()
        runs = (self._run_plain, self._run_speculative, self._run_speculative)
        for index in self._rng.permutation(len(runs)):
            runs[index](prompt)

    def _run_speculative(self, prompt: list[int]) -> None:
        timer = self._timer
        target, drafter = TimedModel(self._target, timer), TimedDrafter(self._drafter, timer, filler=prompt[0])
        speculative_decode(target, drafter, timer, prompt, self._speculative, self._generator)
        timer.settle()

    def _run_plain(self, prompt: list[int]) -> None:
        moments: list[float] = []

        def committed(tokens: list[int], origins: list[Origin]) -> None:
            moments.append(time.perf_counter())  # the loop has read the token, so the device is done with it

        plain_decode(self._target, prompt, self._plain, self._generator, on_commit=committed)
        self.plain += np.diff(moments).tolist()


def _curve(benches: Sequence[_Bench], compression: str, vocabulary: str, target: CachedModel) -> CostCurve:
    verify = [_quartiles(bench.plain_samples, lambda sample: sample.verify) for bench in benches]
    draft = [_quartiles(bench.plain_samples, lambda sample: sample.draft) for bench in benches]
    return CostCurve(
        contexts=tuple(bench.context for bench in benches),
        verify_low=_table(verify, 0),
        verify=_table(verify, 1),
        verify_high=_table(verify, 2),
        draft_low=_table(draft, 0),
        draft=_table(draft, 1),
        draft_high=_table(draft, 2),
        overhead=_overhead(benches),
        signals=_signal_seconds(benches),
        plain=tuple(float(np.median(bench.plain)) for bench in benches),
        compression=compression,
        device=str(target.spec.device),
        dtype=str(target.spec.dtype).removeprefix("torch."),
        vocabulary=vocabulary,
    )


def _quartiles(samples: Sequence[Sample], value: Callable[[Sample], float]) -> Seconds:
    """``[3, G + 1]`` quartiles of a value by draft length."""
    lengths = np.array([sample.gamma for sample in samples])
    values = np.array([value(sample) for sample in samples])
    return np.stack([np.percentile(values[lengths == gamma], QUARTILES) for gamma in range(lengths.max() + 1)], axis=1)


def _table(quartiles: Sequence[Seconds], which: int) -> CostTable:
    return tuple(tuple(rows[which].tolist()) for rows in quartiles)


def _overhead(benches: Sequence[_Bench]) -> float:
    """What a step takes beyond its parts, the median over contexts and draft lengths."""
    medians = [_quartiles(b.plain_samples, lambda s: s.step - s.draft - s.verify)[1] for b in benches]
    return max(0.0, float(np.median(medians)))


def _signal_seconds(benches: Sequence[_Bench]) -> SignalSeconds:
    """What each signal adds: the parts, none below 0, whose sums come closest to what the timed sets of signals took.

    Of drafted tokens it is taken from the time of drafting alone: within a whole step it would drown in what the
    target's pass varies by. The target's entropy is computed after that pass, so its time is that of the rest of the
    step.
    """
    parts = [field.name for field in fields(SignalSeconds) if field.name != SignalName.TARGET_ENTROPY]
    units = [SignalSeconds(**{name: 1.0}) for name in parts]
    shares = np.array([[unit.of_token(reads) for unit in units] for reads in PRICED])  # [sets, parts]
    added = np.array([max(0.0, float(np.median(_added_by_token(benches, reads)))) for reads in PRICED])
    seconds, _ = nnls(shares, added)
    return SignalSeconds(**dict(zip(parts, seconds.tolist(), strict=True)), target_entropy=_target_entropy(benches))


def _added_by_token(benches: Sequence[_Bench], reads: Reads) -> list[float]:
    """How much longer each drafted token took with a set of signals than without, one value a step."""
    added = []
    for bench in benches:
        without = _quartiles(bench.plain_samples, lambda sample: sample.draft)[1]
        steps = [sample for sample in bench.samples if sample.reads & OF_DRAFTED_TOKENS == reads]
        added += [(sample.draft - without[sample.gamma]) / sample.gamma for sample in steps]
    return added


def _target_entropy(benches: Sequence[_Bench]) -> float:
    """What the target's entropy adds to the rest of a step."""
    rest: dict[bool, list[float]] = {False: [], True: []}
    for bench in benches:
        for sample in bench.samples:
            if sample.reads:
                rest[SignalName.TARGET_ENTROPY in sample.reads].append(sample.step - sample.draft - sample.verify)
    return max(0.0, float(np.median(rest[True]) - np.median(rest[False])))
