"""Memory of weights that were read and are not needed in that form any more, on Linux."""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import suppress
from pathlib import Path

from torch import Tensor

WORTH = 1 << 16  # bytes: of smaller tensors the pages stay
DONTNEED = 4  # MADV_DONTNEED of Linux


def forget(weight: Tensor) -> None:
    """Let go of the memory in which a mapped checkpoint was read; what is needed again is read from the file again.

    Only for weights that nothing has written to. Nothing happens to a tensor that is no part of a mapped file.
    """
    if weight.device.type != "cpu" or weight.nbytes < WORTH:
        return
    page = mmap.PAGESIZE
    begin, end = -(-weight.data_ptr() // page) * page, (weight.data_ptr() + weight.nbytes) // page * page
    with suppress(OSError, AttributeError, ValueError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, *_, name = line.split(maxsplit=5)
            first, last = (int(address, 16) for address in place.split("-"))
            if first <= begin and end <= last and name.endswith(".safetensors"):
                ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), DONTNEED)


def release_freed() -> None:
    """Give memory that was freed in pieces back to the system, where the C library can."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
