"""Where models run."""

from __future__ import annotations

import torch


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device of this name; without one a GPU where there is one, else the CPU."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
