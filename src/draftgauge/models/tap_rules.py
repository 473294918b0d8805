"""Which layers of a target are tapped by default, and which by EAGLE-3; no torch.

EAGLE-3's code takes what *enters* layers 2, L // 2 and L - 3 of L. That is the output of the layers below them:
SpecForge names those. The default has EAGLE-3's numbers and takes what leaves these layers, one layer further on. Their
keys and values are made of what enters them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from draftgauge.core.errors import ModelError

EAGLE_LAYERS = 7  # from this many on, layers 2, L // 2 and L - 3 are three
TAPS = 3
TapRule = Literal["eagle3", "specforge"]


def default_taps(layers: int) -> tuple[int, ...]:
    if layers >= EAGLE_LAYERS:
        return (2, layers // 2, layers - 3)
    count = min(TAPS, layers)
    return tuple((2 * part + 1) * layers // (2 * count) for part in range(count))


def specforge_taps(layers: int) -> tuple[int, ...]:
    """The layers of ``layers`` whose outputs EAGLE-3 (arXiv 2503.01840) and SpecForge take."""
    if layers < EAGLE_LAYERS:
        raise ModelError(
            f"the layers that EAGLE-3 and SpecForge read are of targets of {EAGLE_LAYERS} layers or more, not {layers}"
        )
    return (1, layers // 2 - 1, layers - 4)


TAP_RULES: Mapping[TapRule, Callable[[int], tuple[int, ...]]] = {"eagle3": default_taps, "specforge": specforge_taps}
