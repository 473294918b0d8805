"""What a recorder hands to the trace writer: one prompt with all its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgauge.traces.checks import accepted_lengths, check_chances, check_rows
from draftgauge.traces.trace import PromptInfo


@dataclass(frozen=True)
class PromptRecord:
    """One prompt, recorded densely: ``N`` output positions, up to ``G`` tokens drafted from each.

    The columns ``[N]`` and ``[N, G]`` are those of :class:`~draftgauge.traces.trace.Trace`. A record of sampled
    decoding has ``acceptance`` and ``survival``, and its drafts are the *refused* ones of
    :class:`~draftgauge.traces.trace.SampledDrafts`.
    """

    info: PromptInfo
    token: NDArray[np.int32]
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
        assert (self.acceptance is None) == (self.survival is None), where
        types = {"token": np.int32, "draft_token": np.int32, "accepted": np.int16}
        chances = ("acceptance", "survival") if self.sampled else ()
        for name in ("token", "target_entropy", "accepted", "draft_token", "confidence", "entropy", "margin", *chances):
            column, flat = getattr(self, name), name in ("token", "target_entropy", "accepted", *chances)
            assert column.shape == ((length,) if flat else (length, self.gamma_max)), (where, name, column.shape)
            assert column.dtype == types.get(name, np.float32), (where, name, column.dtype)
        check_rows(self, where)
        if self.acceptance is not None and self.survival is not None:
            check_chances(self.acceptance, self.survival, self.drafted > 0, where)


def make_record(
    info: PromptInfo, token: Sequence[int], drafts: Sequence[Sequence[int]], gamma_max: int
) -> PromptRecord:
    """A record of ``N`` greedy tokens and what was drafted from each, by a drafter that is certain of all it drafts."""
    tokens = np.asarray(token, np.int32)
    draft_token = np.full((len(drafts), gamma_max), -1, np.int32)
    for row, draft in enumerate(drafts):
        draft_token[row, : len(draft)] = draft
    zero = np.where(draft_token >= 0, np.float32(0), np.float32(np.nan))
    record = PromptRecord(
        info=info,
        token=tokens,
        target_entropy=np.zeros(len(tokens), np.float32),
        draft_token=draft_token,
        confidence=zero + 1,
        entropy=zero,
        margin=zero + 1,
        accepted=accepted_lengths(tokens, draft_token),
    )
    record.validate()
    return record
