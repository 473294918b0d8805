from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import SignalName
from draftgauge.traces.costs import CostCurve, Measurement
from draftgauge.traces.engine_costs import EngineCosts, read_costs
from draftgauge.traces.run import Run
from synthetic import synthetic_manifest

CURVE = CostCurve(
    contexts=(100, 300),
    verify=((4.25, 5.25, 6.25), (8.25, 9.25, 10.25)),
    draft=((0.0, 1.0, 2.0), (0.0, 2.0, 4.0)),
    plain=(4.0, 8.0),
    compression="uncompressed",
    device="cpu",
    dtype="float32",
)


def test_step_seconds_interpolates_and_clamps() -> None:
    seconds = CURVE.step_seconds(np.asarray([0, 1, 2, 2, 2]), np.asarray([100, 200, 300, 5, 9999]))
    np.testing.assert_allclose(seconds, [4.25, (6.25 + 11.25) / 2, 14.25, 8.25, 14.25])
    assert CURVE.step_seconds(np.arange(3)[:, None], np.asarray([100, 300])).shape == (3, 2)
    one = replace(CURVE, contexts=(100,), **{name: getattr(CURVE, name)[:1] for name in ("verify", "draft", "plain")})
    np.testing.assert_allclose(one.step_seconds(1, np.asarray([1, 500])), [6.25, 6.25])


def test_a_step_is_drafting_and_verifying() -> None:
    assert float(CURVE.verify_seconds(2, 100)) == 5.25
    assert float(CURVE.draft_seconds(2, 200)) == 3.0
    assert float(CURVE.step_seconds(1, 100, appended=1)) == 1.0 + 6.25
    assert float(CURVE.step_seconds(2, 100, appended=-1)) == 2.0 + 5.25


@pytest.mark.parametrize("gamma", [3, -1])
def test_unmeasured_draft_lengths_are_refused(gamma: int) -> None:
    with pytest.raises(TraceError, match=rf"measured for gamma 0\.\.2, asked for {gamma}"):
        CURVE.step_seconds(np.asarray([0, gamma]), 100)


def test_a_policy_that_looks_at_drafted_tokens_waits_for_each() -> None:
    curve = replace(CURVE, signals=0.5)
    blind = float(curve.step_seconds(2, 100))
    for reads, added in ((), 0.0), ({SignalName.TARGET_ENTROPY}, 0.0), ({SignalName.TEXT}, 1.0), (SignalName, 1.0):
        assert float(curve.step_seconds(2, 100, frozenset(reads))) == blind + added, reads


def test_what_a_busy_machine_measures_is_doubted() -> None:
    sure = replace(CURVE, measured=Measurement(9.0, (20, 20, 20), 0.15))
    assert sure.doubt() == CURVE.doubt() == ""  # of which nothing is said, nothing is known
    vague = replace(CURVE, measured=Measurement(9.0, (3, 3, 3), 0.26))
    assert "within 26% only" in vague.doubt()
    assert "plain decoding was measured at 0.48 times verifying one token" in replace(sure, plain=(4.0, 4.0)).doubt()
    assert "plain decoding was measured at 1.65 times verifying one token" in replace(sure, plain=(7.0, 8.0)).doubt()


def test_cost_ratio_is_drafting_one_token_over_verifying_one() -> None:
    assert CURVE.cost_ratio() == pytest.approx(2.0 / 8.25)
    block = replace(CURVE, draft=((0.0, 1.0, 1.0), (0.0, 3.0, 3.0)))  # one pass drafts all of it
    assert block.cost_ratio() == pytest.approx(3.0 / 8.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": ()}, "contexts must be increasing lengths, at least one"),
        ({"contexts": (300, 100)}, r"contexts must be increasing lengths, at least one, not \[300, 100\]"),
        ({"verify": CURVE.verify[:1]}, r"verify must have 2 rows \(contexts\) of 3 columns"),
        ({"draft": ((0.0,), (0.0,))}, r"draft must have the columns 0..gamma_max"),
        ({"draft": ()}, r"draft must have the columns 0..gamma_max"),
        ({"plain": (1.0,)}, r"plain must have 2 values \(contexts\), not 1"),
        ({"plain": (1.0, 0.0)}, "plain must be seconds greater than 0"),
        ({"verify": ((3.0, -4.0, 5.0), (7.0, 8.0, 9.0))}, "verify must be seconds greater than 0"),
        ({"draft": ((0.0, 1.0, 2.0), (0.0, 0.0, 4.0))}, "draft must be seconds greater than 0"),
        ({"signals": -1.0}, "signals must be seconds, 0 or more, not -1.0"),
        ({"catch_up": (0.5, 1.0)}, r"catch_up must be seconds, 0 or more, the first of them 0, not \[0.5, 1.0\]"),
        ({"catch_up": (0.0, -1.0)}, "catch_up must be seconds, 0 or more"),
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


@pytest.mark.parametrize(("name", "other"), [("compression", "nf4"), ("pair", "a+b")])
def test_costs_of_something_else_than_the_trace_are_refused(tmp_path: Path, name: str, other: str) -> None:
    manifest = synthetic_manifest(1, gamma_max=2, max_new_tokens=8)
    manifest.save(tmp_path)
    own = replace(CURVE, engine="lean", pair=manifest.pair)
    for curve in (CURVE, own):
        curve.save(tmp_path / "costs.json")
        assert Run(tmp_path).costs == replace(curve, engine="lean"), "of the trace's engine, where it does not say"
    replace(own, **{name: other}).save(tmp_path / "costs.json")
    with pytest.raises(TraceError, match=f"costs.json is of {name} {re.escape(other)}, the trace of {name}"):
        _ = Run(tmp_path).costs


@pytest.mark.parametrize(("plain", "first"), [(10.0, 0.01), (0.02, 0.01), (0.0001, 0.01), (0.01, 0.03)])
def test_costs_of_an_engine_that_contradict_each_other_are_refused(tmp_path: Path, plain: float, first: float) -> None:
    """Plain decoding in other units, or slower than a step that also verifies: else any speed-up comes out."""
    path, good = tmp_path / "c.json", EngineCosts("vllm", (1,), (0.011,), ((0.01, 0.012),), ((0.0, 0.001),))
    good.save(path)
    assert read_costs(path, "vllm")[1].plain == (0.01,)
    replace(good, plain=(plain,), verify=((first, 0.012),)).save(path)
    with pytest.raises(TraceError, match="which contradict each other: give all in seconds"):
        read_costs(path, "vllm")
