"""What transformers says while draftgauge uses it, kept off where it tells a user nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def no_bars() -> Iterator[None]:
    """No progress bars of transformers."""
    if not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


@contextmanager
def no_hints() -> Iterator[None]:
    """Silence hints on the arguments of ``generate()``, which its caller cannot act on; errors are still logged."""
    logger = logging.getLogger("transformers.generation")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
