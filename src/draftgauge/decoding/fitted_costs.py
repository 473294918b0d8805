"""From timed steps to a cost curve's tables, and to what signals, repeats and tokens to take in add or save.

All take the samples of each context length, and pool them (:mod:`draftgauge.decoding.pooling`). The tables are of steps
that propose differently than the step before them. Those that repeat it say what that saves; with it added again, they
are samples like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, SignalName
from draftgauge.decoding.pooling import Pooled, Timed, pool, saved_by_repeating, uncertainty
from draftgauge.decoding.stopwatch import IDLE_RUNS, Sample
from draftgauge.statistics.least_deviations import least_deviations
from draftgauge.traces.costs import RepeatSeconds, SignalSeconds, Uncertainty

LEAST_SECONDS = 1e-9
FIRST = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What :attr:`~draftgauge.traces.costs.SignalSeconds.first` may be."""
CATCH_UP_SWEEPS = 12  # between what lengths take and what backlogs add; each halves what is left
BACKLOGS = max(IDLE_RUNS) + 1  # numbers of tokens to take in that are told apart

Seconds = NDArray[np.float64]
Contexts = Sequence[Sequence[Sample]]
"""Timed steps of each context length."""


class FittedCosts(NamedTuple):
    """What a cost curve is made of, see :class:`~draftgauge.traces.costs.CostCurve`.

    Attributes:
        verify, draft: ``[3, C, G + 1]`` lower quartiles, medians and upper quartiles.
    """

    verify: Seconds
    draft: Seconds
    signals: SignalSeconds
    repeat: RepeatSeconds
    catch_up: tuple[float, ...]


def fitted_costs(contexts: Contexts) -> FittedCosts:
    """Fit all of it."""
    repeat, contexts = _as_unlike(contexts)
    catch_up = _catch_up(contexts)
    verify = _verification(contexts).quartiles
    draft = _drafting(contexts, catch_up).quartiles
    draft = np.concatenate([np.zeros((*draft.shape[:2], 1)), draft], axis=2)  # proposing nothing takes no time
    signals = _signal_seconds(contexts, catch_up)
    return FittedCosts(verify, draft, signals, repeat, catch_up.seconds)


def step_uncertainty(contexts: Contexts, seconds: float) -> Uncertainty:
    """The uncertainty of whole steps, from measuring that took ``seconds``."""
    contexts = _as_unlike(contexts)[1]
    return uncertainty(_steps(contexts, _catch_up(contexts)), seconds)


def _as_unlike(contexts: Contexts) -> tuple[RepeatSeconds, Contexts]:
    """What repeating the step before saves, and all samples as if none did."""
    repeat = _repeat_seconds(contexts)
    return repeat, [[_unlike(sample, repeat) for sample in samples] for samples in contexts]


def _unlike(sample: Sample, repeat: RepeatSeconds) -> Sample:
    if not sample.repeats:
        return sample
    saved = repeat.proposing if sample.gamma else repeat.plain
    return sample._replace(verify=sample.verify + saved, step=sample.step + saved, repeats=False)


def _plain(samples: Sequence[Sample]) -> list[Sample]:
    """Steps without signals."""
    return [sample for sample in samples if sample.reads == NO_SIGNALS]


def _pooled(contexts: Contexts, value: Callable[[Sample], float], first: int = 0) -> Pooled:
    """A value of steps without signals, by context and draft length from ``first`` on."""
    timed = []
    for samples in contexts:
        steps = _plain(samples)
        lengths = np.array([sample.gamma for sample in steps], np.int64)
        timed.append(Timed(lengths, np.array([value(sample) for sample in steps])))
    pooled = pool(timed, first, max(int(context.lengths.max()) for context in timed))
    return pooled._replace(quartiles=np.maximum(pooled.quartiles, LEAST_SECONDS))


class _CatchUp(NamedTuple):
    """What several tokens to take in add, see :attr:`~draftgauge.traces.costs.CostCurve.catch_up`."""

    seconds: tuple[float, ...] = (0.0,) * BACKLOGS

    def of(self, sample: Sample) -> float:
        """What they added to a step."""
        return self.seconds[min(sample.backlog, BACKLOGS) - 1]


def _verification(contexts: Contexts) -> Pooled:
    """The target's passes."""
    return _pooled(contexts, lambda sample: sample.verify)


def _drafting(contexts: Contexts, catch_up: _CatchUp) -> Pooled:
    """Drafting, without what several tokens to take in add."""
    return _pooled(contexts, lambda sample: sample.draft - catch_up.of(sample), first=1)


def _steps(contexts: Contexts, catch_up: _CatchUp) -> Pooled:
    """Whole steps, likewise."""
    return _pooled(contexts, lambda sample: sample.step - catch_up.of(sample))


def _catch_up(contexts: Contexts) -> _CatchUp:
    """Medians of what drafts took beyond those of their length, by how many tokens there were to take in; rising, and
    interpolated where a number did not occur.

    What drafts of a length take is that of all backlogs, less what the backlogs add: found by turns, one from the
    other.
    """
    catch_up = _CatchUp()
    for _ in range(CATCH_UP_SWEEPS):
        drafts = _drafting(contexts, catch_up).quartiles[1]
        rest: dict[int, list[float]] = {}
        for row, samples in enumerate(contexts):
            for sample in _plain(samples):
                if sample.gamma:
                    left = sample.draft - drafts[row][sample.gamma - 1]
                    rest.setdefault(min(sample.backlog, BACKLOGS), []).append(left)
        occurred = sorted(rest)
        medians = [float(np.median(rest[backlog])) for backlog in occurred]
        rising = isotonic_regression(medians, weights=[len(rest[backlog]) for backlog in occurred]).x
        seconds = np.interp(np.arange(1, BACKLOGS + 1), occurred, rising)
        catch_up = _CatchUp(tuple((seconds - seconds[0]).tolist()))
    return catch_up


def _repeat_seconds(contexts: Contexts) -> RepeatSeconds:
    """Median seconds that repeating the step before saves, without and with proposals; 0 where within noise."""
    unlike = [[sample for sample in samples if not sample.repeats] for samples in contexts]
    if not all(map(_plain, unlike)):
        return RepeatSeconds()  # too few to say
    catch_up = _catch_up(unlike)
    steps = _steps(unlike, catch_up).quartiles[1]
    rest: dict[tuple[bool, bool], list[float]] = {}  # by whether they propose, and whether they repeat
    for row, samples in enumerate(contexts):
        for sample in _plain(samples):
            left = sample.step - catch_up.of(sample) - steps[row][sample.gamma]
            rest.setdefault((sample.gamma > 0, sample.repeats), []).append(left)
    shortest = float(_verification(unlike).quartiles[1].min())
    return RepeatSeconds(
        *(saved_by_repeating(rest.get((p, False), []), rest.get((p, True), []), shortest) for p in (False, True))
    )


def _signal_seconds(contexts: Contexts, catch_up: _CatchUp) -> SignalSeconds:
    """What each signal adds: the parts, none below 0, whose sums come closest to what timed drafts with signals took
    beyond those without.

    Of drafted tokens it is taken from the time of drafting alone: within a whole step it would drown in what the
    target's pass varies by. The target's entropy is computed after that pass, so its time is that of the rest of the
    step.
    """
    parts = ("asking", "distribution", "confidence", "entropy", "margin")
    units = [SignalSeconds(**{name: 1.0}) for name in parts]
    without = _drafting(contexts, catch_up).quartiles[1]
    lengths, shares, added, scale = [], [], [], []
    for row, samples in enumerate(contexts):
        for sample in samples:
            if reads := sample.reads & OF_DRAFTED_TOKENS:
                lengths.append(sample.gamma)
                shares.append([unit.of_token(reads) for unit in units])
                scale.append(without[row][sample.gamma - 1])
                added.append(sample.draft - catch_up.of(sample) - scale[-1])
    tokens, values, scales = np.array(lengths), np.array(added), np.array(scale)
    fits = {first: least_deviations(np.array(shares) * (tokens + first)[:, None], values, scales) for first in FIRST}
    first = min(FIRST, key=lambda first: fits[first][1])
    seconds = dict(zip(parts, fits[first][0].tolist(), strict=True))
    return SignalSeconds(
        **seconds, target_entropy=_target_entropy(contexts), first=first if any(seconds.values()) else 0.0
    )


def _target_entropy(contexts: Contexts) -> float:
    """What the target's entropy adds to the rest of a step."""
    rest: dict[bool, list[float]] = {False: [], True: []}
    for samples in contexts:
        for sample in samples:
            if sample.reads:
                rest[SignalName.TARGET_ENTROPY in sample.reads].append(sample.step - sample.draft - sample.verify)
    return max(0.0, float(np.median(rest[True]) - np.median(rest[False])))
