"""Processes that this one starts: Ctrl-C is for this one, which ends them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started in here ignore Ctrl-C, from their first moment on: a terminal sends it to all of a group."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set what a signal does
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
