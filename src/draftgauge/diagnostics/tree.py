"""Accepted length with a draft tree: what KVShot calls HF MAT.

The tree is EAGLE-2's (Li et al., arXiv 2406.16858, section 4). Each level expands the ``top_k`` nodes of the most
probable paths, each into its ``top_k`` most probable tokens. Of all nodes, the most probable ones are verified. On text
that the target decoded greedily the accepted path follows the text, so no pass of the target is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.reuse.drafting import Chain, begin, step, take_in
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.taps import batch_features, nowhere


@dataclass(frozen=True)
class TreeShape:
    """How large a tree is drafted.

    Attributes:
        depth: levels of drafted tokens.
        top_k: nodes expanded at each level, and children of each.
        tokens: that the target verifies at once, the last committed one (the root) included.
    """

    depth: int = 8
    top_k: int = 10
    tokens: int = 60


@torch.inference_mode()
def tree_acceptance(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], shape: TreeShape | None = None
) -> list[tuple[int, int]]:
    """Tokens and steps of every text decoded with draft trees; their ratio is the accepted length plus one.

    Prompts have at least two tokens.
    """
    found = []
    for text in texts:
        tokens = text.tokens
        whole = torch.tensor([tokens], device=module.device)
        features = batch_features(module, whole, net.config.tap_plan, nowhere(whole))
        cache, steps = begin(net), 0
        committed = len(text.prompt)
        while committed < len(tokens):
            # The drafter takes in the anchors since its last step, each with the token after it.
            anchors, new = cache.length, slice(cache.length, committed - 1)
            following = torch.tensor(tokens[anchors + 1 : committed], device=features.logits.device)
            hidden = None if features.hidden is None else features.hidden[0, new]
            keys, values = (None if each is None else each[0, :, :, new] for each in (features.keys, features.values))
            logits, chain = take_in(net, cache, following, hidden, keys, values)
            committed += _accepted(net, cache, chain, logits[0], tokens[committed:], shape or TreeShape()) + 1
            steps += 1
        found.append((len(text.output), steps))
    return found


def _accepted(
    net: ReuseNet, cache: AnchorCache, chain: Chain, logits: Tensor, future: list[int], shape: TreeShape
) -> int:
    """Length of the path of a tree that follows the text; the text's last token is the target's own at the latest."""
    parents, drafted, scores = grow(net, cache, chain, logits, shape)
    # A parent is more probable than its children, and earlier, so it is kept with them.
    kept = scores.argsort(descending=True, stable=True)[: shape.tokens - 1]
    children = {(int(parents[node]), int(drafted[node])): int(node) for node in kept}
    node, length = -1, 0
    for token in future[:-1]:
        if (node, token) not in children:
            break
        node, length = children[node, token], length + 1
    return length


def grow(
    net: ReuseNet, cache: AnchorCache, chain: Chain, logits: Tensor, shape: TreeShape
) -> tuple[Tensor, Tensor, Tensor]:
    """All candidates of one tree, from the chain after ``take_in`` and the logits ``[V_d]`` of the first drafted token.

    Returns:
        Of each candidate, level by level: the candidate before it (-1 for the root), its token in the target's
        vocabulary, its path's log-probability.
    """
    children = min(shape.top_k, logits.shape[-1])
    scores, tokens = logits.log_softmax(-1).topk(children)
    parents = torch.full_like(tokens, -1)
    levels = [(parents, net.target_ids(tokens), scores)]
    first = 0  # index of the level's first candidate
    frontier = torch.arange(children, device=tokens.device)  # candidates of the last level that are expanded
    rows = torch.zeros_like(frontier)  # the branch of the chain that each continues
    for _ in range(shape.depth - 1):
        _, drafted, scores = levels[-1]
        logits, chain = step(net, cache, chain.rows(rows), drafted[frontier])
        more, tokens = logits.log_softmax(-1).topk(children)  # [branches, children]
        scores = (scores[frontier, None] + more).flatten()
        parents = (first + frontier).repeat_interleave(children)
        first += len(drafted)
        levels.append((parents, net.target_ids(tokens.flatten()), scores))
        frontier = scores.topk(min(shape.top_k, len(scores))).indices
        rows = frontier // children
    columns_of_all = [torch.cat(columns).cpu() for columns in zip(*levels, strict=True)]
    return columns_of_all[0], columns_of_all[1], columns_of_all[2]
