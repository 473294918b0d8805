"""Processes that this one starts: Ctrl-C is for this one, which ends them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context


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


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """New processes for jobs submitted inside :func:`deaf_to_interrupts`; an error or Ctrl-C kills them at once."""
    others = set(active_children())
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(active_children()) - others:
                child.kill()
            raise
