"""Scores of predicted acceptance: worked by hand, and right where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.diagnostics.calibration import (
    Judged,
    base_rates,
    brier,
    calibration_rows,
    expected_calibration_error,
    judged,
    predicted_acceptance,
    reliability_bins,
    starts,
    visited,
)
from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying import acceptance_by_depth, replay
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace
from synthetic import synthetic_trace

GAMMA_MAX = 5


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(11, prompts=12, length=40, gamma_max=GAMMA_MAX)


def tokens(predicted: list[float], accepted: list[int], depth: int = 1) -> Judged:
    return Judged(np.full(len(accepted), depth), np.array(predicted), np.array(accepted, np.bool_))


def test_only_tokens_that_the_target_came_to_are_judged(trace: Trace) -> None:
    found = judged(trace, np.full(trace.confidence.shape, 0.5))
    expected = []
    for i in range(len(trace.prompts)):
        for row in range(trace.offsets[i], trace.offsets[i + 1]):
            for depth in range(1, min(trace.drafted[row], trace.offsets[i + 1] - row, trace.accepted[row] + 1) + 1):
                expected.append((depth, bool(trace.draft_token[row, depth - 1] == trace.token[row + depth - 1])))
    assert list(zip(found.depth.tolist(), found.accepted.tolist(), strict=True)) == expected


def test_base_rates_are_those_of_acceptance_by_depth(trace: Trace) -> None:
    rates = [row["rate"] for row in acceptance_by_depth(trace, resamples=10) if row["task"] == "all"]
    assert base_rates(trace) == pytest.approx(rates)
    hopeless = replace(trace, accepted=np.zeros_like(trace.accepted))
    assert base_rates(hopeless).tolist() == [0.0] * GAMMA_MAX


def test_bins_and_error_by_hand() -> None:
    found = tokens([0.1, 0.15, 0.15, 0.9, 1.0], [0, 0, 1, 1, 1])
    low, *empty, high = reliability_bins(found, bins=5)
    assert (low.low, low.high, low.count) == (0.0, 0.2, 3)
    assert (low.predicted, low.accepted) == pytest.approx((0.4 / 3, 1 / 3))
    assert (high.count, high.predicted, high.accepted) == (2, pytest.approx(0.95), 1.0)
    assert [bin_.count for bin_ in empty] == [0, 0, 0]
    assert all(np.isnan(bin_.accepted) for bin_ in empty)
    assert expected_calibration_error(found, bins=5) == pytest.approx((3 * 0.2 + 2 * 0.05) / 5)


def test_brier_score_by_hand() -> None:
    score = brier(tokens([0.25, 0.25, 0.75, 0.75], [0, 1, 1, 1]), [0.75], bins=2)
    assert score.score == pytest.approx((0.0625 + 0.5625 + 0.0625 + 0.0625) / 4)
    assert score.reliability == pytest.approx((0.25**2 + 0.25**2) / 2)
    assert score.resolution == pytest.approx((0.25**2 + 0.25**2) / 2)
    assert score.uncertainty == pytest.approx(0.75 * 0.25)
    assert score.within == pytest.approx(0)
    assert score.skill == pytest.approx(0)
    assert score.count == 4


def test_the_parts_sum_to_the_score(trace: Trace) -> None:
    found = judged(trace, trace.confidence)
    score = brier(found, base_rates(trace))
    assert score.reliability - score.resolution + score.uncertainty + score.within == pytest.approx(score.score)
    assert abs(score.within) < 0.01


def test_true_chances_are_calibrated_and_flattered_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    chance = rng.random(20_000)
    accepted = rng.random(20_000) < chance
    depth = np.ones(20_000, np.int64)
    truth, flattered = Judged(depth, chance, accepted), Judged(depth, np.sqrt(chance), accepted)
    assert expected_calibration_error(truth) < 0.015
    assert expected_calibration_error(flattered) > 0.1
    scores = [brier(found, [0.5]) for found in (truth, flattered)]
    assert scores[0].score == pytest.approx(1 / 6, abs=0.005)  # E[c (1 - c)] of a uniform chance
    assert scores[0].skill == pytest.approx(1 / 3, abs=0.02)
    assert scores[0].reliability < 0.001 < scores[1].reliability
    assert scores[0].resolution == pytest.approx(scores[1].resolution, abs=0.01)


def test_the_base_rate_has_no_skill_over_itself(trace: Trace) -> None:
    base = base_rates(trace)
    rows = calibration_rows(trace, {"rate": np.tile(base, (trace.positions, 1)), "confidence": trace.confidence}, base)
    by_key = {(row["prediction"], row["depth"]): row for row in rows}
    assert by_key["rate", None]["brier_skill"] == pytest.approx(0)
    assert by_key["rate", 1]["calibration_error"] == pytest.approx(0)
    assert by_key["confidence", None]["brier_skill"] > 0.05
    assert (
        sum(row["tokens"] for row in rows if row["prediction"] == "rate" and row["depth"])
        == by_key["rate", None]["tokens"]
    )
    for row in rows:
        assert row["uncertainty"] == pytest.approx(row["accepted"] * (1 - row["accepted"]))


def test_predictions_that_cannot_be_are_refused(trace: Trace) -> None:
    with pytest.raises(DraftgaugeError, match="shape"):
        judged(trace, trace.confidence[:, 1:])
    with pytest.raises(DraftgaugeError, match=r"0\.\.1"):
        judged(trace, np.full(trace.confidence.shape, 1.5))
    with pytest.raises(DraftgaugeError, match="nothing to score"):
        brier(judged(trace, np.full(trace.confidence.shape, np.nan)), base_rates(trace))


def test_policies_without_predictions_have_none(trace: Trace) -> None:
    assert predicted_acceptance(FixedLength(2), trace) is None


def test_only_tokens_of_the_steps_that_a_policy_takes_are_visited() -> None:
    trace = synthetic_trace(0, prompts=4, length=40, gamma_max=4)
    row = ((1.0,) * 5,)
    costs = CostCurve((10,), row, row, (1.0,), "none", "cpu", "float32")
    policy = FixedLength(2)
    record = replay(trace, policy).record
    rows = record.rows(trace)
    among = visited(trace, policy, costs)
    assert among.sum() == record.drafted.sum()
    assert (among[rows].sum(axis=1) == record.drafted).all()
    assert starts(trace, policy, costs)[:, 0].nonzero()[0].tolist() == rows.tolist()
    tokens = judged(trace, np.full(trace.confidence.shape, 0.5), among)
    assert len(tokens.accepted) < len(judged(trace, np.full(trace.confidence.shape, 0.5)).accepted)
    assert tokens.depth.max() == 2
