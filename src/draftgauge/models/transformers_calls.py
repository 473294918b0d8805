"""How transformers and PyTorch are called: the cache argument's name, attention kernels, no bars or hints."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Cache, PreTrainedModel
from transformers.utils import logging as transformers_logging


def cache_argument(module: PreTrainedModel, cache: Cache | None) -> dict[str, Any]:
    """A cache as an argument of a module's ``forward``: ``cache`` from transformers 5.24 on, else ``past_key_values``.

    Later releases still take the old name, and warn.
    """
    return {_cache_name(type(module).forward): cache}


@functools.cache
def _cache_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU every kernel but cuDNN's, which plans anew for every exact shape: tens of milliseconds a length."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


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
def no_hints(of: str = "generation") -> Iterator[None]:
    """Silence hints that the caller cannot act on, by default on arguments of ``generate()``; errors are logged."""
    logger = logging.getLogger(f"transformers.{of}")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
