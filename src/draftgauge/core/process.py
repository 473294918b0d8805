"""One process beside others: taking turns, the load of the machine, and SIGTERM.

Of processes that share a file, or threads that share a model, one works at a time. A killed process leaves no lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary

from draftgauge.core.errors import DraftgaugeError

FOLDER_LOCK = ".draftgauge.lock"
POLL_SECONDS = 0.1
_LOCKS: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()  # of models, and of what keeps a state for them
_LOOKING_UP = threading.Lock()
_MINE = threading.local()  # ``inside``: whether this thread is in such a call


@contextmanager
def in_turn(*shared: object) -> Iterator[None]:
    """Be the only call that uses these objects: other threads wait, and what is called from inside is refused."""
    with _LOOKING_UP:
        locks = {id(each): _LOCKS.setdefault(each, threading.Lock()) for each in shared}
    inside = getattr(_MINE, "inside", False)
    with ExitStack() as stack:
        for _, lock in sorted(locks.items()):  # in one order, else two threads could wait for each other
            if not lock.acquire(blocking=not inside):
                raise DraftgaugeError(
                    "the model is decoding, and this call comes from inside a call (a streamer, a criterion or a "
                    "policy): begin it when the other one has ended, or load the model a second time"
                )
            stack.callback(lock.release)
        stack.callback(setattr, _MINE, "inside", inside)
        _MINE.inside = inside or bool(locks)
        yield


@contextmanager
def alone(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("a") as file:
        try_lock(file, wait=True)
        yield


@contextmanager
def only_writer(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Be the only process that writes into a folder, which exists."""
    until = time.monotonic() + patience
    with (folder / FOLDER_LOCK).open("a") as file:  # not "w", which would touch the file
        while not try_lock(file):
            if time.monotonic() >= until:
                raise DraftgaugeError(
                    f"another process is writing into {folder}: wait for it to end, or choose another folder"
                )
            time.sleep(POLL_SECONDS)
        yield


def try_lock(file: IO[Any], wait: bool = False) -> bool:
    """Lock an open file until it is closed; whether that succeeded.

    Raises:
        DraftgaugeError: where files cannot be locked, as in some network folders.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise DraftgaugeError(
            f"{file.name} cannot be locked ({error.strerror}), as in some network folders: choose a folder on a local "
            "disk"
        ) from error
    return True


_STAT = Path("/proc/stat")
BUSY = 0.2  # share of the cores that other processes take, from where on it is said


class _Snapshot(NamedTuple):
    """Seconds of processor time so far: of everything, of what was idle or stolen, and of this process."""

    moment: float
    total: float
    idle: float
    stolen: float
    own: float


_begun: _Snapshot | None = None
_running: list[None] = []  # one for each block; a list, as threads add to it and take from it at once


@contextmanager
def watched_load() -> Iterator[None]:
    """What :func:`machine_load` says is over the outermost of these blocks, also after it."""
    global _begun
    if not _running:
        _begun = _snapshot()
    _running.append(None)
    try:
        yield
    finally:
        _running.pop()


def machine_load() -> dict[str, Any] | None:
    """How busy the machine was with other work, as plain JSON values; None where the system does not say.

    ``load_average`` is that of the last minute. ``steal`` is the share of processor time that the host gave to other
    machines. ``other_cores`` is how many cores were busy with other processes, children that have ended left out. Both
    are over ``seconds``: since the outermost running (or last) verb began, or since the system started.
    """
    now = _snapshot()
    if now is None:
        return None
    before = _begun or _Snapshot(0.0, 0.0, 0.0, 0.0, 0.0)
    total, stolen = now.total - before.total, now.stolen - before.stolen
    seconds = max(1e-9, now.moment - before.moment if _begun else total / (os.cpu_count() or 1))
    others = total - (now.idle - before.idle) - stolen - (now.own - before.own)
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "cores": len(os.sched_getaffinity(0)),
        "steal": round(stolen / total, 4) if total > 0 else 0.0,
        "other_cores": round(max(0.0, others) / seconds, 2),
        "seconds": round(seconds, 1),
    }


def describe_load(load: Mapping[str, Any] | None) -> str:
    """One line for people; empty where nothing is known."""
    if load is None:
        return ""
    quiet = load["other_cores"] < 0.1 and load["steal"] < 0.01
    return (
        f"Machine while this ran: load average {load['load_average']:.1f} on {load['cores']} cores, "
        f"{load['other_cores']:.1f} cores busy with other processes, "
        f"{load['steal']:.1%} of the time stolen{'.' if quiet else ': the speeds are those of a busy machine.'}"
    )


def busy_note(load: Mapping[str, Any] | None, threads: int | None = None) -> str:
    """Says how much longer ``threads`` threads (by default one a core) take beside the load of the last minute; empty
    on a quiet machine."""
    if load is None or load["other_cores"] < BUSY * load["cores"]:
        return ""
    longer = max(1.0, load["load_average"] / load["cores"] + min(1.0, (threads or load["cores"]) / load["cores"]))
    return (
        f"The machine is busy: other processes take {load['other_cores']:.1f} of {load['cores']} cores. The times are "
        f"those of a quiet machine: expect up to {longer:.1f} times as long."
    )


def _snapshot() -> _Snapshot | None:
    try:
        fields = _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:  # not Linux
        return None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, iowait, irq, softirq, steal = (int(value) / tick for value in fields[:8])
    total = user + nice + system + idle + iowait + irq + softirq + steal
    return _Snapshot(time.monotonic(), total, idle + iowait, steal, sum(os.times()[:4]))


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, unless the program handles it itself or this is not its main thread."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
