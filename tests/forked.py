"""Processes that are forked from this one, which has the libraries already: importing them takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch


def fork(said: Path, act: Callable[..., int | None], *arguments: object) -> BaseProcess:
    """A process that does this with the arguments, and writes into a file what it says."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(said, act, arguments), name=str(said))
    process.start()
    return process


def _run(said: Path, act: Callable[..., int | None], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)  # threads of the process that forked are not here
    descriptor = os.open(said, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for stream, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(descriptor, number)
        setattr(sys, stream, os.fdopen(number, "w", buffering=1, closefd=False))  # pytest has others
    sys.exit(act(*arguments))


def ended(process: BaseProcess) -> str:
    """What it had said when it ended."""
    process.join(300)
    assert process.exitcode is not None, "it hangs"
    return Path(process.name).read_text()
