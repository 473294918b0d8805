"""Random generators that are passed in, each from one seed and a path of labels."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def derive_seed(seed: int, *labels: str | int) -> int:
    key = json.dumps([int(seed), *labels]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *labels)))
