"""Random generators that are passed in, each from one seed and a path of labels."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def derive_seed(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive_seed(seed, "sampling", prompt.index)``.

    The same seed and labels give the same number on every machine and version; different labels give unrelated ones.
    """
    key = json.dumps([int(seed), *labels]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose, see :func:`derive_seed`."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *labels)))
