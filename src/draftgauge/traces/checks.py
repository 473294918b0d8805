"""What must hold for recorded rows, whether just taken or read from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.core.errors import TraceError

if TYPE_CHECKING:
    from draftgauge.traces.record import PromptRecord
    from draftgauge.traces.trace import Trace

TOLERANCE = 1e-4  # a softmax in float32 over a large vocabulary may sum to slightly more than 1


def are_seconds(values: ArrayLike, positive: bool = False) -> bool:
    seconds = np.asarray(values, np.float64)
    return bool((np.isfinite(seconds) & (seconds > 0 if positive else seconds >= 0)).all())


def accepted_lengths(
    token: NDArray[np.int32], draft_token: NDArray[np.int32], remaining: NDArray[np.int64] | None = None
) -> NDArray[np.int16]:
    """How many drafted tokens of each position equal the greedy continuation, before the first that does not.

    Args:
        token: ``[P]`` greedy tokens; ``d_1`` drafted from row ``p`` is compared with ``token[p]``, ``d_2`` with
            ``token[p + 1]``, ...
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        remaining: ``[P]`` rows from each row to the end of its own prompt, itself included; by default all rows are one
            prompt.

    Returns:
        ``[P]`` int16; tokens past the recorded output count as rejected.
    """
    rows, gamma_max = draft_token.shape
    left = np.arange(rows, 0, -1) if remaining is None else remaining
    padded = np.concatenate([token, np.zeros(gamma_max, np.int32)])
    continuation = np.lib.stride_tricks.sliding_window_view(padded, gamma_max)[:rows]
    matches = (draft_token == continuation) & (np.arange(gamma_max) < left[:, None])
    lengths: NDArray[np.int16] = np.logical_and.accumulate(matches, axis=1).sum(axis=1, dtype=np.int16)
    return lengths


def check_rows(rows: PromptRecord | Trace, where: str, remaining: NDArray[np.int64] | None = None) -> None:
    """Raise :class:`TraceError` naming the first column with a value out of range, and the row."""
    drafted = rows.draft_token >= 0
    entropy = rows.target_entropy
    _refuse(rows.token < 0, f"{where}: token must be 0 or more")
    _refuse(drafted[:, 1:] & ~drafted[:, :-1], f"{where}: draft_token has tokens after its padding (-1)")
    _refuse(~(entropy >= -TOLERANCE) | np.isinf(entropy), f"{where}: target_entropy must be bits, 0 or more")
    for name, highest in (("confidence", 1.0), ("entropy", np.inf), ("margin", 1.0)):
        values: NDArray[np.float32] = getattr(rows, name)
        problem = "must be a number for each drafted token and NaN for the others"
        _refuse(np.isnan(values) == drafted, f"{where}: {name} {problem}")
        outside = (values < -TOLERANCE) | (values > highest + TOLERANCE) | np.isinf(values)
        _refuse(outside, f"{where}: {name} must lie in 0..{highest:g}")
    expected = accepted_lengths(rows.token, rows.draft_token, remaining)
    _refuse(
        rows.accepted != expected,
        f"{where}: accepted differs from the drafted tokens that equal the greedy continuation",
    )


def check_chances(
    acceptance: NDArray[np.float32], survival: NDArray[np.float32], drafted: NDArray[np.bool_], where: str
) -> None:
    """Raise :class:`TraceError` naming the first chance out of range, and its row."""
    for name, values in (("acceptance", acceptance), ("survival", survival)):
        bad = np.where(drafted, ~((values >= 0) & (values <= 1)), ~np.isnan(values))
        _refuse(bad, f"{where}: {name} must be a chance where a token was drafted and NaN elsewhere")


def _refuse(bad: NDArray[np.bool_], problem: str) -> None:
    if bad.any():
        raise TraceError(f"{problem} (row {int(np.argwhere(bad)[0][0])})")
