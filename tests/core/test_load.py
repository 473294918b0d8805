"""What is said of a machine's load: of made-up counters to the digit, of the real ones that they are possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftgauge.core import verb
from draftgauge.core.verb import busy_note, describe_load, machine_load, watched_load

TICK = os.sysconf("SC_CLK_TCK")


def test_other_work_and_stolen_time_are_told_from_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, now, own = tmp_path / "stat", [100.0], [10.0]
    monkeypatch.setattr(verb, "_STAT", stat)
    monkeypatch.setattr(verb.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(verb.os, "times", lambda: (own[0], 0.0, 0.0, 0.0, 0.0))

    def spent(user: int, idle: int, steal: int) -> None:
        stat.write_text(f"cpu {user * TICK} 0 0 {idle * TICK} 0 0 0 {steal * TICK}\n")

    spent(50, 50, 0)
    with watched_load():
        # In 10 s on two cores: 10 s of ours, 5 s of others, 3 s stolen, 2 s idle.
        now[0], own[0] = 110.0, 20.0
        spent(65, 52, 3)
        with watched_load():  # an inner run begins no new time
            found = machine_load()
    assert found is not None
    assert (found["steal"], found["other_cores"], found["seconds"]) == (0.15, 0.5, 10.0)
    assert "0.5 cores busy with other processes, 15.0% of the time stolen" in describe_load(found)


def test_a_plan_on_a_busy_machine_says_how_much_longer_it_takes() -> None:
    """Six others that want two cores: a thread gets two sevenths of one, two threads a quarter of both."""
    busy = {"other_cores": 1.9, "cores": 2, "load_average": 6.0}
    assert "other processes take 1.9 of 2 cores" in busy_note(busy)
    assert busy_note(busy).endswith("expect up to 4.0 times as long.")
    assert busy_note(busy, threads=1).endswith("expect up to 3.5 times as long.")
    assert busy_note(busy | {"load_average": 0.4}, threads=1).endswith("expect up to 1.0 times as long.")
    assert busy_note(busy | {"other_cores": 0.3}) == busy_note(None) == ""
