"""How much memory a training took at most."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from importlib.util import find_spec

import torch


def peak_memory_gib(device: torch.device) -> float:
    """Most memory in use so far, of the GPU or else of the process; NaN where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if find_spec("resource") is None:  # Windows
        return math.nan
    resource = import_module("resource")
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit / 2**30
