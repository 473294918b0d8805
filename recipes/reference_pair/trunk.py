"""The forward pass that trains the bundled models: causal attention in chunks, the states of every layer at hand."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Qwen3ForCausalLM

# More chunks save more products, and take minutes to compile.
SHORTEST_CHUNK, MOST_CHUNKS = 256, 3
ATTENTION = "draftgauge_chunked_causal"


def chunked_causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention in which a chunk of queries meets only the keys up to its own end: about half of the products.

    Compiled for a CPU this trains faster than the fused kernel and than one masked product over the whole window.

    Args:
        module: the attention layer; not used.
        query: ``[batch, heads, length, head_dim]``.
        key, value: ``[batch, key_value_heads, length, head_dim]``.
        attention_mask: not used; every window is attended to from its first token on.
        scaling: of the products before the softmax.
        options: what other attention functions take; not used.

    Returns:
        ``[batch, length, heads, head_dim]``, and no weights.
    """
    _, heads, length, _ = query.shape
    groups = heads // key.shape[1]
    chunk = max(SHORTEST_CHUNK, -(-length // MOST_CHUNKS))
    queries = query.unflatten(1, (-1, groups))  # [batch, key_value_heads, groups, length, head_dim]
    outputs = []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        part = queries[..., start:end, :].flatten(2, 3)
        scores = (part @ key[..., :end, :].transpose(-1, -2)).unflatten(2, (groups, end - start)) * scaling
        future = torch.ones(end - start, end, dtype=torch.bool, device=query.device).triu(start + 1)
        weights = scores.float().masked_fill(future, -torch.inf).softmax(-1).to(value.dtype)
        outputs.append((weights.flatten(2, 3) @ value[..., :end, :]).unflatten(2, (groups, end - start)))
    joined = torch.cat(outputs, dim=3).flatten(1, 2)  # [batch, heads, length, head_dim]
    return joined.transpose(1, 2), None


AttentionInterface.register(ATTENTION, chunked_causal_attention)
AttentionMaskInterface.register(ATTENTION, lambda *arguments, **options: None)


def layer_states(model: Qwen3ForCausalLM, batch: Tensor) -> list[Tensor]:
    """Residual stream ``[batch, length, hidden]`` behind the embedding and every layer, before the final norm."""
    inner = model.model
    state = inner.embed_tokens(batch)
    positions = torch.arange(batch.shape[1], device=batch.device)[None]
    rotary = inner.rotary_emb(state, positions)
    states = [state]
    for layer in inner.layers:
        states.append(layer(states[-1], attention_mask=None, position_embeddings=rotary))
    return states


def logits_at(model: Qwen3ForCausalLM, state: Tensor) -> Tensor:
    """Logits ``[..., vocabulary]`` of final states ``[..., hidden]``."""
    return cast(Tensor, model.lm_head(model.model.norm(state)))
