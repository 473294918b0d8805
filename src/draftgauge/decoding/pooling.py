"""From timed steps to a table of costs: samples of all context lengths pooled, and how sure the table is.

At context ``c`` a quantity of steps that draft ``g`` tokens is modelled as ``f(g) + a_c + b_c g``: every length has its
own value, as processors like some numbers of tokens better than others, and a context shifts and tilts them (attention
reads more keys for every token). ``f(g)`` is the median over the samples of all contexts, drawn towards a curve
``x + y g + z / g`` as far as its samples do not tell it from one (empirical Bayes): a line, from which short lengths,
where a pass goes from one token to several, may depart. So a few samples of each length go far.

A step that drafts nothing is not on that line: a pass over one token multiplies matrices by a vector, and longer ones
by a matrix. Its median stands for itself, and there are the most samples of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.traces.costs import Uncertainty

QUARTILES = (25, 50, 75)
SWEEPS = 3  # between the lengths' medians and the contexts' lines
NORMAL_IQR = 1.349  # interquartile range of a normal distribution, in standard deviations
MEDIAN_ERROR = 1.2533  # standard error of a median, in standard deviations over the root of the samples
SHAPE = 3  # terms of the curve that medians are drawn towards
LEAST_ERROR = 0.1  # of the largest error: no median counts for more than a hundred others
SURE = 2.0  # standard errors of what is told from nothing
MOST_SAVED = 0.5  # of the shortest pass, by repeating the step before
TWO_SIDED = 1.96  # half of a 95% interval, in standard errors
ACCEPTANCE = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Chances that a drafted token is accepted, for which the advice must hold: the meter does not know the pair's own."""
NEAR = 0.02
"""A length is advised where none is more than this much faster (as in :mod:`draftgauge.replaying.evaluate`)."""

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]


class Timed(NamedTuple):
    """Steps timed at one context: tokens drafted, and seconds of one of their parts."""

    lengths: Ints
    seconds: Seconds


class Pooled(NamedTuple):
    """What :func:`pool` makes of timed steps.

    Attributes:
        quartiles: ``[3, C, L]`` lower quartile, median and upper quartile by context and length.
        errors: ``[L]`` standard errors of the medians.
        counts: ``[L]`` samples of each length.
    """

    quartiles: Seconds
    errors: Seconds
    counts: Ints


def pool(contexts: Sequence[Timed], first: int, last: int) -> Pooled:
    """Pool the samples of all contexts, some of every length in at least one of them.

    No context is given less than its fastest sample took.

    Args:
        contexts: the samples of each context.
        first, last: the shortest and the longest length; ``L`` is how many there are.
    """
    kept = [Timed(t.lengths[t.lengths >= first], t.seconds[t.lengths >= first]) for t in contexts]
    lengths = np.arange(first, last + 1)
    every = np.concatenate([timed.lengths for timed in kept])
    lines = np.zeros((len(kept), 2))  # slope and offset of each context
    for _ in range(SWEEPS if len(kept) > 1 else 0):
        medians = _percentiles(every, _without(kept, lines), lengths, (50,))[0]
        lines = np.stack([_line(t.lengths, t.seconds - medians[t.lengths - first]) for t in kept])
        lines -= lines.mean(axis=0)
    rest = _without(kept, lines)
    quartiles = _percentiles(every, rest, lengths, QUARTILES)
    medians, counts = quartiles[1], np.bincount(every - first, minlength=len(lengths))
    low, high = np.percentile(rest / medians[every - first], (25, 75))  # of all: one length's few say little
    errors = MEDIAN_ERROR * (high - low) / NORMAL_IQR * medians / np.sqrt(counts)
    values, drawn = medians.copy(), lengths > 0
    values[drawn], errors[drawn] = _shrunk(lengths[drawn], medians[drawn], errors[drawn])
    shifts = np.stack([np.polyval(line, lengths) for line in lines])
    least = np.array([[timed.seconds.min()] for timed in kept])  # few samples may draw a line to below nothing
    return Pooled(np.maximum((quartiles + values - medians)[:, None, :] + shifts, least), errors, counts)


def uncertainty(steps: Pooled, seconds: float) -> Uncertainty:
    """How sure the seconds of whole steps are, which measuring took ``seconds``."""
    middle = steps.quartiles[1, steps.quartiles.shape[1] // 2]
    widths = TWO_SIDED * steps.errors / middle
    return Uncertainty(
        seconds=float(seconds),
        samples=tuple(steps.counts.tolist()),
        half_widths=tuple(widths.tolist()),
        undecided=tuple(rate for rate in ACCEPTANCE if not _decided(middle, widths, rate)),
    )


def saved_by_repeating(before: Sequence[float], after: Sequence[float], shortest: float) -> float:
    """By how many seconds the median falls from steps unlike the one before to those like it, if by more than chance
    explains, else 0; and never by more than half of the shortest pass, as few samples on a busy machine may say.
    """
    if not before or not after:
        return 0.0
    falls = float(np.median(before) - np.median(after))
    sure = falls > SURE * np.hypot(_median_error(before), _median_error(after))
    return min(falls, MOST_SAVED * shortest) if sure else 0.0


def _median_error(values: Sequence[float]) -> float:
    """Standard error of the median of values that are about normally distributed."""
    low, high = np.percentile(values, (25, 75))
    return float(MEDIAN_ERROR * (high - low) / NORMAL_IQR / np.sqrt(len(values)))


def _without(contexts: Sequence[Timed], lines: Seconds) -> Seconds:
    """All seconds, without what their contexts add."""
    return np.concatenate([t.seconds - np.polyval(line, t.lengths) for t, line in zip(contexts, lines, strict=True)])


def _percentiles(every: Ints, values: Seconds, lengths: Ints, wanted: tuple[int, ...]) -> Seconds:
    """``[len(wanted), L]``."""
    return np.stack([np.percentile(values[every == length], wanted) for length in lengths], axis=1)


def _line(lengths: Ints, rest: Seconds) -> Seconds:
    """A line through the medians of each length."""
    present = np.unique(lengths)
    medians = np.array([np.median(rest[lengths == length]) for length in present])
    return np.polyfit(present, medians, 1) if len(present) > 1 else np.array([0.0, medians.mean()])


def _shrunk(lengths: Ints, medians: Seconds, errors: Seconds) -> tuple[Seconds, Seconds]:
    """Medians drawn towards their curve, each as far as its error makes it doubtful, and the errors that are left."""
    if len(lengths) <= SHAPE + 1 or not errors.any():
        return medians, errors
    terms = np.stack([np.ones(len(lengths)), lengths, 1 / lengths], axis=1)
    squared = np.maximum(errors, errors.max() * LEAST_ERROR) ** 2
    curve, departure = _curve(terms, medians, 1 / squared), 0.0
    weights = 1 / squared
    excess = float((weights * (medians - curve) ** 2).sum()) - (len(lengths) - SHAPE)
    if excess > 0:
        bread = np.linalg.inv((terms * weights[:, None]).T @ terms)
        meat = (terms * (weights**2)[:, None]).T @ terms
        departure = excess / float(weights.sum() - np.trace(bread @ meat))
        curve = _curve(terms, medians, 1 / (squared + departure))
    keep = departure / (departure + squared)
    of_curve = SHAPE * (errors**2).mean() / len(lengths)
    return curve + keep * (medians - curve), np.sqrt(keep * errors**2 + (1 - keep) * of_curve)


def _curve(terms: Seconds, medians: Seconds, weights: Seconds) -> Seconds:
    """``[L]`` the sum of the terms that comes closest to the medians."""
    roots = np.sqrt(weights)
    curve: Seconds = terms @ np.linalg.lstsq(terms * roots[:, None], medians * roots, rcond=None)[0]
    return curve


def _decided(seconds: Seconds, widths: Seconds, acceptance: float) -> bool:
    """Whether no length can be :data:`NEAR` faster than the one that looks best at a chance of acceptance."""
    lengths = np.arange(len(seconds))
    speed = (1 - acceptance ** (lengths + 1)) / (1 - acceptance) / seconds
    best = int(np.argmax(speed))
    gain = speed / speed[best] - 1 + np.hypot(widths, widths[best])
    gain[best] = 0.0
    return bool((gain <= NEAR).all())
