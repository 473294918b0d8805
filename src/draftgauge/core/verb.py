"""What makes a function of a request a verb of the Python API, and what is so while one runs.

Of threads that share a model one works at a time, SIGTERM interrupts, and the load of the machine is watched.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from draftgauge.core.config import leading_settings, make_request, settings_of
from draftgauge.core.errors import DraftgaugeError, is_out_of_memory, missing_library
from draftgauge.core.files import cache_folder
from draftgauge.core.progress import python_bars
from draftgauge.core.prompts import write_prompts
from draftgauge.core.table import Rows

PYTHON_CALL: ContextVar[str] = ContextVar("python_call")  # of the verb that runs

Result = TypeVar("Result")
_MEMORY_ADVICE = "ask for shorter texts, a smaller model, a stronger compression or another device"


class Verb(Protocol):
    @overload
    def __call__(self, function: Callable[..., list[dict[str, Any]]]) -> Callable[..., Rows]: ...
    @overload
    def __call__(self, function: Callable[..., Result]) -> Callable[..., Result]: ...


def verb(request_class: type, loaded: type | None = None) -> Verb:
    """Let a function that takes a request also take the request's settings, by position and by keyword.

    ``profile(ProfileRequest(out=Path("runs/x")))`` and ``profile(out="runs/x")`` are the same, and ``prompts`` may be a
    list of texts, or of dicts with the keys of a prompt file. The function's own further parameters are keyword-only
    (``progress``, bars if left out). A list of dicts is returned as
    :class:`~draftgauge.core.table.Rows`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function).parameters
        own = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            further = {name: keywords.pop(name) for name in own if name in keywords}
            if "progress" in own and "progress" not in further:
                further["progress"] = python_bars()
            if isinstance(keywords.get("prompts"), list | tuple):
                keywords["prompts"] = write_prompts(keywords["prompts"], cache_folder() / "prompts")
            if loaded is not None and arguments and isinstance(arguments[0], loaded):
                further["pair"], *arguments = arguments  # type: ignore[assignment]
            whole = len(arguments) == 1 and not keywords and isinstance(arguments[0], request_class)
            name = f"{function.__name__}()"
            request = arguments[0] if whole else make_request(request_class, arguments, keywords, call=name)
            pair = further.get("pair")
            with sigterm_interrupts(), in_turn(*(() if pair is None else pair.models)), watched_load():
                given = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
                spelled = PYTHON_CALL.get("") or f"draftgauge.{function.__name__}({', '.join(given)})"
                outer = PYTHON_CALL.set(spelled)
                try:
                    result = function(request, **further)
                except ModuleNotFoundError as error:
                    raise missing_library(error.name) or error from error
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
                    raise DraftgaugeError(f"memory ran out ({said}): {_MEMORY_ADVICE}") from error
                finally:
                    PYTHON_CALL.reset(outer)
            return Rows(result) if isinstance(result, list) else result

        call.__signature__ = _signature(request_class, [parameters[name] for name in own])  # type: ignore[attr-defined]
        call.__doc__ = _documented(inspect.getdoc(function) or "", request_class)
        return call

    return decorate


def _documented(text: str, request_class: type) -> str:
    """The docstring with every setting of the request in place of ``request``."""
    settings = "".join(f"    {entry.name}: {entry.help}\n" for entry in settings_of(request_class) if not entry.hidden)
    if "\nArgs:\n" not in text:
        place = re.search(r"\n(?=(?:Returns|Raises):\n)", text)
        cut = place.start() if place else len(text)
        text = f"{text[:cut].rstrip()}\n\nArgs:\n{text[cut:]}" if place else f"{text}\n\nArgs:\n"
    head, _, rest = text.partition("\nArgs:\n")
    rest = re.sub(r"\A    (?:request|spec): .*\n?(?:        .*\n?)*", "", rest)
    return f"{head}\nArgs:\n{settings}{rest}"


def _signature(request_class: type, own: list[inspect.Parameter]) -> inspect.Signature:
    """What ``help()`` and ``__init__.pyi`` show: the settings and their defaults."""
    empty = inspect.Parameter.empty
    leading = leading_settings(request_class)
    flat = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if entry in leading else inspect.Parameter.KEYWORD_ONLY,
            default=empty if entry.default is MISSING else entry.default,
            annotation=entry.annotation,
        )
        for entry in settings_of(request_class)
        if not entry.hidden
    ]
    return inspect.Signature([*flat, *own])


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
