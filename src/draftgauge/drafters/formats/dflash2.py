"""DFlash2: DFlash with short convolutions around the parts of a layer, and a selector that reads the token before.

Read are the flat configuration of ``z-lab/dflash`` and that of speculators, as vLLM runs them (``qwen3_dflash2.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.drafters.formats.decoder import Weights
from draftgauge.drafters.formats.dflash import DFlashBranches, DFlashLayout, DFlashNet
from draftgauge.drafters.formats.layout import Shapes
from draftgauge.drafters.formats.settings import Settings

_SELECTOR = "candidate_selector"


@dataclass(frozen=True)
class DFlash2Layout(DFlashLayout):
    """What DFlash2 adds.

    Attributes:
        taps_of_conv: places that a convolution reads, a place and those before it in the block.
        conv_group: neighbouring numbers of a state that share what is added to their kernel.
        selector_rank: width of the selector's tables.
        candidates: tokens of a place that the selector scores; no other one is drafted.
    """

    read_too: ClassVar[tuple[str, ...]] = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    free_windows: ClassVar[bool] = True

    taps_of_conv: int = 0
    conv_group: int = 0
    selector_rank: int = 0
    candidates: int = 0

    @classmethod
    def read(cls, reader: Settings) -> DFlash2Layout:
        fields = cls.fields_of(reader, "dflash2")
        taps, group, rank, candidates = (reader.integer(name) for name in cls.read_too)
        hidden, vocabulary = fields["decoder"].hidden_size, fields["decoder"].vocabulary
        if hidden % group:
            reader.refuse(f"conv_group_size {group} does not divide hidden_size {hidden}")
        if taps > fields["block"]:
            reader.refuse(f"conv_kernel_size {taps} is longer than a block of {fields['block']}")
        if not 2 <= candidates <= vocabulary or fields["draft_vocabulary"] != vocabulary:
            reader.refuse(
                f"the selector takes 2 to {vocabulary} tokens (selector_top_k {candidates}), all of them the target's "
                f"(draft_vocab_size {fields['draft_vocabulary']})"
            )
        return cls(**fields, taps_of_conv=taps, conv_group=group, selector_rank=rank, candidates=candidates)

    def shapes(self, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
        wanted, optional = super().shapes(found, target_width)
        hidden, rank, taps = self.decoder.hidden_size, self.selector_rank, self.taps_of_conv
        for conv in (f"layers.{n}.{part}_conv" for n in range(self.decoder.layers) for part in ("attention", "mlp")):
            wanted[f"{conv}.base_kernel"] = (2, taps, hidden)
            wanted[f"{conv}.kernel_projection.weight"] = (2 * taps * hidden // self.conv_group, hidden)
        codebooks = (f"{_SELECTOR}.{name}_codebook" for name in ("predecessor", "successor"))
        wanted |= dict.fromkeys(codebooks, (self.decoder.vocabulary, rank))
        wanted[f"{_SELECTOR}.hidden_projection.weight"] = (rank, hidden)
        return wanted, optional


class DFlash2Net(DFlashNet):
    layout: DFlash2Layout

    def _around(self, layer: Weights, part: str, normed: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Convolved before and after the part; both kernels are made of its normed states."""
        conv, taps = layer.at(f"{part}_conv"), self.layout.taps_of_conv
        added = conv.linear("kernel_projection", normed).unflatten(-1, (2, taps, -1))  # [R, B, 2, taps, groups]
        before, after = (
            base + new.repeat_interleave(self.layout.conv_group, -1)
            for base, new in zip(conv["base_kernel"], added.unbind(2), strict=True)
        )
        return _convolve(normed, before), partial(_convolve, kernels=after)

    def read_off(self, tokens: Tensor, states: Tensor, logits: Tensor) -> DFlash2Branches:
        return DFlash2Branches(self, tokens, states, logits)


def _convolve(states: Tensor, kernels: Tensor) -> Tensor:
    """Each place of ``[R, B, H]`` and those before it in its block, times ``kernels [R, B, taps, H]``."""
    mixed = torch.zeros_like(states)
    for back, kernel in enumerate(kernels.unbind(2)):
        mixed = mixed + kernel * F.pad(states, (0, 0, back, 0))[:, : states.shape[1]]
    return mixed


class DFlash2Branches(DFlashBranches):
    """Blocks whose places are read off among the likeliest tokens, scored by the token before each."""

    def __init__(self, net: DFlash2Net, tokens: Tensor, states: Tensor, logits: Tensor) -> None:
        super().__init__(logits)
        self._net, self._states = net, states
        self._select(tokens)

    def advance(self, tokens: Tensor) -> Tensor:
        super().advance(tokens)
        self._select(tokens)
        return self.logits

    @torch.inference_mode()
    def _select(self, before: Tensor) -> None:
        weights = self._net.weights.at(_SELECTOR)
        values, ids = self.logits.topk(self._net.layout.candidates, -1)
        reads = weights["predecessor_codebook"][before] * weights.linear(
            "hidden_projection", self._states[:, self._place]
        )
        added = torch.einsum("rk,rck->rc", reads, weights["successor_codebook"][ids]).float()
        self.logits = torch.full_like(self.logits, -torch.inf).scatter(-1, ids, values + added)
