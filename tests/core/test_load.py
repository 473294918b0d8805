"""What is said of a machine's load: of made-up counters to the digit, of the real ones that they are possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftgauge.core import load
from draftgauge.core.load import describe_load, machine_load, watched_load

TICK = os.sysconf("SC_CLK_TCK")


def test_other_work_and_stolen_time_are_told_from_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, now, own = tmp_path / "stat", [100.0], [10.0]
    monkeypatch.setattr(load, "_STAT", stat)
    monkeypatch.setattr(load.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(load.os, "times", lambda: (own[0], 0.0, 0.0, 0.0, 0.0))

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
