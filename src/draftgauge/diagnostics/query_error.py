"""Query estimation error: how far a drafter's query is from the one that the target will use.

At depth ``k`` a drafter that reads keys attends from position ``t + 1 + k`` to the target's keys of ``0 .. t``. The
target's query there is a function of all its layers; a shallow drafter has to guess it (KVShot, arXiv 2604.26412, the
first bottleneck). Both queries give a distribution over the same positions, and the KL divergence between the two is
measured. Slot ``k`` of a block stands at the same position and is measured alike. The keys of its block, and those of
fused hidden states, are left out as the keys of a chain are.

A drafter's head is compared, in every tapped layer, with the target's head of nearest attention over all positions and
depths. Projected heads correspond to none of the target's by construction. Where keys are concatenated, only heads with
the same keys are compared.

Letters in shapes: ``B`` texts, ``A`` anchors, ``L`` positions of the prefix, ``K`` depths, ``N`` drafter layers. ``S``
tapped layers of the target, ``J`` query heads of the drafter, ``Q`` of the target, ``KV`` key heads, ``D`` their width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.diagnostics.bottlenecks import CONTROLS, MEASURES, TRUE, Floats, QueryErrors
from draftgauge.diagnostics.texts import HeldOutText, TextBatch, by_text, text_batches
from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.reuse.blockwise import BlockLayer, BlockNet
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import like, rotate, window
from draftgauge.models.base import ScoreRule, catching_heads, score_rule
from draftgauge.models.taps import Features, batch_features, nowhere, ordered


class _Attended(NamedTuple):
    """What the queries of a drafter layer at one depth see; their ``A`` anchors are the last of ``L`` positions."""

    queries: Tensor  # [B, J, A, D]
    injected: KeysValues  # [B, KV', L, D]
    fused: Sequence[Tensor]  # keys [B, KV', L, D] of the hidden states that a block reads
    drafted: Tensor  # [B, KV', A, n, D] keys of each anchor's own draft

    @property
    def end(self) -> int:
        return self.injected[0].shape[2]

    @property
    def begin(self) -> int:
        return self.end - self.queries.shape[2]


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


class _Comparison:
    def __init__(self, net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int) -> None:
        self.net, self.module, self.texts, self.depths = net, module, texts, depths
        self.layers = net.config.kv_layers
        self.rules = [score_rule(module, layer) for layer in self.layers]
        self.parts = _parts(net)

    def run(self) -> QueryErrors:
        self.nearest = self.pairing()
        shape = (len(self.texts), self.depths)
        positions = np.zeros(shape)
        sums = {name: np.zeros((*shape, len(self.parts), len(self.layers))) for name in MEASURES}
        agreed = {name: np.zeros(shape) for name in CONTROLS}
        for seen in self.batches():
            index = list(seen.batch.index)
            for layer, depth, attended in self.unrolled(seen):
                counted = _counted(seen, depth, attended)
                if layer == 0:
                    positions[index, depth] += counted.sum(1).numpy()
                for slot in range(len(self.layers)):
                    for name, values in self.measured(seen, layer, slot, depth, attended).items():
                        sums[name][index, depth, layer, slot] += by_text(seen.batch, counted, values)
            for name in CONTROLS:
                agreed[name][index] = self.agreement(seen, plugged=name == TRUE)
        return QueryErrors(self.layers, positions, sums, agreed)

    def batches(self) -> Iterator[_Seen]:
        for batch in text_batches(self.texts, self.depths, next(self.net.parameters()).device):
            with catching_heads(self.module, self.layers, ["queries"]) as caught:
                features = batch_features(self.module, batch.tokens, self.net.config.tap_plan, nowhere(batch.tokens))
            raw = ordered(self.module, torch.stack([caught[layer, "queries"] for layer in self.layers], 1))
            tables = window(self.net.tables(raw.shape[3], raw), 0, raw.shape[3])
            yield _Seen(batch, features, rotate(raw, like(tables, raw)).float())

    def unrolled(self, seen: _Seen) -> Iterator[tuple[int, int, _Attended]]:
        """Drafter layer, depth and what is attended to there, for all of both; blocks in pieces of some anchors."""
        calls: list[tuple[int, Mapping[int, _Attended]]] = []

        def catch(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            return lambda part, inputs: calls.append((layer, _attended(part, inputs)))

        with ExitStack() as stack:
            for layer, (part, _) in enumerate(self.parts):
                stack.enter_context(part.register_forward_pre_hook(catch(layer)))
            self.net.unroll(seen.batch.tokens, seen.features, self.depths, seen.batch.begin)
        for layer, by_depth in calls:
            for depth in range(self.depths):
                if depth in by_depth:
                    yield layer, depth, by_depth[depth]

    def pairing(self) -> list[_Pairs]:
        """For each drafter layer the target heads nearest to its own, by the KL summed over anchors and depths."""
        config = self.net.config
        costs = torch.zeros(
            len(self.parts), config.chain_query_heads, len(self.layers), config.query_heads, dtype=torch.float64
        )
        for seen in self.batches():
            for layer, depth, attended in self.unrolled(seen):
                counted = _counted(seen, depth, attended).to(attended.queries.device)
                drafted = _log(_own_weights(attended))  # [B, J, A, L]
                for slot in range(len(self.layers)):
                    true = self.true_weights(seen, slot, depth, attended)  # [B, Q, A, L]
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
        """``[B, Q, A, L]`` the target's distribution, with its query at the position that is drafted at this depth."""
        assert seen.features.keys is not None
        queries = seen.true[:, slot, :, attended.begin + 1 + depth : attended.end + 1 + depth]
        return _weights(queries, seen.features.keys[:, slot, :, : attended.end], self.rules[slot])

    def measured(self, seen: _Seen, layer: int, slot: int, depth: int, attended: _Attended) -> dict[str, Tensor]:
        """Every measure ``[B, A]``, the mean over those heads of the drafter that have a counterpart in this layer."""
        heads = self.nearest[layer].heads[:, slot]
        chosen = (heads >= 0).nonzero()[:, 0]
        true = self.true_weights(seen, slot, depth, attended)[:, heads[chosen]]
        logs, visible = _log(true), torch.arange(attended.begin + 1, attended.end + 1, device=true.device).float()
        return {
            "query_kl": (true * (logs - _log(_own_weights(attended)[:, chosen]))).sum(-1).mean(1),
            "uniform_kl": ((true * logs).sum(-1) + visible.log()).mean(1),
        }

    def agreement(self, seen: _Seen, plugged: bool) -> Floats:
        """``[B, K]`` anchors of each text where the drafted token is the text's; ``plugged``: with the target's
        attention over the prefix in place of the drafter's."""
        batch, begin = seen.batch, seen.batch.begin
        with ExitStack() as stack:
            for layer in range(len(self.parts) if plugged else 0):
                self.plug(seen, layer, stack)
            states = self.net.unroll(batch.tokens, seen.features, self.depths, begin)
        rights = [batch.right(self.net, state, depth).float() for depth, state in enumerate(states)]
        counted = [batch.counted(depth, begin + right.shape[1])[:, begin:] for depth, right in enumerate(rights)]
        return np.stack([by_text(batch, *pair) for pair in zip(counted, rights, strict=True)], 1)

    def plug(self, seen: _Seen, layer: int, stack: ExitStack) -> None:
        """Give each head of a drafter layer its nearest counterpart's attention over the prefix."""
        by_depth: Mapping[int, _Attended] = {}

        def catch(part: nn.Module, inputs: tuple[Any, ...]) -> None:
            nonlocal by_depth
            by_depth = _attended(part, inputs)

        def change(output: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
            moves = [self.moved(seen, layer, depth, attended) for depth, attended in by_depth.items()]
            rows = torch.stack(moves, 3).flatten(2, 3)  # [B, J, A, D], or of all slots of a block [B, J, A b, D]
            return inputs[0] + rows.to(inputs[0].dtype).transpose(1, 2).flatten(2)

        part, output = self.parts[layer]
        stack.enter_context(part.register_forward_pre_hook(catch))
        stack.enter_context(output.register_forward_pre_hook(change))

    def moved(self, seen: _Seen, layer: int, depth: int, attended: _Attended) -> Tensor:
        """``[B, J, A, D]`` what the counterparts' attention adds to the drafter's values that are read."""
        if depth >= self.depths:  # a slot that is not measured
            return torch.zeros_like(attended.queries)
        nearest, own = self.nearest[layer], _own_weights(attended)
        wanted = torch.zeros_like(own)
        for slot in range(len(self.layers)):
            chosen = (nearest.slot == slot).nonzero()[:, 0]
            wanted[:, chosen] = self.true_weights(seen, slot, depth, attended)[:, nearest.heads[chosen, slot]]
        values = _by_head(attended.injected[1], own.shape[1]).float()
        return _prefix_share(attended)[..., None] * ((wanted - own) @ values)


def _parts(net: ReuseNet) -> list[tuple[nn.Module, nn.Linear]]:
    """By layer, the module whose inputs say what is attended to, and the projection of what was attended to."""
    if isinstance(net, BlockNet):
        return [(layer, layer.attention.output) for layer in net.layers]
    attentions = [block.chain_attention for block in net.blocks]
    return [(attention, attention.output) for attention in attentions if attention is not None]


def _attended(part: nn.Module, inputs: tuple[Any, ...]) -> dict[int, _Attended]:
    """By depth: of the one that a chain attention is called for, or of all slots of a block."""
    if not isinstance(part, BlockLayer):
        queries, injected, chain, causal, _ = inputs
        assert causal, "an unroll attends causally"
        drafted = torch.stack([keys for keys, _ in chain], -2)
        return {len(chain) - 1: _Attended(queries, injected, (), drafted)}
    stream, embedded, context, tables, visible, size = inputs
    heads, end = part.heads(stream, embedded, tables), int(visible.max())
    *fused, injected = [(keys[:, :, :end], values[:, :, :end]) for keys, values in context]
    drafted, of_states = heads.keys.unflatten(2, (-1, size)), [keys for keys, _ in fused]
    return {slot: _Attended(heads.queries[:, :, slot::size], injected, of_states, drafted) for slot in range(size)}


def _counted(seen: _Seen, depth: int, attended: _Attended) -> Tensor:
    return seen.batch.counted(depth, attended.end)[:, attended.begin :]


def _own_weights(attended: _Attended) -> Tensor:
    """``[B, J, A, L]`` the drafter's distribution over the prefix of every anchor."""
    return _weights(attended.queries, attended.injected[0], ScoreRule(attended.queries.shape[-1] ** -0.5))


def _weights(queries: Tensor, keys: Tensor, rule: ScoreRule) -> Tensor:
    """``[B, heads, A, L]`` float32: causal softmax of queries ``[B, heads, A, D]`` over keys ``[B, KV, L, D]``."""
    return _scores(queries, keys, rule).softmax(-1)


def _scores(queries: Tensor, keys: Tensor, rule: ScoreRule) -> Tensor:
    products = queries.float() @ _by_head(keys, queries.shape[1]).float().mT
    rows, length = products.shape[-2:]
    masked = torch.ones(rows, length, dtype=torch.bool, device=products.device).triu(1 + length - rows)
    return rule(products).masked_fill(masked, float("-inf"))


def _by_head(heads: Tensor, count: int) -> Tensor:
    """``[B, KV, ...]`` repeated for ``count`` query heads."""
    return heads.repeat_interleave(count // heads.shape[1], 1)


def _log(weights: Tensor) -> Tensor:
    return weights.clamp(min=torch.finfo(weights.dtype).tiny).log()


def _prefix_share(attended: _Attended) -> Tensor:
    """``[B, J, A]`` weight of the prefix's injected keys in the joint attention with all others."""
    queries, rule = attended.queries.float(), ScoreRule(attended.queries.shape[-1] ** -0.5)
    prefix, *fused = (
        _scores(queries, keys, rule).logsumexp(-1, keepdim=True) for keys in (attended.injected[0], *attended.fused)
    )
    drafted = rule((queries[..., None, :] * _by_head(attended.drafted, queries.shape[1]).float()).sum(-1))
    return (prefix[..., 0] - torch.cat([prefix, *fused, drafted], -1).logsumexp(-1)).exp()
