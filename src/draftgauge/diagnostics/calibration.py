"""Is a predicted chance of acceptance what it says? Reliability, Brier score and its parts, by depth in the draft; no
torch.

A policy that weighs the chance that the next token is still accepted against its cost is as good as that chance is
right: among the tokens for which 0.7 was predicted, 70% should be accepted (it is *calibrated*), and the predictions
should tell those that are accepted from those that are not (it has *resolution*).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy, SignalArrays, reads_of
from draftgauge.replaying.acceptance import known_drafts
from draftgauge.replaying.evaluate import Row
from draftgauge.replaying.rows import signal_arrays
from draftgauge.replaying.simulate import replay
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]
BINS = 10


@runtime_checkable
class PredictsAcceptance(Protocol):
    """A policy that says how likely it takes each drafted token to be accepted."""

    def acceptance(self, signals: SignalArrays) -> NDArray[np.float64]:
        """``[P, G]`` chance that each drafted token is accepted if all before it are; NaN without a prediction."""
        ...


@dataclass(frozen=True)
class Judged:
    """Drafted tokens whose fate is known, ``N`` in all: every token that the target came to judge.

    Attributes:
        depth: ``[N]`` 1 for the first token of a draft.
        predicted: ``[N]`` chance of acceptance as predicted before it was judged, given that all tokens before it were
            accepted.
        accepted: ``[N]`` whether it was.
    """

    depth: NDArray[np.int64]
    predicted: Floats
    accepted: NDArray[np.bool_]

    def at(self, depth: int) -> Judged:
        """The predictions at one depth."""
        here = self.depth == depth
        return Judged(self.depth[here], self.predicted[here], self.accepted[here])


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram.

    Attributes:
        low, high: predictions in ``low <= p < high``; the last bin holds 1 too.
        count: tokens in it.
        predicted: their mean prediction.
        accepted: the share that was accepted. Both are NaN in an empty bin.
    """

    low: float
    high: float
    count: int
    predicted: float
    accepted: float


@dataclass(frozen=True)
class Brier:
    """Mean squared error of predicted chances, ``score = reliability - resolution + uncertainty + within``.

    Murphy (1973), "A new vector partition of the probability score", over bins, with the part that binning leaves over
    (Stephenson, Coelho and Jolliffe 2008, "Two extra components in the Brier score decomposition").

    Attributes:
        score: 0 is perfect.
        reliability: mean squared distance of predicted chances from accepted shares, bin by bin; less is better.
        resolution: how far the bins' accepted shares are spread; more is better.
        uncertainty: of the outcome itself, ``rate (1 - rate)``.
        within: what predictions that differ within a bin add or take away; near 0 with enough bins.
        skill: ``1 - score / score of the base rate of each depth``; 0 is no better than knowing the depth alone. NaN
            where the base rate makes no error.
        count: tokens judged.
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within: float
    skill: float
    count: int


def predicted_acceptance(policy: Policy, trace: Trace) -> NDArray[np.float64] | None:
    """``[P, G]`` what a policy predicts on a trace; None of one that predicts nothing."""
    return policy.acceptance(signal_arrays(trace, reads_of(policy))) if isinstance(policy, PredictsAcceptance) else None


def visited(trace: Trace, policy: Policy, costs: CostCurve) -> NDArray[np.bool_]:
    """``[P, G]`` the tokens that a policy drafts on a trace, the only ones that its chances decide on.

    A step starts where the one before was corrected, which is where the draft is bad: chances that are right over all
    positions can be too high at these.
    """
    record = replay(trace, policy, costs).record
    drafted = np.zeros(trace.positions, np.int64)
    drafted[record.rows(trace)] = record.drafted
    return np.arange(trace.gamma_max) < drafted[:, None]


def starts(trace: Trace, policy: Policy, costs: CostCurve) -> NDArray[np.bool_]:
    """``[P, G]`` the first tokens from where the steps of a policy start, drafted or not."""
    chosen = np.zeros((trace.positions, trace.gamma_max), np.bool_)
    chosen[replay(trace, policy, costs).record.rows(trace), 0] = True
    return chosen


def judged(trace: Trace, predicted: ArrayLike, among: NDArray[np.bool_] | None = None) -> Judged:
    """The drafted tokens of a trace that the target would have come to, with their predictions.

    A token at depth ``d`` is judged if the ``d - 1`` before it were accepted; tokens past the end of the recorded
    output never are.

    Args:
        trace: dense; test prompts, as predictions on prompts that were fitted on flatter.
        predicted: ``[P, G]`` chance that the token at each depth is accepted; NaN where there is no prediction, which
            leaves it out.
        among: ``[P, G]`` the tokens to judge, e.g. those of :func:`visited`; all by default.

    Raises:
        DraftgaugeError: if the shape is not that of the trace's drafts, or a prediction is no probability.
    """
    chances = np.asarray(predicted, np.float64)
    if chances.shape != trace.confidence.shape:
        raise DraftgaugeError(
            f"predictions have shape {list(chances.shape)}, the trace's drafts {list(trace.confidence.shape)}"
        )
    depths = np.broadcast_to(np.arange(1, trace.gamma_max + 1), chances.shape)
    accepted = trace.accepted[:, None]
    chosen = (accepted >= depths - 1) & (depths <= known_drafts(trace)[:, None]) & ~np.isnan(chances)
    if among is not None:
        chosen &= among
    tokens = Judged(depths[chosen], chances[chosen], (accepted >= depths)[chosen])
    if ((tokens.predicted < 0) | (tokens.predicted > 1)).any():
        raise DraftgaugeError("a predicted chance of acceptance must lie in 0..1")
    return tokens


def base_rates(trace: Trace) -> Floats:
    """``[G]`` share accepted of the tokens judged at each depth; deeper than any was judged, that of the deepest. 0.5
    with none at all.

    To be taken from training prompts: the reference of :attr:`Brier.skill`.
    """
    everything = judged(trace, np.ones(trace.confidence.shape))
    rates, rate = np.empty(trace.gamma_max), 0.5
    for depth in range(1, trace.gamma_max + 1):
        here = everything.at(depth).accepted
        rate = float(here.mean()) if len(here) else rate
        rates[depth - 1] = rate
    return rates


def reliability_bins(tokens: Judged, bins: int = BINS) -> list[Bin]:
    """Bins of equal width over 0..1, empty ones among them."""
    bin_of, edges = _bins_of(tokens, bins), np.linspace(0, 1, bins + 1)
    count, predicted, accepted = _bin_means(tokens, bin_of, bins)
    return [
        Bin(float(edges[i]), float(edges[i + 1]), int(count[i]), float(predicted[i]), float(accepted[i]))
        for i in range(bins)
    ]


def expected_calibration_error(tokens: Judged, bins: int = BINS) -> float:
    """Mean distance of predicted chance and accepted share over bins, weighted by their tokens; NaN without any.

    Naeini, Cooper and Hauskrecht (2015), "Obtaining well calibrated probabilities using Bayesian binning".
    """
    count, predicted, accepted = _bin_means(tokens, _bins_of(tokens, bins), bins)
    full = count > 0
    return float((count[full] * np.abs(predicted - accepted)[full]).sum() / count.sum()) if full.any() else float("nan")


def brier(tokens: Judged, base: ArrayLike, bins: int = BINS) -> Brier:
    """The Brier score with its parts.

    Args:
        tokens: judged ones, at least one.
        base: ``[G]`` base rate of every depth, see :func:`base_rates`.
        bins: of the decomposition.

    Raises:
        DraftgaugeError: if nothing was judged.
    """
    if not len(tokens.accepted):
        raise DraftgaugeError("no drafted token of this trace was judged: there is nothing to score predictions on")
    outcome = tokens.accepted.astype(np.float64)
    score = float(np.mean((tokens.predicted - outcome) ** 2))
    reference = float(np.mean((np.asarray(base, np.float64)[tokens.depth - 1] - outcome) ** 2))
    count, predicted, accepted = _bin_means(tokens, _bins_of(tokens, bins), bins)
    full, rate = count > 0, float(outcome.mean())
    weight = count[full] / count.sum()
    reliability = float((weight * (predicted - accepted)[full] ** 2).sum())
    resolution = float((weight * (accepted[full] - rate) ** 2).sum())
    uncertainty = rate * (1 - rate)
    skill = 1 - score / reference if reference else float("nan")
    return Brier(
        score,
        reliability,
        resolution,
        uncertainty,
        score - (reliability - resolution + uncertainty),
        skill,
        len(outcome),
    )


def calibration_rows(
    trace: Trace,
    predictions: Mapping[str, ArrayLike],
    base: ArrayLike,
    bins: int = BINS,
    among: NDArray[np.bool_] | None = None,
) -> list[Row]:
    """How right several predictions of acceptance are, at every depth and (``depth`` None) over all.

    Args:
        trace: test prompts.
        predictions: by name, each as in :func:`judged`; the drafter's own ``trace.confidence`` is the one to beat.
        base: base rates from training prompts.
        bins: of reliability.
        among: as of :func:`judged`.

    Returns:
        Rows with ``prediction, compression, depth, tokens, accepted, predicted`` (mean), ``calibration_error, brier,
        reliability, resolution, uncertainty, within, brier_skill``; depths that no token reached are left out.
    """
    rows: list[Row] = []
    for name, predicted in predictions.items():
        tokens = judged(trace, predicted, among)
        for depth in (None, *range(1, trace.gamma_max + 1)):
            here = tokens if depth is None else tokens.at(depth)
            if len(here.accepted):
                key: Row = {"prediction": name, "compression": trace.compression, "depth": depth}
                rows.append(key | _scores(here, base, bins))
    return rows


def _scores(tokens: Judged, base: ArrayLike, bins: int) -> Row:
    parts = brier(tokens, base, bins)
    return {
        "tokens": parts.count,
        "accepted": float(tokens.accepted.mean()),
        "predicted": float(tokens.predicted.mean()),
        "calibration_error": expected_calibration_error(tokens, bins),
        "brier": parts.score,
        "reliability": parts.reliability,
        "resolution": parts.resolution,
        "uncertainty": parts.uncertainty,
        "within": parts.within,
        "brier_skill": parts.skill,
    }


def _bins_of(tokens: Judged, bins: int) -> NDArray[np.int64]:
    """``[N]`` bin of each prediction."""
    return np.minimum((tokens.predicted * bins).astype(np.int64), bins - 1)


def _bin_means(tokens: Judged, bin_of: NDArray[np.int64], bins: int) -> tuple[NDArray[np.int64], Floats, Floats]:
    """``[bins]`` tokens of every bin, their mean prediction and the share accepted; the means are NaN in empty bins."""
    count = np.bincount(bin_of, minlength=bins)
    sums = [np.bincount(bin_of, values, bins) for values in (tokens.predicted, tokens.accepted.astype(np.float64))]
    predicted, accepted = (np.divide(total, count, out=np.full(bins, np.nan), where=count > 0) for total in sums)
    return count, predicted, accepted
