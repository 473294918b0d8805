"""Starting a server on this machine, and ending it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.endpoint import ServerError, fetch_text

LONG, ENGINES = (  # what `make test` leaves out, as a shorter test of its kind stays
    pytest.mark.skipif(os.environ.get(f"DRAFTGAUGE_{name.upper()}") != "whole", reason=f"takes long: make test-{name}")
    for name in ("faults", "engines")
)
START_SECONDS = 400.0
END_SECONDS = 30.0
_SHOWN = 2000
# What draftgauge sets for libllama beside torch (engines/gguf_library.py); a server's threads would sleep between sums.
OWN = ("OMP_WAIT_POLICY",)


@contextmanager
def ray_cluster(cpus: int) -> Iterator[Any]:
    """A local Ray cluster; the test is skipped without Ray, and where the machine is too busy for its time limit."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    try:
        ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises no type of its own
        ray.shutdown()
        if "timed out during startup" not in str(error):
            raise
        pytest.skip("Ray did not start within the 30 s that it gives itself: the machine is busy")
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def launched(
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    health: str = "/health",
    seconds: float = START_SECONDS,
) -> Iterator[str]:
    """Start a server with ``--host`` and ``--port`` added to its command, wait until it answers, and end it afterwards.

    Args:
        command: as both llama-server and vLLM's are.
        variables: of the environment, beside this process's but for how OpenMP's threads wait.
        health: a path that it answers once it is ready.
        seconds: to wait for that.

    Yields:
        Its address.

    Raises:
        DraftgaugeError: if it cannot be started, or does not answer in time; with the end of what it printed.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        try:
            environment = {name: value for name, value in os.environ.items() if name not in OWN} | dict(variables or {})
            process = subprocess.Popen(words, env=environment, stdout=printed, stderr=printed, process_group=0)
        except OSError as error:
            raise DraftgaugeError(f"cannot start {command[0]}: {error.strerror}") from error
        try:
            _wait(process, url, health, seconds, printed)
            yield url
        finally:
            _end(process)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, health: str, seconds: float, printed: IO[str]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            fetch_text(url, health, seconds=2.0)
        except ServerError:
            time.sleep(0.2)
        else:
            return
    printed.seek(0)
    said = printed.read()[-_SHOWN:]
    ended = "does not answer" if process.poll() is None else f"ended with code {process.poll()}"
    raise DraftgaugeError(f"the server {ended}: {said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a server end by itself; it and the processes that it started are killed if it does not, or leaves some."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
