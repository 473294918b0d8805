"""What is said of a machine's load: of made-up counters to the digit, of the real ones that they are possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftgauge.core import load
from draftgauge.core.load import describe_load, machine_load, watched_load
from draftgauge.core.provenance import environment

TICK = os.sysconf("SC_CLK_TCK")


def write_proc(folder: Path, cpu: dict[str, float], processes: dict[int, tuple[int, float]]) -> None:
    """Counters in seconds: of all processors, and parent and time of each process."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text("cpu " + " ".join(str(round(cpu.get(name, 0) * TICK)) for name in names) + "\n")
    for pid, (parent, seconds) in processes.items():
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = ["R", str(parent), *["0"] * 9, str(round(seconds * TICK)), "0", "0"]
        (folder / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)}")


def test_other_work_and_stolen_time_are_told_from_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc, own = tmp_path / "proc", os.getpid()
    monkeypatch.setattr(load, "_PROC", proc)
    now = [100.0]
    monkeypatch.setattr(load.time, "monotonic", lambda: now[0])
    write_proc(proc, {"user": 50, "idle": 50}, {1: (0, 5.0), own: (1, 10.0), 7: (1, 20.0), 8: (1, 1.0)})
    with watched_load():
        now[0] = 110.0
        # In 10 s on two cores: 8 s of ours, 2 s of a child of ours, 5 s of process 7, 3 s stolen, 2 s idle.
        after = {1: (0, 5.0), own: (1, 18.0), 7: (1, 25.0), 8: (1, 1.1), 99: (own, 2.0)}
        write_proc(proc, {"user": 65, "idle": 52, "steal": 3}, after)
        with watched_load():  # an inner run begins no new time
            found = machine_load()
    assert found is not None
    assert found["steal"] == 0.15
    assert found["other_cores"] == 0.5
    assert found["other_processes"] == 1
    assert found["seconds"] == 10.0
    assert "0.5 cores busy with 1 other processes, 15.0% of the time stolen" in describe_load(found)


def test_where_the_system_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_PROC", tmp_path)
    assert machine_load() is None
    assert describe_load(None) == ""


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")
def test_the_load_is_part_of_the_provenance() -> None:
    with watched_load():
        found = environment()["load"]
    assert found is not None
    assert 0 <= found["steal"] <= 1
    assert found["other_cores"] >= 0
    assert found["cores"] >= 1
