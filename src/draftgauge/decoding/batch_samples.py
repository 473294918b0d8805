"""From timed steps of batches to what their passes cost.

Even passes, those over as many tokens of every request, make the tables. What ragged ones take longer than tables say
of as many tokens is found apart, by the places that they are padded with. What is charged is summed over many steps, so
costs are means, not medians: the median of the means of a few groups of samples, which a single stall of the machine
does not move (Nemirovsky and Yudin 1983).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from draftgauge.decoding.batched import Pass
from draftgauge.statistics.typical import typical
from draftgauge.traces.batch_costs import BatchCosts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TimedStep:
    """A step: its passes and its seconds, and whether its passes have the shape of those of the step before."""

    passes: list[Pass]
    seconds: float
    repeats: bool = False

    @property
    def verify(self) -> Pass:
        """The target's pass."""
        return self.passes[-1]

    @property
    def shape(self) -> tuple[int, int]:
        """Most tokens that a request takes in, and passes of the drafter."""
        return self.verify.widest, len(self.passes)

    @property
    def drafts(self) -> list[Pass]:
        """The drafter's passes."""
        return [p for p in self.passes if p.kind == "draft"]

    @property
    def later(self) -> list[Pass]:
        """The drafter's passes after its first."""
        return self.drafts[1:]

    @property
    def rest(self) -> float:
        """What the step took outside its passes."""
        return self.seconds - sum(p.seconds for p in self.passes)


def timed_steps(passes: Iterable[list[Pass]], seconds: Iterable[float]) -> list[TimedStep]:
    """The steps of one run, in order, but for those in which the graph of a pass was recorded: the next ones of its
    shape do without.
    """
    steps: list[TimedStep] = []
    for own, spent in zip(passes, seconds, strict=True):
        step = TimedStep(own, spent)
        repeats = bool(steps) and steps[-1].shape == step.shape and steps[-1].verify.rows == step.verify.rows
        steps.append(replace(step, repeats=repeats))
    return [step for step in steps if not any(p.records for p in step.passes)]


class BatchSamples:
    """The steps of one batch size, by context."""

    def __init__(self, batch: int, gamma_max: int, contexts: tuple[int, ...]) -> None:
        self.batch, self.gamma_max, self.contexts = batch, gamma_max, contexts
        self.steps: list[list[TimedStep]] = [[] for _ in contexts]

    @property
    def every(self) -> list[TimedStep]:
        """The timed steps at all context lengths."""
        return [step for steps in self.steps for step in steps]

    def fewest(self) -> int:
        """Samples of the kind of pass with the fewest, at the context with the fewest."""
        fewest = [len(samples) for steps in self.steps for samples in self.by_width(steps)]
        for steps in self.steps:
            fewest += [len(self.first(steps)), sum(p.signals for step in steps for p in step.drafts)]
            if self.gamma_max > 1:
                fewest.append(len(self.later(steps)))
        if self.batch > 1:
            fewest.append(sum(step.verify.padded > 0 and not step.repeats for step in self.every))
        if self.batch > 2 and self.gamma_max > 1:
            fewest.append(sum(p.gap > 0 for step in self.every for p in step.later))
        return min(fewest)

    def by_width(self, steps: Sequence[TimedStep]) -> list[list[float]]:
        """Seconds of target passes over 1, 2, ... tokens a request, in steps that do not repeat the one before."""
        samples: list[list[float]] = [[] for _ in range(self.gamma_max + 1)]
        for step in steps:
            if not (step.verify.padded or step.repeats):
                samples[step.verify.widest - 1].append(step.verify.seconds)
        return samples

    def first(self, steps: Sequence[TimedStep]) -> list[Pass]:
        """First passes of the drafter over the whole batch, without signals."""
        return [p for step in steps for p in step.drafts[:1] if p.rows == self.batch and not p.signals]

    def later(self, steps: Sequence[TimedStep]) -> list[Pass]:
        """Its later passes likewise."""
        return [p for step in steps for p in step.later if p.rows == self.batch and not p.signals]

    def first_line(self, steps: Sequence[TimedStep]) -> tuple[float, float]:
        """Seconds of a first pass over one token of every request, and what a second one adds."""
        passes = self.first(steps)
        return line([_beyond(p) for p in passes], [p.seconds for p in passes])

    def onward(self, steps: Sequence[TimedStep], first: float) -> float:
        """Seconds of a later pass; where drafts of one token have none, those of the first."""
        passes = self.later(steps)
        return typical([p.seconds for p in passes]) if passes else first

    def asking(self, lines: Sequence[tuple[float, float]], onward: Sequence[float]) -> float:
        """What passes with signals took longer than those without."""
        extra = []
        for steps, (once, more), later in zip(self.steps, lines, onward, strict=True):
            for step in steps:
                for depth, p in enumerate(step.drafts):
                    if p.signals and p.rows == self.batch:
                        extra.append(p.seconds - (later if depth else once + more * _beyond(p)))
        return max(0.0, typical(extra))

    def ragged(self, costs: BatchCosts) -> tuple[tuple[float, float], tuple[float, float]]:
        """Seconds that ragged passes add: the target's by padded places, the drafter's later by missing requests."""
        padded: list[tuple[float, float]] = []
        missing: list[tuple[float, float]] = []
        for context, steps in zip(self.contexts, self.steps, strict=True):
            for step in steps:
                verify = step.verify
                if verify.padded and not step.repeats:
                    even = float(costs.verify_seconds(verify.rows, verify.tokens, context))
                    padded.append((verify.padded, verify.seconds - even))
                for p in step.later:
                    if p.gap and not p.signals:
                        even = float(costs.onward_seconds(p.rows, context))
                        missing.append((p.gap, p.seconds - even))
        lines = [line(*zip(*pairs, strict=True)) if pairs else (0.0, 0.0) for pairs in (padded, missing)]
        return lines[0], lines[1]


def batch_costs(measured: Sequence[BatchSamples]) -> BatchCosts:
    """The costs that samples show.

    Args:
        measured: batch sizes, increasing from 1.
    """
    verify, draft, onward, overhead, asking, bookkeeping = [], [], [], [], [], []
    for samples in measured:
        rest, each = line([float(len(step.drafts)) for step in samples.every], [step.rest for step in samples.every])
        lines = [samples.first_line(steps) for steps in samples.steps]
        later = [samples.onward(steps, first[0]) for steps, first in zip(samples.steps, lines, strict=True)]
        verify.append(tuple(tuple(map(typical, samples.by_width(steps))) for steps in samples.steps))
        draft.append(tuple((once, once + more) for once, more in lines))
        onward.append(tuple(later))
        overhead.append(rest)
        bookkeeping.append(each)
        asking.append(samples.asking(lines, later))
    costs = BatchCosts(
        batches=tuple(samples.batch for samples in measured),
        contexts=measured[0].contexts,
        verify=tuple(verify),
        draft=tuple(draft),
        onward=tuple(onward),
        overhead=tuple(overhead),
        asking=tuple(asking),
    )
    ragged = [samples.ragged(costs) for samples in measured]
    added = np.array(bookkeeping)
    return replace(
        costs,
        draft=_table(np.array(draft) + added[:, None, None]),
        onward=tuple(tuple(row) for row in (np.array(onward) + added[:, None]).tolist()),
        ragged_verify=tuple(verify for verify, _ in ragged),
        ragged_draft=tuple(draft for _, draft in ragged),
    )


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Value at 0 and slope, neither below 0: the median slope of pairs, each of a lower and an upper half by ``x``
    (Theil's abbreviated method, 1950), and :func:`typical` of what it leaves.
    """
    order = np.argsort(x, kind="stable")
    xs, ys = np.array(x)[order], np.array(y)[order]
    half = len(xs) // 2
    across, up = xs[len(xs) - half :] - xs[:half], ys[len(ys) - half :] - ys[:half]
    slopes = up[across > 0] / across[across > 0]
    slope = max(0.0, float(np.median(slopes))) if len(slopes) else 0.0
    left = np.asarray(y, np.float64) - slope * np.asarray(x, np.float64)
    return max(0.0, typical(left.tolist())), slope


def _beyond(p: Pass) -> float:
    """Tokens beyond one that a request takes in, on average; more than one cost what one costs."""
    return min(1.0, p.tokens / p.rows - 1)


def _table(values: Floats) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return tuple(tuple(tuple(row) for row in each) for each in values.tolist())
