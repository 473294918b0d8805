"""Query estimation error: how far a drafter's query is from the one that the target will use.

At depth ``k`` a drafter that reads keys attends from position ``t + 1 + k`` to the target's keys of ``0 .. t``. The
target will attend from that position with a query that is a function of all its layers; a shallow drafter has to guess
it (KVShot, arXiv 2604.26412, the first bottleneck). Both queries give a distribution over the same positions, and the
KL divergence between the two is measured.

A head of the drafter is compared, in every tapped layer of the target, with the head whose attention is nearest to its
own over all positions and depths, as projected heads correspond to no head of the target by construction. Where keys
are concatenated, only heads with the same keys are compared.

Letters in shapes: ``B`` texts, ``A`` anchors, ``K`` depths, ``N`` drafter layers, ``S`` tapped layers of the target,
``J`` query heads of the drafter, ``Q`` of the target, ``KV`` key heads, ``D`` head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.diagnostics.bottlenecks import CONTROLS, MEASURES, TRUE, Floats, QueryErrors
from draftgauge.diagnostics.texts import HeldOutText, TextBatch, by_text, text_batches
from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.joint import KeysValues
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import like, rotate, window
from draftgauge.drafters.reuse.unroll import unroll_states
from draftgauge.models.hidden import ScoreRule, catching_heads, score_rule
from draftgauge.models.taps import Features, batch_features


class _Attended(NamedTuple):
    """Inputs of the chain attention of a block at one depth."""

    queries: Tensor  # [B, J, A, D]
    injected: KeysValues  # [B, KV', A, D]
    chain: Sequence[KeysValues]


class _Pairs(NamedTuple):
    """The target heads that a drafter layer's heads are compared with."""

    heads: Tensor  # [J, S] the nearest head in each tapped layer; -1 where none is comparable
    slot: Tensor  # [J] the tapped layer whose head is the nearest of all


class _Seen(NamedTuple):
    """A batch, the target's features of it, and the target's queries."""

    batch: TextBatch
    features: Features
    true: Tensor  # [B, S, Q, T, D], rotated


@torch.inference_mode()
def query_errors(
    net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int
) -> QueryErrors | None:
    if not net.traits.reads_kv:
        return None
    return _Comparison(net, module, texts, depths).run()


@torch.inference_mode()
def prefix_attention(
    net: ReuseNet, module: PreTrainedModel, text: HeldOutText, depth: int = 0
) -> tuple[Floats, Floats]:
    """What the heads of a drafter's first layer attend to of the text before each of its ``A`` anchors, and what the
    target head nearest to each will: both ``[J, A, A]``, anchors then positions, every row a distribution.
    """
    compared = _Comparison(net, module, [text], depth + 1)
    heads, slots = compared.pairing()[0]
    (seen,) = compared.batches()
    attended = next(each for layer, at, each in compared.unrolled(seen) if (layer, at) == (0, depth))
    pairs = enumerate(slots.tolist())
    true = [compared.true_weights(seen, slot, depth, attended)[0, heads[head, slot]] for head, slot in pairs]
    return _own_weights(attended)[0].numpy(force=True), torch.stack(true).numpy(force=True)


class _Comparison:
    def __init__(self, net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int) -> None:
        self.net, self.module, self.texts, self.depths = net, module, texts, depths
        self.layers = net.config.kv_layers
        self.rules = [score_rule(module, layer) for layer in self.layers]
        self.attentions = [block.chain_attention for block in net.blocks]

    def run(self) -> QueryErrors:
        self.nearest = self.pairing()
        shape = (len(self.texts), self.depths)
        positions = np.zeros(shape)
        sums = {name: np.zeros((*shape, len(self.net.blocks), len(self.layers))) for name in MEASURES}
        agreed = {name: np.zeros(shape) for name in CONTROLS}
        for seen in self.batches():
            index = list(seen.batch.index)
            for layer, depth, attended in self.unrolled(seen):
                counted = seen.batch.counted(depth, attended.queries.shape[2])
                positions[index, depth] = counted.sum(1).numpy()
                for slot in range(len(self.layers)):
                    for name, values in self.measured(seen, layer, slot, depth, attended).items():
                        sums[name][index, depth, layer, slot] = by_text(seen.batch, counted, values)
            for name in CONTROLS:
                agreed[name][index] = self.agreement(seen, plugged=name == TRUE)
        return QueryErrors(self.layers, positions, sums, agreed)

    def batches(self) -> Iterator[_Seen]:
        for batch in text_batches(self.texts, self.depths, next(self.net.parameters()).device):
            with catching_heads(self.module, self.layers, ["queries"]) as caught:
                features = batch_features(self.module, batch.tokens, self.net.config.tap_plan)
            raw = torch.stack([caught[layer, "queries"] for layer in self.layers], 1)
            tables = window(self.net.tables(raw.shape[3], raw), 0, raw.shape[3])
            yield _Seen(batch, features, rotate(raw, like(tables, raw)).float())

    def unrolled(self, seen: _Seen) -> Iterator[tuple[int, int, _Attended]]:
        """Drafter layer, depth and what is attended to there, for all of both."""
        calls: list[list[_Attended]] = [[] for _ in self.attentions]

        def catch(layer: int) -> Callable[[nn.Module, tuple[object, ...]], None]:
            return lambda part, inputs: calls[layer].append(_attended(inputs))

        with ExitStack() as stack:
            for layer, attention in enumerate(self.attentions):
                assert attention is not None
                stack.enter_context(attention.register_forward_pre_hook(catch(layer)))
            unroll_states(self.net, seen.batch.tokens, seen.features, self.depths)
        for layer, by_depth in enumerate(calls):
            for depth, attended in enumerate(by_depth):
                yield layer, depth, attended

    def pairing(self) -> list[_Pairs]:
        """For each drafter layer the target heads nearest to its own, by the KL summed over anchors and depths."""
        config = self.net.config
        costs = torch.zeros(
            len(self.attentions), config.chain_query_heads, len(self.layers), config.query_heads, dtype=torch.float64
        )
        for seen in self.batches():
            for layer, depth, attended in self.unrolled(seen):
                counted = seen.batch.counted(depth, attended.queries.shape[2]).to(attended.queries.device)
                drafted = _log(_own_weights(attended))  # [B, J, A, A]
                for slot in range(len(self.layers)):
                    true = self.true_weights(seen, slot, depth, attended)  # [B, Q, A, A]
                    entropy = -(true * _log(true)).sum(-1)  # [B, Q, A]
                    crossed = -torch.einsum("bqal,bjal->bjqa", true, drafted)
                    kl = (crossed - entropy[:, None]) * counted[:, None, None]
                    costs[layer, :, slot] += kl.sum((0, 3)).double().cpu()
        costs[:, ~self.comparable()] = torch.inf
        least, heads = costs.min(-1)
        heads[least.isinf()] = -1
        return [_Pairs(*pair) for pair in zip(heads, least.argmin(-1), strict=True)]

    def comparable(self) -> Tensor:
        """``[J, S, Q]`` bool: which heads are comparable: all, except where keys are concatenated."""
        config = self.net.config
        shape = (config.chain_query_heads, len(self.layers), config.query_heads)
        if config.injection != "concat":
            return torch.ones(shape, dtype=torch.bool)
        key_head = torch.arange(shape[0]) // (shape[0] // config.chain_kv_heads)  # of each drafter head
        own = torch.arange(shape[2]) // (shape[2] // config.kv_heads)  # of each of the target's
        slots = torch.arange(shape[1])
        return (key_head[:, None, None] // config.kv_heads == slots[None, :, None]) & (
            key_head[:, None, None] % config.kv_heads == own[None, None]
        )

    def true_weights(self, seen: _Seen, slot: int, depth: int, attended: _Attended) -> Tensor:
        """``[B, Q, A, A]`` the target's distribution, with its query at the position that is drafted at this depth."""
        anchors = attended.queries.shape[2]
        assert seen.features.keys is not None
        queries = seen.true[:, slot, :, 1 + depth : 1 + depth + anchors]
        return _weights(queries, seen.features.keys[:, slot, :, :anchors], self.rules[slot])

    def measured(self, seen: _Seen, layer: int, slot: int, depth: int, attended: _Attended) -> dict[str, Tensor]:
        """Every measure ``[B, A]``, the mean over those heads of the drafter that have a counterpart in this layer."""
        heads = self.nearest[layer].heads[:, slot]
        chosen = (heads >= 0).nonzero()[:, 0]
        true = self.true_weights(seen, slot, depth, attended)[:, heads[chosen]]
        logs, visible = _log(true), torch.arange(1, true.shape[-1] + 1, device=true.device).float()
        return {
            "query_kl": (true * (logs - _log(_own_weights(attended)[:, chosen]))).sum(-1).mean(1),
            "uniform_kl": ((true * logs).sum(-1) + visible.log()).mean(1),
        }

    def agreement(self, seen: _Seen, plugged: bool) -> Floats:
        """``[B, K]`` anchors of each text where the drafted token is the text's; ``plugged``: with the target's
        attention over the prefix in place of the drafter's."""
        batch = seen.batch
        with ExitStack() as stack:
            for layer, attention in enumerate(self.attentions if plugged else ()):
                assert attention is not None
                stack.enter_context(attention.register_forward_hook(self.plug(seen, layer)))
            states = unroll_states(self.net, batch.tokens, seen.features, self.depths)
        return np.stack(
            [
                by_text(batch, batch.counted(depth, state.shape[1]), batch.right(self.net, state, depth).float())
                for depth, state in enumerate(states)
            ],
            1,
        )

    def plug(self, seen: _Seen, layer: int) -> Callable[[Attention, tuple[object, ...], Tensor], Tensor]:
        """A forward hook that gives each head of a drafter layer its nearest counterpart's attention."""
        nearest, depth = self.nearest[layer], 0

        def change(attention: Attention, inputs: tuple[object, ...], output: Tensor) -> Tensor:
            nonlocal depth
            attended = _attended(inputs)
            own = _own_weights(attended)
            wanted = torch.zeros_like(own)
            for slot in range(len(self.layers)):
                chosen = (nearest.slot == slot).nonzero()[:, 0]
                wanted[:, chosen] = self.true_weights(seen, slot, depth, attended)[:, nearest.heads[chosen, slot]]
            values = _by_head(attended.injected[1], own.shape[1]).float()
            moved = _prefix_share(attended)[..., None] * ((wanted - own) @ values)  # [B, J, A, D]
            depth += 1
            return output + attention.output(moved.to(output.dtype).transpose(1, 2).flatten(2))

        return change


def _own_weights(attended: _Attended) -> Tensor:
    """``[B, J, A, A]`` the drafter's distribution over the prefix of every anchor."""
    return _weights(attended.queries, attended.injected[0], ScoreRule(attended.queries.shape[-1] ** -0.5))


def _attended(inputs: tuple[object, ...]) -> _Attended:
    queries, injected, chain, causal = inputs
    assert isinstance(queries, Tensor)
    assert isinstance(injected, tuple)
    assert isinstance(chain, tuple)
    assert causal, "an unroll attends causally"
    return _Attended(queries, injected, chain)


def _weights(queries: Tensor, keys: Tensor, rule: ScoreRule) -> Tensor:
    """``[B, heads, A, A]`` float32: causal softmax of queries ``[B, heads, A, D]`` over keys ``[B, KV, A, D]``."""
    products = queries.float() @ _by_head(keys, queries.shape[1]).float().mT
    masked = torch.ones(products.shape[-2:], dtype=torch.bool, device=products.device).triu(1)
    return rule(products).masked_fill(masked, float("-inf")).softmax(-1)


def _by_head(heads: Tensor, count: int) -> Tensor:
    """``[B, KV, ...]`` repeated for ``count`` query heads."""
    return heads.repeat_interleave(count // heads.shape[1], 1)


def _log(weights: Tensor) -> Tensor:
    return weights.clamp(min=torch.finfo(weights.dtype).tiny).log()


def _prefix_share(attended: _Attended) -> Tensor:
    """``[B, J, A]`` weight of the prefix in the joint attention with the rows' own keys."""
    queries = attended.queries.float() * attended.queries.shape[-1] ** -0.5
    heads = queries.shape[1]
    scores = queries @ _by_head(attended.injected[0], heads).float().mT
    masked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    prefix = scores.masked_fill(masked, float("-inf")).logsumexp(-1)
    own = [(queries * _by_head(keys, heads).float()).sum(-1) for keys, _ in attended.chain]
    return (prefix - torch.stack([prefix, *own], -1).logsumexp(-1)).exp()
