"""What a recorder hands to the trace writer: one prompt with all its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.traces.checks import accepted_lengths, check_chances, check_rows
from draftgauge.traces.trace import PromptInfo

Number = TypeVar("Number", np.int32, np.float32)
Ragged = Sequence[Sequence[float]]


@dataclass(frozen=True)
class PromptRecord:
    """One prompt, recorded densely: ``N`` output positions, up to ``G`` tokens drafted from each.

    The columns ``[N]`` and ``[N, G]`` are those of :class:`~draftgauge.traces.trace.Trace`; ``text`` holds ``N``
    decoded pieces of the output. A record of sampled decoding has ``acceptance`` and ``survival``, and its drafts are
    the *refused* ones of :class:`~draftgauge.traces.trace.SampledDrafts`.
    """

    info: PromptInfo
    token: NDArray[np.int32]
    text: Sequence[str]
    target_entropy: NDArray[np.float32]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]
    accepted: NDArray[np.int16]
    acceptance: NDArray[np.float32] | None = None
    survival: NDArray[np.float32] | None = None

    @property
    def sampled(self) -> bool:
        return self.acceptance is not None

    @property
    def gamma_max(self) -> int:
        return int(self.draft_token.shape[1])

    @property
    def drafted(self) -> NDArray[np.int16]:
        """``[N]`` tokens drafted from each position."""
        counts: NDArray[np.int16] = (self.draft_token >= 0).sum(axis=1, dtype=np.int16)
        return counts

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first value that is off."""
        where, length = f"prompt {self.info.index}", self.info.output_tokens
        assert len(self.text) == length, where
        assert (self.acceptance is None) == (self.survival is None), where
        types = {"token": np.int32, "draft_token": np.int32, "accepted": np.int16}
        chances = ("acceptance", "survival") if self.sampled else ()
        for name in ("token", "target_entropy", "accepted", "draft_token", "confidence", "entropy", "margin", *chances):
            column, flat = getattr(self, name), name in ("token", "target_entropy", "accepted", *chances)
            assert column.shape == ((length,) if flat else (length, self.gamma_max)), (where, name, column.shape)
            assert column.dtype == types.get(name, np.float32), (where, name, column.dtype)
        check_rows(self, where=where)
        if self.acceptance is not None and self.survival is not None:
            check_chances(self.acceptance, self.survival, self.drafted > 0, where)


def make_record(
    info: PromptInfo,
    token: Sequence[int],
    drafts: Sequence[Sequence[int]],
    gamma_max: int,
    confidence: Ragged | None = None,
    entropy: Ragged | None = None,
    margin: Ragged | None = None,
    target_entropy: Sequence[float] | None = None,
    text: Sequence[str] | None = None,
) -> PromptRecord:
    """A record from ragged lists: pads them and counts the accepted tokens.

    Args:
        token: ``N`` greedy tokens.
        confidence, entropy, margin: as ragged as ``drafts``; by default those of a drafter that is certain (1, 0, 1).
        target_entropy: ``N`` values, by default 0.
        text: ``N`` pieces, by default ``"<token> "``.
    """
    tokens = np.asarray(token, np.int32)
    draft_token = _padded(drafts, gamma_max, -1, np.int32)
    certain = [[1.0] * len(draft) for draft in drafts]
    unsure = [[0.0] * len(draft) for draft in drafts]
    record = PromptRecord(
        info=info,
        token=tokens,
        text=[f"{t} " for t in token] if text is None else list(text),
        target_entropy=np.asarray([0.0] * len(tokens) if target_entropy is None else target_entropy, np.float32),
        draft_token=draft_token,
        confidence=_padded(certain if confidence is None else confidence, gamma_max, np.nan, np.float32),
        entropy=_padded(unsure if entropy is None else entropy, gamma_max, np.nan, np.float32),
        margin=_padded(certain if margin is None else margin, gamma_max, np.nan, np.float32),
        accepted=accepted_lengths(tokens, draft_token),
    )
    record.validate()
    return record


def _padded(rows: Ragged, width: int, fill: float, dtype: type[Number]) -> NDArray[Number]:
    """``[len(rows), width]`` with ``fill`` behind each row."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    assert not lengths.size or int(lengths.max()) <= width, (int(lengths.max()), width)
    padded = np.full((len(rows), width), fill, dtype)
    padded[np.arange(width) < lengths[:, None]] = np.asarray([value for row in rows for value in row], dtype)
    return padded
