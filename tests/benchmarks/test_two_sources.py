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
    behind = [(each["subset"], each["task"]) for each in judged if each["least"] == 0 and each["value"] < 0]
    assert behind == [("all", "chat")]


def test_the_mean_of_two_curves() -> None:
    from curves import mean_curve

    def curve(scale: float) -> CostCurve:
        tables = (((1.0 * scale, 2.0 * scale),),) * 3 + (((0.0, 0.5 * scale),),) * 3
        return CostCurve((10,), *tables, scale, (scale,), "none", "cpu", "float32", catch_up=(0.0, scale))

    assert mean_curve([curve(1.0), curve(3.0)]) == curve(2.0)
