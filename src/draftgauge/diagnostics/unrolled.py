"""Held-out texts in batches that a drafter can be unrolled over, and which of their anchors count.

Letters in shapes as in :mod:`draftgauge.diagnostics.alpha`: anchor ``t`` drafts output tokens ``p + k`` at depth ``k``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse.net import ReuseNet

BATCH_TOKENS = 2048


@dataclass(frozen=True)
class TextBatch:
    """Texts of similar lengths, padded on the right so far that even the last output token is a label.

    Attributes:
        index: which texts these are.
        tokens: ``[B, T]``.
        first: ``[B]`` anchor of each text's first output token; negative where a prompt of one token leaves none.
        outputs: ``[B]`` lengths of the outputs.
    """

    index: tuple[int, ...]
    tokens: Tensor
    first: Tensor
    outputs: Tensor

    @property
    def begin(self) -> int:
        """The first anchor that any text drafts from; those before are context only."""
        return max(0, int(self.first.min()))

    def counted(self, depth: int, anchors: int) -> Tensor:
        """``[B, anchors]`` bool: anchors whose draft has an output token as its label at this depth."""
        position = torch.arange(anchors) - self.first[:, None]  # in the output
        return (position >= 0) & (position + depth < self.outputs[:, None])

    def right(self, net: ReuseNet, states: Tensor, depth: int, begin: int = 0) -> Tensor:
        """``[B, anchors]`` int64: 1 where an anchor counts and its drafted token is the text's, else 0.

        Args:
            net: the drafter.
            states: of the depth ``[B, anchors, H]``, of which logits are made where they count.
            depth: k.
            begin: anchor that the states begin with.
        """
        counted = self.counted(depth, begin + states.shape[1])[:, begin:]
        row, anchor = counted.nonzero(as_tuple=True)
        drafted = net.logits(states[row, anchor]).argmax(-1)
        if net.d2t is not None:
            drafted = net.d2t[drafted]
        right = torch.zeros(counted.shape, dtype=torch.int64, device=states.device)
        right[row, anchor] = (drafted == self.tokens[row, begin + anchor + depth + 2]).long()
        return right


def text_batches(
    texts: Sequence[HeldOutText], depths: int, device: torch.device, batch_tokens: int = BATCH_TOKENS
) -> Iterator[TextBatch]:
    """Batches of all texts, shortest first, of up to ``batch_tokens`` tokens, padding included."""
    members: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i].tokens)):
        width = len(texts[i].tokens) + depths
        if members and (len(members) + 1) * width > batch_tokens:
            yield _batch(texts, members, depths, device)
            members = []
        members.append(i)
    if members:
        yield _batch(texts, members, depths, device)


def _batch(texts: Sequence[HeldOutText], members: Sequence[int], depths: int, device: torch.device) -> TextBatch:
    chosen = [texts[i] for i in members]
    width = max(len(text.tokens) for text in chosen) + depths - 1
    tokens = torch.tensor([text.tokens + [0] * (width - len(text.tokens)) for text in chosen])
    first = torch.tensor([len(text.prompt) - 2 for text in chosen])
    return TextBatch(tuple(members), tokens.to(device), first, torch.tensor([len(text.output) for text in chosen]))


def by_text(batch: TextBatch, counted: Tensor, values: Tensor) -> np.ndarray:
    """Sums over the counted anchors of each text: ``[B, ...]`` float64 of ``values`` ``[B, anchors, ...]``."""
    weights = counted.to(values.device, values.dtype)
    sums: np.ndarray = torch.einsum("ba,ba...->b...", weights, values).double().cpu().numpy()
    return sums
