"""Processes of this one: Ctrl-C neither speaks through them nor waits for them."""

from __future__ import annotations

import signal
import time
from multiprocessing import active_children

import pytest

from draftgauge.core.children import deaf_to_interrupts, process_pool


def interrupted_pool() -> None:
    with process_pool(1) as pool:
        with deaf_to_interrupts():
            told = pool.submit(signal.getsignal, signal.SIGINT)
            pool.submit(time.sleep, 60)
        assert told.result() == signal.SIG_IGN
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_workers_at_once() -> None:
    before, started = signal.getsignal(signal.SIGINT), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted_pool()
    assert time.monotonic() - started < 50
    assert not active_children()
    assert signal.getsignal(signal.SIGINT) == before
