"""What transformers calls the cache that a model's ``forward`` takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from transformers import Cache, PreTrainedModel


def cache_argument(module: PreTrainedModel, cache: Cache | None) -> dict[str, Any]:
    """A cache as an argument of a module's ``forward``: ``cache`` from transformers 5.24 on, else ``past_key_values``.

    Later releases still take the old name, and warn.
    """
    return {_name(type(module).forward): cache}


@functools.cache
def _name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
