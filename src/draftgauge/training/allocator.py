"""Keep freed memory instead of returning it: else half of a CPU training's time goes to page faults."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Tell glibc's allocator to reuse large blocks; measured here as 8,400 against 6,000 tokens/s. True if it took
    effect.

    Elsewhere than on Linux with glibc nothing happens. The process keeps its peak memory until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 256 * 1024 * 1024))
    return all(mallopt(option, value) == 1 for option, value in settings)
