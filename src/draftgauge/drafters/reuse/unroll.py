"""A reuse drafter unrolled over whole texts, for training and for measuring.

Training-time test (EAGLE-3, arXiv 2503.01840): ``K`` steps from every anchor, teacher tokens in, own states passed on.
Letters in shapes as in :mod:`draftgauge.drafters.reuse.net`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftgauge.core.errors import ModelError
from draftgauge.drafters.reuse.blocks import BlockHeads, Memory
from draftgauge.drafters.reuse.blockwise import BlockNet, unroll_blocks
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.drafters.reuse.rotary import window
from draftgauge.models.taps import Features


def unroll_states(net: ReuseNet, tokens: Tensor, features: Features, depths: int, first: int = 0) -> list[Tensor]:
    """States ``[B, A - first, H]`` of all ``K`` depths from the anchors ``first..A-1``, with ``A = T - 1 - K``.

    Entry ``k`` predicts ``x[t + 2 + k]`` for the anchor ``t`` of tokens ``[B, T]`` and their features. The anchors
    before ``first``, a prompt's for instance, are context only: nothing is drafted from them.
    """
    anchors = tokens.shape[1] - 1 - depths
    if depths < 1 or anchors < 1:
        raise ModelError(
            f"texts of {tokens.shape[1]} tokens are too short to draft {depths}: they need at least {depths + 2}"
        )
    if isinstance(net, OwnLayerNet):
        assert features.hidden is not None, "an MTP head reads hidden states"
        return net.unroll(tokens, features.hidden[:, :, 0], depths, torch.arange(first, anchors)[None])
    if isinstance(net, BlockNet):
        return unroll_blocks(net, tokens, features, depths, first)
    embedded = net.embed(tokens[:, 1 : anchors + depths])  # [B, A + K - 1, H]
    parts = [block.token_parts(embedded) for block in net.blocks]
    memories, tables = [Memory() for _ in net.blocks], net.tables(tokens.shape[1], embedded)
    if net.traits.reads_kv:
        assert features.keys is not None, "this design reads keys"
        assert features.values is not None, "this design reads values"
        cached = net.cast(features.keys[..., :anchors, :]), net.cast(features.values[..., :anchors, :])
        places = window(net.tables(anchors, cached[0]), 0, anchors)
        memories = [Memory(injected=block.injection(*cached, places)) for block in net.blocks]
    # Self-attention sees depth 0 of every anchor; all else is made for the anchors that something is drafted from.
    start = 0 if net.traits.self_attends else first
    hidden = None if features.hidden is None else features.hidden[:, start:anchors]
    stream: Tensor | None = None
    states = []
    for depth in range(depths):
        begin, end = start + depth, anchors + depth
        entering = net.entering(embedded[:, begin:end], hidden if depth == 0 else None, stream)
        rows = [part.window(begin, end) for part in parts]
        skipped = first - start  # rows of anchors that nothing is drafted from

        def remember(layer: int, heads: BlockHeads, depth: int = depth, skipped: int = skipped) -> Memory:
            memories[layer] = memories[layer].with_heads(heads, depth, skipped)
            return memories[layer]

        stream = net.depth(rows, entering, window(tables, begin + 1, end + 1), remember, skipped, causal=True)
        start = first
        states.append(stream)
    return states
