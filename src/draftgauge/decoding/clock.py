"""Clocks that know that an accelerator works asynchronously."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from draftgauge.decoding.results import Phases


def seconds(*devices: torch.device) -> float:
    """The time, once the devices have done what they were given; differences of it are seconds."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()


class PhaseClock:
    """Sums the seconds of the phases of a loop. Switched off it asks nothing of the device and costs nothing."""

    def __init__(self, devices: Iterable[torch.device], enabled: bool) -> None:
        """Start with no phase, on the devices that work in them; ``phases`` is None while switched off."""
        self._devices = tuple(devices)
        self._last = 0.0
        self.phases = Phases() if enabled else None

    def start(self) -> None:
        if self.phases is not None:
            self._last = seconds(*self._devices)

    def end(self, phase: str) -> None:
        """A phase ("draft", "verify", "other") ends and the next begins."""
        if self.phases is not None:
            now = seconds(*self._devices)
            setattr(self.phases, phase, getattr(self.phases, phase) + now - self._last)
            self._last = now
