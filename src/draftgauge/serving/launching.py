"""Starting a server on this machine, and ending it whatever happens."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import IO

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.endpoint import ServerError, fetch_text
from draftgauge.serving.engines import PLAIN, Deployment, Engine, setting_length

START_SECONDS = 400.0
END_SECONDS = 30.0
DRAFT = "draft"  # in place of a setting: the draft model served by itself
SYNTHETIC = "--spec-synth-rates"  # of llama.cpp: drafts are accepted by coin
_SHOWN = 1000
# What draftgauge sets for libllama beside torch (engines/gguf_library.py); a server's threads would sleep between sums.
OWN = ("OMP_WAIT_POLICY",)


def llama_program() -> list[str]:
    """The command of llama.cpp's server: the program on the path, else the one inside the wheel xllamacpp."""
    if program := shutil.which("llama-server"):
        return [program]
    if find_spec("xllamacpp") is None:
        named = "put it on the path, name its command with --program"
        raise DraftgaugeError(f"there is no llama-server: {named}, or pip install 'draftgauge[gguf]'")
    return [sys.executable, "-m", "draftgauge.serving.llama_in_wheel"]


def vllm_program() -> list[str]:
    """The vLLM that is installed beside draftgauge, whose own command may be missing or fail; else the command."""
    beside = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    return beside if find_spec("vllm") else ["vllm", "serve"]


@cache
def _help(*program: str) -> str:
    return subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=START_SECONDS).stdout


@contextmanager
def started(
    engine: Engine,
    setting: str,
    served: Deployment,
    at_once: int,
    room: int,
    program: str | None = None,
    synthetic: bool = False,
) -> Iterator[str]:
    """A server at a setting, with the flags that advice would give; yields its address.

    Args:
        at_once: requests that it decodes together.
        room: tokens of the prompt and the answer of each.
        program: the command that starts it, with options of one's own.
        synthetic: accept half of the drafts by coin where llama.cpp's server can, so that steps do not hang on text.
    """
    if setting == DRAFT:
        setting, served = PLAIN, replace(served, target=served.draft)
    words, own = shlex.split(engine.flags(setting, served)), shlex.split(program or "")
    if engine.name == "llama-server":
        own = own or llama_program()
        words = [*own, *words[1:], "--metrics"]
        if synthetic and (length := setting_length(setting)) and SYNTHETIC in _help(*own):
            words += [SYNTHETIC, ",".join(["0.5"] * length)]
        words += ["--parallel", str(at_once), "--ctx-size", str(at_once * room)]
    else:
        words = [*(own or vllm_program()), *words[2:], "--max-num-seqs", str(at_once), "--enable-per-request-metrics"]
        words += ["--per-request-spec-decode-metrics", "summary"] if "--speculative-config" in words else []
    with launched(words) as url:
        yield url


@contextmanager
def launched(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server with ``--host`` and ``--port`` added to its command, wait until it answers, and end it afterwards.

    ``variables`` are of the environment, beside this process's but for how OpenMP's threads wait. Yields its address.

    Raises:
        DraftgaugeError: if it cannot be started, or does not answer in time; with the end of what it printed.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])  # that nothing listens on
    url = f"http://127.0.0.1:{port}"
    words = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        try:
            environment = {name: value for name, value in os.environ.items() if name not in OWN} | dict(variables or {})
            process = subprocess.Popen(words, env=environment, stdout=printed, stderr=printed, process_group=0)
        except OSError as error:
            raise DraftgaugeError(f"cannot start {command[0]} ({error.strerror}): name it with --program") from error
        try:
            _wait(process, url, printed)
            yield url
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], url: str, printed: IO[str]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            fetch_text(url, "/health", seconds=2.0)
        except ServerError:
            time.sleep(0.2)
        else:
            return
    printed.seek(0)
    said = " ".join(printed.read()[-_SHOWN:].split())
    ended = "does not answer" if process.poll() is None else f"ended with code {process.poll()}"
    raise DraftgaugeError(f"the server {ended}: {said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a server end by itself; it and the processes that it started are killed if it does not, or leaves some."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    finally:  # Ctrl-C again, while it is waited for
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
