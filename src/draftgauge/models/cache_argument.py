"""What transformers calls the cache that a model's ``forward`` takes."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from transformers import Cache, PreTrainedModel


def cache_argument(module: PreTrainedModel, cache: Cache | None) -> dict[str, Any]:
    """A cache as an argument of the module's ``forward``: ``cache`` from transformers 5.24 on, ``past_key_values`` before.

    Later releases still take the old name, and warn.
    """
    return {_name(type(module)): cache}


@functools.cache
def _name(model: type[PreTrainedModel]) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
