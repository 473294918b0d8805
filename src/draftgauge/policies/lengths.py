"""Draft lengths at many positions at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def first_stop(stops: NDArray[np.bool_], gamma: int) -> NDArray[np.int64]:
    """Depth of the first drafted token that ends the draft, else ``gamma``; ``[positions]``.

    Args:
        stops: ``[positions, depths]`` whether drafting stops after the token.
        gamma: the most tokens to draft; deeper ones do not count.
    """
    within = stops[:, :gamma]
    return np.where(within.any(axis=1), within.argmax(axis=1) + 1, gamma)
