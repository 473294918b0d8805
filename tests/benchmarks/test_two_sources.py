"""The benchmark of two sources: finished parts are kept, and its figures are judged by what they must reach."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.traces.costs import CostCurve


def test_what_is_finished_is_not_computed_again(tmp_path: Path) -> None:
    from two_sources import _part

    computed = []

    def compute() -> list[dict[str, Any]]:
        computed.append(1)
        return [{"gain": 0.1, "task": None}]

    first = _part(tmp_path, "live other 5%", compute)
    assert _part(tmp_path, "live other 5%", compute) == first == [{"gain": 0.1, "task": None}]
    assert len(computed) == 1


def test_parts_of_another_pair_are_refused(tmp_path: Path) -> None:
    from two_sources import _check_work

    def manifest(target: str) -> Any:
        model = {"target": target, "draft": "b"}
        return SimpleNamespace(
            prompts=SimpleNamespace(sha256="c"),
            **{role: SimpleNamespace(fingerprint=digest) for role, digest in model.items()},
        )

    _check_work(tmp_path, manifest("a"))
    _check_work(tmp_path, manifest("a"))
    with pytest.raises(DraftgaugeError, match="--fresh"):
        _check_work(tmp_path, manifest("another"))


def row(subset: str, task: str, gain: float, over_better: float, **changes: Any) -> dict[str, Any]:
    return {
        "table": "live",
        "policy": "two-source",
        "prompts_of": "sealed",
        "subset": subset,
        "task": task,
        "gain_over_rival": gain,
        "gain_over_rival_low": gain - 0.01,
        "gain_over_rival_high": gain + 0.02,
        "gain_over_better_source_high": over_better,
    } | changes


def test_the_live_gain_is_judged_over_all_and_over_distinct_outputs() -> None:
    from two_sources_rows import verdicts

    distinct = "over 80% distinct 4-grams"
    rows = [
        row("all", "all", 0.2, 0.1),
        row(distinct, "all", 0.07, 0.1),
        row("all", "chat", 0.01, -0.02),
        row("all", "all", 0.9, 0.9, policy="stopping"),
        row("all", "all", 0.9, 0.9, table="replay"),
    ]
    judged = list(verdicts(rows))
    gains = {each["subset"]: each["value"] >= each["least"] for each in judged if each["what"] == "gain over stopping"}
    assert gains == {"all": True, distinct: False}
    intervals = {each["subset"]: (each["low"], each["high"]) for each in judged if "low" in each}
    assert intervals == {"all": (0.19, 0.22), distinct: (pytest.approx(0.06), pytest.approx(0.09))}
    behind = [(each["subset"], each["task"]) for each in judged if each["least"] == 0 and each["value"] < 0]
    assert behind == [("all", "chat")]


def test_what_can_be_replayed_again_is_not_written() -> None:
    from two_sources_rows import published

    def replayed(task: str, curve: str, subset: str) -> dict[str, Any]:
        key = {"table": "replay", "task": task, "curve": curve, "subset": subset, "policy": "lookup"}
        return key | {"gain": 0.123456789, "captured": None, "p_value": 0.5, "prompts": 12}

    rows = [
        replayed("chat", "measured", "all"),
        replayed("chat", "flat", "all"),
        replayed("all", "flat", "all"),
        replayed("chat", "measured", "least acceptance"),
        replayed("all", "measured", "least acceptance"),
        row("all", "chat", 1 / 3, 0.1),
    ]
    written = list(published(rows))
    assert [(each.get("task"), each.get("curve"), each["subset"]) for each in written] == [
        ("chat", "measured", "all"),
        ("all", "flat", "all"),
        ("all", "measured", "least acceptance"),
        ("chat", None, "all"),
    ]
    assert {"captured", "p_value"}.isdisjoint(written[0])
    assert (written[0]["gain"], written[0]["prompts"], written[-1]["gain_over_rival"]) == (0.12346, 12, 0.33333)


def test_the_mean_of_two_curves() -> None:
    from curves import mean_curve

    def curve(scale: float) -> CostCurve:
        verify, draft = ((1.0 * scale, 2.0 * scale),), ((0.0, 0.5 * scale),)
        return CostCurve((10,), verify, draft, (scale,), "none", "cpu", "float32", catch_up=(0.0, scale))

    assert mean_curve([curve(1.0), curve(3.0)]) == curve(2.0)
