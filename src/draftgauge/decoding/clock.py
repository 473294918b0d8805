"""A clock that knows that an accelerator works asynchronously."""

from __future__ import annotations

import time

import torch


def seconds(*devices: torch.device) -> float:
    """The time, once the devices have done what they were given; differences of it are seconds."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()
