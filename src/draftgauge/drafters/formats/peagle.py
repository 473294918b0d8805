"""P-EAGLE: an EAGLE-3 drafter that drafts a whole block in one pass, over masks behind the last committed token.

A mask has a token of its own, and one learned vector in place of the target's states. It sees the committed text and
the masks before it, so a place does not depend on how many follow.

Read are configurations of speculators and flat ones, which name the mask ``ptd_token_id`` or ``pard_token``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftgauge.drafters.anchors import DEEPEST, AnchorCache, Places
from draftgauge.drafters.formats.decoder import AT_ONCE
from draftgauge.drafters.formats.dflash import DFlashBranches
from draftgauge.drafters.formats.eagle3 import Eagle3Layout, Eagle3Net
from draftgauge.drafters.formats.layout import MASK_STATE, Shapes
from draftgauge.drafters.formats.settings import Settings
from draftgauge.drafters.reuse.attention import Heads
from draftgauge.drafters.reuse.blockwise import block_attention

USUAL_BLOCK = 8  # speculators' depths in training, where a configuration does not say how many tokens it proposes
LONGEST_BLOCK = DEEPEST - 16  # with the anchors of a step in one pass, whose shapes are recorded


@dataclass(frozen=True)
class PEagleLayout(Eagle3Layout):
    """Tokens of a block, and the token that fills its places but the first."""

    block: int = 0
    mask_token: int = 0

    @classmethod
    def read(cls, reader: Settings) -> PEagleLayout:
        fields = cls.fields_of(reader, "peagle")
        block, from_anchor = reader.block(at_anchor=True, usual=USUAL_BLOCK)
        if not from_anchor or block > LONGEST_BLOCK:
            reader.refuse(
                f"P-EAGLE drafters whose first place predicts, with blocks of 2 to {LONGEST_BLOCK} tokens, are run here"
            )
        return cls(**fields, block=block, mask_token=reader.mask_token(fields["decoder"].vocabulary))

    @property
    def longest(self) -> int:
        return self.block

    def shapes(self, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
        wanted, optional = super().shapes(found, target_width)
        wanted[MASK_STATE] = (len(self.taps) * target_width,)
        return wanted, optional


class PEagleNet(Eagle3Net):
    """States are ``[R, H]`` of anchors alone after :meth:`take_in`. After :meth:`absorb`, which runs new anchors and
    masks in one pass, they are ``[1, B, H]`` of the last one's block."""

    layout: PEagleLayout

    def begin(self) -> AnchorCache:
        decoder = self.layout.decoder
        heads, spare = [decoder.kv_heads] * decoder.layers, self.layout.block - 1
        return AnchorCache(heads, decoder.head_dim, self._head, self._tables, spare)

    @torch.inference_mode()
    def take_in(self, cache: AnchorCache, tokens: Tensor, hidden: Tensor) -> Tensor:
        pieces = zip(tokens.split(AT_ONCE), hidden.split(AT_ONCE), strict=True)
        return torch.cat([Eagle3Net.absorb(self, cache, cache.extend(len(part[0])), *part) for part in pieces])

    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        masks, states = self._masks(1)
        following = torch.arange(1, self.layout.block, device=tokens.device)
        at = torch.cat((places.at, places.at[-1] + following))  # in the spare places, which the next anchors write over
        hidden = torch.cat((hidden.to(states.dtype), states.unflatten(-1, hidden.shape[1:])))
        block = super().absorb(cache, places._replace(at=at), torch.cat((tokens, masks)), hidden)
        return block[None, -self.layout.block :]

    def branches(  # type: ignore[override]  # blocks, where EAGLE-3 has chains
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> DFlashBranches:
        if begin.dim() == 3:
            return DFlashBranches(self.logits(begin))
        behind = (run or partial(self.run, cache))(torch.arange(first, first + len(begin), device=begin.device))
        return DFlashBranches(self.logits(torch.cat((begin[:, None], behind), 1)))

    @torch.inference_mode()
    def run(self, cache: AnchorCache, anchors: Tensor) -> Tensor:  # type: ignore[override]
        """The states ``[R, B - 1, H]`` of the masks behind anchors ``[R]``."""
        rows, size = len(anchors), self.layout.block - 1
        place = torch.arange(size, device=anchors.device)
        positions = (anchors[:, None] + 1 + place).flatten()
        cos, sin = self._tables(cache.length + size + 1, self._head)
        unseen = torch.arange(cache.capacity, device=anchors.device) > anchors[:, None, None]  # [R, 1, C]
        behind = place > place[:, None]

        def attend(layer: int, heads: Heads) -> Tensor:
            queries, *own = (part.unflatten(1, (rows, size)).transpose(0, 1) for part in heads)
            mixed = block_attention(queries, [cache.pairs[layer]], (own[0], own[1]), unseen[:, None], size, behind)
            return mixed.transpose(0, 1).flatten(1, 2)

        tokens, states = self._masks(rows)
        fused = self._fuse(states.unflatten(-1, (len(self.layout.taps), -1)))
        return self._run(tokens, fused, (cos[positions], sin[positions]), attend).unflatten(0, (rows, size))

    def _masks(self, rows: int) -> tuple[Tensor, Tensor]:
        """Tokens ``[n]`` and states ``[n, S H]`` of the masks of so many blocks."""
        count = rows * (self.layout.block - 1)
        state = self.weights[MASK_STATE]
        return torch.full((count,), self.layout.mask_token, device=state.device), state.expand(count, -1)
