"""What the processes of tests do; nothing heavy is imported."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from draftgauge.core.errors import DraftgaugeError


def tell(send: Callable[[str, tuple[Any, ...]], None], word: str) -> str:
    """Say which process this is, and return it."""
    found = f"{word} {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    send("said", (found,))
    return found


def fail(send: Callable[[str, tuple[Any, ...]], None], how: str) -> None:
    """The second process fails; the first one would wait for ever, or fails for want of it."""
    if os.environ["RANK"] == "0":
        send("first", (os.getpid(),))
        if how == "killed":
            time.sleep(0.3)
            raise RuntimeError("connection closed by peer")
        time.sleep(600)
    if how == "refused":
        raise DraftgaugeError("lower the learning rate")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError("a bug")
