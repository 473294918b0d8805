"""How busy the machine was while something ran: what a speed measured then is worth."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSY = 0.05  # of a core over the run, from which on a process counts as busy
_PROC = Path("/proc")


@dataclass(frozen=True)
class _Snapshot:
    """Seconds of processor time so far: of everything, of what was stolen, and of each process."""

    moment: float
    total: float
    idle: float
    stolen: float
    processes: Mapping[int, float]


_begun: _Snapshot | None = None
_depth = 0


@contextmanager
def watched_load() -> Iterator[None]:
    """What :func:`machine_load` says is over the outermost of these blocks, also after it."""
    global _begun, _depth
    if _depth == 0:
        _begun = _snapshot()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def machine_load() -> dict[str, Any] | None:
    """How busy the machine was with other work during the run, as plain JSON values; None where the system does not
    say.

    ``load_average`` is that of the last minute, ``steal`` the share of processor time that the host gave to other
    machines, ``other_cores`` how many cores were busy with other processes, ``other_processes`` how many of those took
    at least 5% of a core, and ``seconds`` the time that the latter three are over: since the outermost running (or
    last) verb began, or since the system started.
    """
    now = _snapshot()
    if now is None:
        return None
    before = _begun or _Snapshot(0.0, 0.0, 0.0, 0.0, {})
    total = now.total - before.total
    cores = len(os.sched_getaffinity(0))
    seconds = now.moment - before.moment if _begun else total / max(1, os.cpu_count() or 1)
    own = _family()
    spent = {pid: value - before.processes.get(pid, 0.0) for pid, value in now.processes.items()}
    ours = sum(value for pid, value in spent.items() if pid in own)
    busy = total - (now.idle - before.idle) - (now.stolen - before.stolen)
    others = [value for pid, value in spent.items() if pid not in own and value >= BUSY * max(seconds, 1e-9)]
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "cores": cores,
        "steal": round((now.stolen - before.stolen) / total, 4) if total > 0 else 0.0,
        "other_cores": round(max(0.0, busy - ours) / max(seconds, 1e-9), 2),
        "other_processes": len(others),
        "seconds": round(seconds, 1),
    }


def describe_load(load: Mapping[str, Any] | None) -> str:
    """One line for people; empty where nothing is known."""
    if load is None:
        return ""
    quiet = load["other_cores"] < 0.1 and load["steal"] < 0.01
    return (
        f"Machine while this ran: load average {load['load_average']:.1f} on {load['cores']} cores, "
        f"{load['other_cores']:.1f} cores busy with {load['other_processes']} other processes, "
        f"{load['steal']:.1%} of the time stolen{'.' if quiet else ': the speeds are those of a busy machine.'}"
    )


def _snapshot() -> _Snapshot | None:
    """None where there is no ``/proc``."""
    try:
        fields = (_PROC / "stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, iowait, irq, softirq, steal = (int(value) / tick for value in fields[:8])
    total = user + nice + system + idle + iowait + irq + softirq + steal
    return _Snapshot(time.monotonic(), total, idle + iowait, steal, dict(_processes(tick)))


def _processes(tick: int) -> Iterator[tuple[int, float]]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _status(entry)) is not None:
            yield int(entry.name), (int(fields[11]) + int(fields[12])) / tick


def _family() -> set[int]:
    """This process and what it started."""
    parents = {
        int(entry.name): int(fields[1])
        for entry in _PROC.iterdir()
        if entry.name.isdigit() and (fields := _status(entry)) is not None
    }
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _status(process: Path) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` behind the name, which may hold blanks; None for a process that has ended."""
    try:
        return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
