"""Start one process a device on this machine, listen to them, and end them together."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from draftgauge.core.children import deaf_to_interrupts
from draftgauge.core.errors import DraftgaugeError

GRACE = 2.0  # seconds after a failure in which another process may still say what caused it
RESULT, REFUSED, DIED, FAILED = "result", "refused", "died", "failed"

Send = Callable[[str, tuple[Any, ...]], None]


def launch(size: int, work: Callable[..., Any], arguments: tuple[Any, ...], receive: Send) -> Any:
    """Run ``work(send, *arguments)`` in ``size`` new processes, which find each other by torchrun's variables.

    Args:
        size: number of processes.
        work: a function of a module; what it is given and returns is pickled.
        arguments: of it.
        receive: called with what any process sends.

    Returns:
        What the first process returned.

    Raises:
        DraftgaugeError: raised in one of them, or one of them was killed. All are ended then.
        RuntimeError: any other error, with its trace.
    """
    context = get_context("spawn")
    port = _free_port()
    processes: list[BaseProcess] = []
    ends: dict[Connection, int] = {}
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            variables: dict[str, int | str] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            process = context.Process(target=_run, args=(theirs, variables, work, arguments), daemon=True)
            with deaf_to_interrupts():
                process.start()
            theirs.close()
            processes.append(process)
            ends[ours] = rank
        results, failures = _listen(ends, receive)
    finally:
        for started in processes:
            started.kill()
            started.join()
    for kind in (REFUSED, DIED, FAILED):
        for rank, (failure, message) in sorted(failures.items()):
            if failure == kind:
                raise RuntimeError(f"process {rank}: {message}") if kind == FAILED else DraftgaugeError(message)
    return results[0]


def _listen(ends: dict[Connection, int], receive: Send) -> tuple[dict[int, Any], dict[int, tuple[str, str]]]:
    """Results and failures by rank, until all processes have ended or one has failed."""
    results: dict[int, Any] = {}
    failures: dict[int, tuple[str, str]] = {}
    deadline: float | None = None
    while ends and (deadline is None or time.monotonic() < deadline):
        for end in wait(list(ends), None if deadline is None else max(0.0, deadline - time.monotonic())):
            assert isinstance(end, Connection)
            rank = ends[end]
            try:
                kind, content = end.recv()
            except EOFError:
                del ends[end]
                if rank not in results and rank not in failures:
                    failures[rank] = DIED, _death(rank)
                continue
            if kind == RESULT:
                results[rank] = content
            elif kind in (REFUSED, FAILED):
                failures[rank] = kind, content
            else:
                receive(kind, content)
        if failures and deadline is None:
            deadline = time.monotonic() + GRACE
    return results, failures


def _death(rank: int) -> str:
    return (
        f"the process of device {rank} was killed, perhaps for want of memory: ask for more accumulation or fewer "
        "devices, and run the same command again to go on"
    )


def _run(end: Connection, variables: Mapping[str, Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The life of one process."""
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        end.send((RESULT, work(lambda kind, content: end.send((kind, content)), *arguments)))
    except DraftgaugeError as error:
        end.send((REFUSED, str(error)))
    except Exception:
        end.send((FAILED, traceback.format_exc()))


def _end_with(sentinel: int) -> None:
    """End this process as soon as another one ends, lest it be left behind and meet the next run."""
    wait([sentinel])
    os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
