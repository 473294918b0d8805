"""Servers of llama.cpp and of vLLM for tests, skipped with the reason where there are none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.launching import launched, llama_program

SOURCE = Path(__file__).parents[1] / "src"
QUIET = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "PYTHONPATH": str(SOURCE)}


def need_llama_server() -> list[str]:
    """The command of llama.cpp's server."""
    try:
        return llama_program()
    except DraftgaugeError as error:
        pytest.skip(str(error))


def need_vllm() -> str:
    """The Python of the environment that vLLM is installed in."""
    python = os.environ.get("DRAFTGAUGE_VLLM_PYTHON", "")
    if not (python and Path(python).is_file()):
        pytest.skip("needs an environment with vLLM (DRAFTGAUGE_VLLM_PYTHON): make test-engines")
    looked = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('vllm'))"], capture_output=True
    )
    if looked.returncode or looked.stdout.strip() == b"None":
        pytest.skip(f"there is no vLLM at {python}: make test-engines")
    return python


@contextmanager
def llama_server(target: Path, *options: str) -> Iterator[str]:
    """llama.cpp's server of a file, with float32 keys and values; yields its address."""
    exact = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", "--no-repack")
    common = ("--metrics", "--parallel", "1", "--ctx-size", "2048", "--threads", "1")
    command = [*need_llama_server(), "--model", str(target), *exact, *common, *options]
    with launched(command) as url:
        yield url


@contextmanager
def vllm_server(target: Path, *options: str) -> Iterator[str]:
    """vLLM's server of a folder in float32; yields its address."""
    fixed = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager")
    python = Path(need_vllm())
    program = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)]
    threads = python.parents[1] / "lib" / "libiomp5.so"  # vLLM asks for it on CPUs where it speculates
    preloaded = {"LD_PRELOAD": str(threads), "KMP_BLOCKTIME": "1"} if threads.is_file() else {}
    with launched([*program, *fixed, *options], QUIET | preloaded) as url:
        yield url
