"""How a drafter's attention starts: at a linear estimate of the target's own, at its own keys, or at random.

Between random queries and keys attention is nearly even over hundreds of positions, so a drafter first has to find what
to read. One whose token enters through attention alone (EAGLE-3, arXiv 2503.01840, section 3) has to find even that
token. Yet what a target's layer attends by follows largely from the token. A linear map of its normalised embedding
gives queries, keys and values that attend nearly as the target does. Ridge regression over some thousand positions
finds it. A drafter that starts there meets the target's cached keys from the first step on. Its own drafted tokens look
to its queries like tokens that the target has taken in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.core.errors import warn
from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.blocks import Block, Injection
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import Part, catching_heads
from draftgauge.models.engines.lean_weights import FAMILIES
from draftgauge.models.taps import batch_features, default_taps, nearest_full, nowhere
from draftgauge.training.reuse.request import RANDOM, SELF

PARTS: tuple[Part, ...] = ("queries", "keys", "values")
POSITIONS = 16_384  # of texts that the maps are fitted to
RIDGE = 1e-2  # of the mean square of an input
BALANCED_TEXTS, BALANCED_DEPTHS = 4, 2


@dataclass(frozen=True)
class HeadMaps:
    """Linear maps from a token's normalised embedding to the heads of a target layer at its position.

    Attributes:
        weights: part -> ``[heads, D, H]``; queries and keys before the rotary embedding.
        explained: share of the mean square of the layer's queries that the map gives, in sample.
    """

    weights: dict[Part, Tensor]
    explained: float


@torch.no_grad()
def start_attention(net: ReuseNet, module: PreTrainedModel, start: str, texts: Sequence[Tensor]) -> list[HeadMaps]:
    """Give a new drafter's attentions their first weights.

    Args:
        start: ``random`` leaves the weights as they are. ``self`` gives every query head the weights of its key head,
            so that a row attends mostly to itself. ``target`` does so too, but takes the first layer's attention over
            the target's keys and the drafter's own chain from :func:`fit_head_maps`. The injection first selects the
            layer that these explain best, and the attention's output is scaled to its stream. A target whose
            projections are not known takes ``self`` in its place, and a warning says so.
        texts: of the target, token ids ``[T]`` each; read for ``target`` only.

    Returns:
        The maps that the weights come from; none for other starts.
    """
    if start == RANDOM:
        return []
    for attention in net.modules():
        if isinstance(attention, Attention):
            attention.match_queries_to_keys()
    # Among hidden states alone the target's queries are no guess at a drafter's.
    if start == SELF or not net.traits.chain_attends:
        return []
    chain = net.layers[0].attention if isinstance(net, BlockNet) else net.blocks[0].chain_attention
    assert chain is not None
    if net.config.target_family not in FAMILIES:
        warn(
            f"the projections of {net.config.target_family} targets are not known: attention starts at the drafter's "
            "own keys",
        )
        return []
    text = module.config.get_text_config()
    layers = net.config.kv_layers or nearest_full(text, default_taps(text.num_hidden_layers))
    maps = fit_head_maps(net, module, layers, texts)
    chosen = max(range(len(maps)), key=lambda slot: maps[slot].explained)
    _start_chain(chain, net.config, maps, chosen)
    for part in net.modules():
        if isinstance(part, Injection) and part.kind != "concat":
            part.select(chosen)
    if not isinstance(net, BlockNet):
        _balance(net, module, texts)
    return maps


@torch.no_grad()
def fit_head_maps(
    net: ReuseNet, module: PreTrainedModel, layers: Sequence[int], texts: Iterable[Tensor]
) -> list[HeadMaps]:
    """Ridge regression of the heads of target layers on the token embeddings as the drafter's attention reads them.

    Args:
        net: the drafter, for its embeddings and their norm.
        texts: token ids ``[T]`` each; as many as hold ``POSITIONS`` positions are read.
    """
    first = net.layers[0] if isinstance(net, BlockNet) else net.blocks[0]
    norm = first.token_norm or first.state_norm  # a block that enters with no state reads its tokens as states
    assert norm is not None, "the first layer reads tokens"
    gram = torch.zeros(net.config.hidden_size, net.config.hidden_size, dtype=torch.float64, device=net.embedding.device)
    moments: dict[tuple[int, Part], Tensor] = {}
    squares, positions = dict.fromkeys(layers, 0.0), 0
    for text in texts:
        if positions >= POSITIONS:
            break
        ids = text.to(net.embedding.device)
        read = norm(net.embed(ids)).double()
        with catching_heads(module, layers, PARTS) as caught:
            module.get_decoder()(input_ids=ids[None], use_cache=False)
        gram += read.T @ read
        for key, heads in caught.items():
            heads_of_part = heads[0].transpose(0, 1).flatten(1).to(read.device).double()  # [T, heads D]
            moments[key] = moments.get(key, 0.0) + read.T @ heads_of_part
            if key[1] == "queries":
                squares[key[0]] += float(heads_of_part.square().sum())
        positions += len(ids)
    damped = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    solved = {key: torch.linalg.solve(damped, moment) for key, moment in moments.items()}
    head_dim = net.config.head_dim
    maps = []
    for layer in layers:
        weights: dict[Part, Tensor] = {
            part: solved[layer, part].T.unflatten(0, (-1, head_dim)).float() for part in PARTS
        }
        map_, moment = solved[layer, "queries"], moments[layer, "queries"]
        residual = squares[layer] - 2 * float((map_ * moment).sum()) + float((map_ * (gram @ map_)).sum())
        maps.append(HeadMaps(weights, 1 - residual / max(squares[layer], 1e-12)))
    return maps


def _start_chain(attention: Attention, config: ReuseConfig, maps: Sequence[HeadMaps], chosen: int) -> None:
    """Write the maps into the half of an attention that reads tokens; the half that reads states starts at zero."""
    reads = attention.from_token or attention.from_state  # a block's layers read their tokens as states
    assert reads is not None
    concatenated = config.traits.reads_kv and config.injection == "concat"
    sources = maps if concatenated else [maps[chosen]]
    keys = torch.cat([each.weights["keys"] for each in sources])
    values = torch.cat([each.weights["values"] for each in sources])
    grouped = [each.weights["queries"].unflatten(0, (config.kv_heads, -1)) for each in sources]  # [KV, group, D, H]
    taken = attention.query_heads // attention.kv_heads
    queries = torch.cat([group[:, :taken] for group in grouped]).flatten(0, 1)
    reads.weight.copy_(torch.cat((queries, keys, values)).flatten(0, 1))
    if not config.block and attention.from_state not in (None, reads):  # a block reads its context through it too
        attention.from_state.weight.zero_()


def _balance(net: ReuseNet, module: PreTrainedModel, texts: Sequence[Tensor]) -> None:
    """Scale the outputs of every layer's attentions, so that together they are as large as the stream they join. Texts
    that are too short to draft that many tokens are passed over; without any others nothing is scaled."""
    long_enough = [text for text in texts if len(text) >= BALANCED_DEPTHS + 2]
    if not long_enough:
        return
    joined: dict[Block, nn.Module] = {}  # what adds the attentions' output to a block's stream
    squares: dict[nn.Module, list[Tensor]] = defaultdict(list)
    with ExitStack() as hooks:
        for block in net.blocks:
            attended = block.join or block.self_attention or block.chain_attention
            assert attended is not None
            joined[block] = attended
            hooks.enter_context(
                block.register_forward_hook(lambda one, inputs, _: squares[one].append(inputs[0].square().mean()))
            )
            hooks.enter_context(
                attended.register_forward_hook(lambda one, _, output: squares[one].append(output.square().mean()))
            )
        for text in long_enough[:BALANCED_TEXTS]:
            ids = text.to(net.embedding.device)[None]
            net.unroll(ids, batch_features(module, ids, net.config.tap_plan, nowhere(ids)), BALANCED_DEPTHS)
    for block, join in joined.items():
        stream, added = (float(torch.stack(squares[watched]).mean()) ** 0.5 for watched in (block, join))
        for attention in (block.self_attention, block.chain_attention):
            if attention is not None:
                attention.output.weight.mul_(stream / max(added, 1e-12))
