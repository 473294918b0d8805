"""Sittings of the final benchmark: gone on with, begun anew, and shown beside each other."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

COMPRESSIONS = ("none", "int8", "nf4")


def test_a_sitting_is_finished_before_another_begins(tmp_path: Path) -> None:
    from final import _sitting
    from final_files import finished, live_file, sittings_of

    first = _sitting(tmp_path)
    assert sittings_of(tmp_path) == [first]
    for compression in COMPRESSIONS:
        assert not finished(first)
        assert _sitting(tmp_path) == first  # interrupted, it goes on
        live_file(first, compression).write_text("{}", encoding="utf-8")
    assert finished(first)
    earlier = first.rename(first.with_name("2020-01-01T0000Z"))
    second = _sitting(tmp_path)
    assert sittings_of(tmp_path) == [earlier, second]


def test_the_time_that_is_left_is_shared_as_decoding_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    import final

    plain = {"none": 1.0, "int8": 3.0, "nf4": 2.0}

    class Curve:
        def __init__(self, run: Path) -> None:
            self.plain = (plain[run.name],) * 3

    monkeypatch.setattr(final, "read_run", lambda run: (None, Curve(run)))
    monkeypatch.setattr(final.time, "monotonic", lambda: 100.0)
    args = Namespace(out=Path("out"), curve_seconds=15.0)
    assert final._seconds_for(args, COMPRESSIONS, 100.0 + 3 * 40 + 300) == pytest.approx(50)
    assert final._seconds_for(args, COMPRESSIONS[1:], 100.0 + 2 * 40 + 250) == pytest.approx(150)
    assert final._seconds_for(args, COMPRESSIONS[2:], 100.0) == final.LEAST_LIVE  # recording took it all


def sat(sitting: str, gain: float, compression: str = "none") -> dict[str, Any]:
    return {
        "table": "live",
        "sitting": sitting,
        "policy": "stopping",
        "task": "all",
        "compression": compression,
        "prompts": 96,
        "distinct_4grams": 0.95,
        "gain": gain,
        "gain_low": gain - 0.01,
        "gain_high": gain + 0.01,
        "other_cores": 0.02,
        "steal": 0.001,
    }


def test_one_sitting_shows_its_interval_and_several_their_range() -> None:
    from readme_tables import across

    assert across([]) == ""
    assert across([sat("a", 0.05)]) == "+5.0% [4.0, 6.0]"
    assert across([sat("a", 0.05), sat("b", -0.01), sat("c", 0.07)]) == "+5.0% (-1.0% to +7.0%)"


def test_live_tables_hold_what_the_sittings_decoded() -> None:
    from readme_tables import choosing_live_table

    own = {"table": "replay", "policy": "stopping", "tuned": True, "task": "all", "compression": "none"}
    later = sat("b", 0.15) | {"policy": "two-source", "replayed_gain": 0.14}
    *_, line, empty, sittings = choosing_live_table([own, sat("a", 0.05), sat("b", 0.03), later])
    assert line == "| none | all | 0.95 | +4.0% (+3.0% to +5.0%) |  | +15.0% [14.0, 16.0] | +14.0% |"
    assert not empty
    assert sittings.startswith("Live: a (96 prompts; other processes on 0.02 cores, steal 0.1%); b (96 prompts;")


def test_the_summary_has_a_line_for_each_target() -> None:
    from readme_tables import choosing_summary

    key = {"task": "all", "compression": "int8"}
    own = key | {"table": "replay", "policy": "stopping", "tuned": True, "distinct_4grams": 0.96}
    task = own | {"task": "code"}
    over = [
        ("stopping", "best fixed", 0.05),
        ("two-source", "best fixed", 0.12),
        ("two-source", "best tuned rival", 0.03),
    ]
    spread = [
        key | {"table": "spread", "policy": policy, "over": other, "gain": gain, "gain_low": 0.0, "gain_high": 0.2}
        for policy, other, gain in over
    ]
    fixed = [
        sat("a", 0.0, "int8") | {"policy": "fixed:4", "over": "fixed:4", "ratio_to_plain": ratio}
        for ratio in (1.6, 1.8)
    ]
    live = [row | {"over": "fixed:4"} for row in (sat("a", 0.03, "int8"), sat("b", 0.07, "int8"), sat("b", 0.4))]
    _, _, line = choosing_summary([own, task, *spread, *fixed, *live])
    assert line == (
        "| int8 | 0.96 | 1.70x (1.60x to 1.80x) | +5.0% [0.0, 20.0] | +5.0% (+3.0% to +7.0%) | +12.0% [0.0, 20.0] |  "
        "| +3.0% [0.0, 20.0] |"
    )


def test_live_rows_come_from_finished_sittings_with_the_load_of_the_machine(tmp_path: Path) -> None:
    from common import save
    from figures import live
    from final_files import live_file

    for name, measured in (("2020-01-01T0000Z", COMPRESSIONS), ("2020-01-02T0000Z", COMPRESSIONS[:1])):
        for compression in measured:
            path = live_file(tmp_path / "sittings" / name, compression)
            save(
                path.parent, path.name, [{"policy": "stopping", "compression": compression, "task": "all", "gain": 0.1}]
            )
    rows = live(tmp_path)
    assert [(row["sitting"], row["compression"]) for row in rows] == [("2020-01-01T0000Z", c) for c in COMPRESSIONS]
    assert all(row["split"] == "sealed" and row["gain"] == 0.1 for row in rows)
    assert all({"load_average", "other_cores", "steal"} <= set(row) for row in rows)
