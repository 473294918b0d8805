"""Ways in which a file comes to differ from what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Mutation = Callable[[np.random.Generator, bytes], bytes]


def flip_bit(rng: np.random.Generator, content: bytes) -> bytes:
    at = int(rng.integers(len(content)))
    return content[:at] + bytes([content[at] ^ 1 << int(rng.integers(8))]) + content[at + 1 :]


def truncate(rng: np.random.Generator, content: bytes) -> bytes:
    return content[: int(rng.integers(len(content)))]


def zero_block(rng: np.random.Generator, content: bytes) -> bytes:
    """As a file system leaves what was never flushed."""
    start = int(rng.integers(len(content)))
    length = min(512, len(content) - start)
    return content[:start] + bytes(length) + content[start + length :]


def double_block(rng: np.random.Generator, content: bytes) -> bytes:
    start, end = sorted(rng.integers(0, len(content), 2).tolist())
    return content[:end] + content[start:end] + content[end:]


def lose_key(rng: np.random.Generator, content: bytes) -> bytes:
    """A key of a JSON object, at any depth; of other files nothing."""
    return _in_json(rng, content, lambda owner, key: owner.pop(key))


def change_value(rng: np.random.Generator, content: bytes) -> bytes:
    values = (None, -1, 0.5, 1e308, float("nan"), float("inf"), True, "x", [], {}, 10**400, [[[[]]]])
    chosen = values[int(rng.integers(len(values)))]

    def change(owner: Any, key: Any) -> None:
        owner[key] = chosen

    return _in_json(rng, content, change)


def nest(rng: np.random.Generator, content: bytes) -> bytes:
    return b"[" * 100_000


def _in_json(rng: np.random.Generator, content: bytes, change: Callable[[Any, Any], Any]) -> bytes:
    try:
        document = json.loads(content)
    except ValueError:
        return flip_bit(rng, content)
    places: list[tuple[Any, Any]] = []
    level = [document]
    while level:
        owner = level.pop()
        if isinstance(owner, dict | list):
            keys = list(owner) if isinstance(owner, dict) else range(len(owner))
            places += [(owner, key) for key in keys]
            level += [owner[key] for key in keys]
    change(*places[int(rng.integers(len(places)))])
    return json.dumps(document).encode()


MUTATIONS: tuple[Mutation, ...] = (flip_bit, truncate, zero_block, double_block, lose_key, change_value, nest)
