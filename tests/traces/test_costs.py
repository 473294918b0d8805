from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import SignalName
from draftgauge.traces.costs import CostCurve, PolicySeconds, RepeatSeconds, SignalSeconds, Uncertainty

CURVE = CostCurve(
    contexts=(100, 300),
    verify=((4.0, 5.0, 6.0), (8.0, 9.0, 10.0)),
    verify_low=((3.0, 4.0, 5.0), (7.0, 8.0, 9.0)),
    verify_high=((5.0, 6.0, 7.0), (9.0, 10.0, 11.0)),
    draft=((0.0, 1.0, 2.0), (0.0, 2.0, 4.0)),
    draft_low=((0.0, 0.5, 1.5), (0.0, 1.5, 3.5)),
    draft_high=((0.0, 1.5, 2.5), (0.0, 2.5, 4.5)),
    overhead=0.25,
    plain=(4.0, 8.0),
    compression="none",
    device="cpu",
    dtype="float32",
)


def test_step_seconds_interpolates_and_clamps() -> None:
    seconds = CURVE.step_seconds(np.asarray([0, 1, 2, 2, 2]), np.asarray([100, 200, 300, 5, 9999]))
    np.testing.assert_allclose(seconds, [4.25, (6.25 + 11.25) / 2, 14.25, 8.25, 14.25])
    assert CURVE.step_seconds(np.arange(3)[:, None], np.asarray([100, 300])).shape == (3, 2)


def test_step_seconds_of_one_context() -> None:
    one = replace(CURVE, contexts=(100,), **{name: getattr(CURVE, name)[:1] for name in ("verify", "draft", "plain")})
    np.testing.assert_allclose(one.step_seconds(1, np.asarray([1, 500])), [6.25, 6.25])


@pytest.mark.parametrize("gamma", [3, -1])
def test_unmeasured_draft_lengths_are_refused(gamma: int) -> None:
    with pytest.raises(TraceError, match=rf"measured for gamma 0\.\.2, asked for {gamma}"):
        CURVE.step_seconds(np.asarray([0, gamma]), 100)


def test_what_a_busy_machine_measures_is_doubted() -> None:
    sure = replace(CURVE, uncertainty=Uncertainty(9.0, (20, 20, 20), (0.02, 0.03, 0.15), ()))
    assert sure.doubt() == CURVE.doubt() == ""  # of which nothing is said, nothing is known
    vague = replace(CURVE, uncertainty=Uncertainty(9.0, (3, 3, 3), (0.02, 0.26, 0.1), ()))
    assert "within 26% only" in vague.doubt()
    assert "plain decoding was measured at 0.50 times verifying one token" in replace(sure, plain=(4.0, 4.0)).doubt()
    assert "plain decoding was measured at 1.50 times verifying one token" in replace(sure, plain=(6.0, 8.0)).doubt()
    assert "were not measured to take longer" in replace(sure, draft=((0.0, 2.0, 1.0), (0.0, 4.0, 2.0))).doubt()
    looked_up = replace(sure, draft=((0.0, 0.001, 0.0), (0.0, 0.001, 0.0)))
    assert looked_up.doubt() == ""


def test_cost_ratio_is_one_more_draft_token_over_verifying_one() -> None:
    assert CURVE.cost_ratio() == pytest.approx(2.0 / 8.0)
    short = replace(CURVE, draft=((0.0, 1.0), (0.0, 2.0)))
    assert short.cost_ratio() == pytest.approx(0.25)


def test_round_trip(tmp_path: Path) -> None:
    CURVE.save(tmp_path / "costs.json")
    assert CostCurve.load(tmp_path / "costs.json") == CURVE
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": ()}, "contexts must be increasing lengths, at least one"),
        ({"contexts": (300, 100)}, r"contexts must be increasing lengths, at least one, not \[300, 100\]"),
        ({"verify": CURVE.verify[:1]}, r"verify must have 2 rows \(contexts\) of 3 columns"),
        ({"draft_high": ((0.0, 1.0), (0.0, 1.0))}, "draft_high must have 2 rows"),
        ({"draft": ((0.0,), (0.0,))}, r"draft must have the columns 0..gamma_max"),
        ({"draft": ()}, r"draft must have the columns 0..gamma_max"),
        ({"plain": (1.0,)}, r"plain must have 2 values \(contexts\), not 1"),
        ({"plain": (1.0, 0.0)}, "plain must be seconds greater than 0"),
        ({"verify_low": ((3.0, -4.0, 5.0), (7.0, 8.0, 9.0))}, "verify_low must be seconds greater than 0"),
        ({"draft": ((0.0, 1.0, 2.0), (0.0, float("nan"), 4.0))}, "draft must be seconds greater than 0"),
        ({"signals": SignalSeconds(entropy=-1.0)}, "entropy must be seconds, 0 or more, not -1.0"),
        ({"overhead": -0.1}, "overhead must be seconds, 0 or more, not -0.1"),
        ({"repeat": RepeatSeconds(plain=4.25)}, "repeat must be less than a step's 4.25 seconds"),
        ({"repeat": RepeatSeconds(proposing=5.0)}, "repeat must be less than a step's 4.25 seconds"),
        ({"catch_up": (0.5, 1.0)}, r"catch_up must be seconds, 0 or more, the first of them 0, not \[0.5, 1.0\]"),
        ({"catch_up": (0.0, -1.0)}, "catch_up must be seconds, 0 or more"),
        ({"decisions": (PolicySeconds("stopping", -1.0, 0.0),)}, "decisions of stopping must be seconds, 0 or more"),
        ({"verify_high": CURVE.verify_low}, "verify must lie between verify_low and verify_high"),
    ],
)
def test_a_curve_that_cannot_have_been_measured_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "costs.json"
    replace(CURVE, **changes).save(path)
    with pytest.raises(
        TraceError, match=rf"costs\.json is not a cost curve: {message}.*run `draftgauge profile` again"
    ):
        CostCurve.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a cost curve"),
        ("[]", "must be a table of keys and values"),
        (json.dumps({"gamma": 1}), "unknown key 'gamma'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(TraceError, match=message):
        CostCurve.load(path)


def test_each_signal_is_charged_where_it_is_read() -> None:
    curve = replace(CURVE, signals=SignalSeconds(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 1.5))
    blind = float(curve.step_seconds(2, 100))
    for reads, added in {
        frozenset(): 0.0,
        frozenset({SignalName.TEXT}): 3.5 * 1.0,
        frozenset({SignalName.CONFIDENCE}): 3.5 * 7.0,
        frozenset({SignalName.CONFIDENCE, SignalName.MARGIN, SignalName.TEXT}): 3.5 * 23.0,
        frozenset({SignalName.TARGET_ENTROPY}): 32.0,
        frozenset(SignalName): 3.5 * 31.0 + 32.0,
    }.items():
        assert float(curve.step_seconds(2, 100, reads)) == blind + added, reads
    assert float(curve.step_seconds(0, 100, frozenset({SignalName.CONFIDENCE}))) == float(curve.step_seconds(0, 100))


def test_files_that_price_all_signals_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    CURVE.save(path)
    entry = json.loads(path.read_text())
    del entry["version"]
    path.write_text(json.dumps(entry | {"signals": 1e-5, "confidence": 1e-6}))
    with pytest.raises(TraceError, match=r"its format is 1, .* prices each signal by itself; run `draftgauge profile`"):
        CostCurve.load(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the cost curve .*costs\.json .*run `draftgauge profile` again"):
        CostCurve.load(tmp_path / "costs.json")
