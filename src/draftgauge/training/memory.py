"""How much memory a training takes, and freed memory kept: else half of a CPU training is page faults."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Of glibc's mallopt: trimmed from, padding, blocks with memory of their own from which size and how many; while a
# training runs and afterwards, as glibc adapts them where large blocks come and go. They cannot be read.
_OPTIONS = {-1: (2**31 - 1, 2**26), -2: (2**28, 2**17), -3: (2**25, 2**25), -4: (0, 2**16)}


def peak_memory_gib(device: torch.device) -> float:
    """Most memory in use so far, of the GPU or else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit / 2**30


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """Have glibc, where it is, keep large blocks while a CPU trains (8,400 tokens/s, not 6,000)."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None) if device.type == "cpu" else None
    options = {} if mallopt is None else _OPTIONS
    for option, (kept, _) in options.items():
        mallopt(option, kept)
    try:
        yield
    finally:
        for option, (_, usual) in options.items():
            mallopt(option, usual)
