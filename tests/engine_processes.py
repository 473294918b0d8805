"""Servers of llama.cpp and of vLLM, started for tests and benchmarks; skipped with the reason where there are none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftgauge.serving.endpoint import ServerError, fetch_text
from gguf_files import need_program

START_SECONDS = 400.0
SOURCE = Path(__file__).parents[1] / "src"


def need_vllm() -> str:
    """The Python of the environment that vLLM is installed in."""
    python = os.environ.get("DRAFTGAUGE_VLLM_PYTHON", "")
    if not (python and Path(python).is_file()):
        pytest.skip("needs an environment with vLLM (DRAFTGAUGE_VLLM_PYTHON): make test-engines")
    done = subprocess.run([python, "-c", "import vllm"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"vLLM at {python} cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    return python


@contextmanager
def llama_server(target: Path, *options: str) -> Iterator[str]:
    """llama.cpp's server of a file, with float32 keys and values; yields its address."""
    exact = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", "--no-repack")
    common = ("--metrics", "--parallel", "1", "--ctx-size", "2048", "--threads", str(os.cpu_count()))
    port = free_port()
    address = ("--host", "127.0.0.1", "--port", str(port))
    command = [need_program("llama-server"), "--model", str(target), *exact, *common, *address, *options]
    with running(command, port, "/health"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def vllm_server(target: Path, *options: str) -> Iterator[str]:
    """vLLM's server of a folder in float32; yields its address."""
    port = free_port()
    fixed = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager")
    address = ("--host", "127.0.0.1", "--port", str(port))
    program = [need_vllm(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)]
    with running([*program, *fixed, *address, *options], port, "/health"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(command: Sequence[str], port: int, path: str) -> Iterator[None]:
    """A server that has begun to answer; ended when the context is left."""
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": str(SOURCE),
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output)
        try:
            _wait(process, port, path, output)
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, path: str, output: object) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            fetch_text(f"http://127.0.0.1:{port}", path, 2.0)
        except ServerError:
            time.sleep(0.5)
        else:
            return
    output.seek(0)  # type: ignore[attr-defined]
    sys.stderr.write(output.read()[-8000:])  # type: ignore[attr-defined]
    raise AssertionError(f"the server did not start (exit code {process.poll()})")


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
