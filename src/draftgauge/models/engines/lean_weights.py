"""The weights of a Llama-like decoder, fused and in the order in which the lean engine uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.engines.lean_families import (
    ACTIVATIONS,
    GEMMA,
    Window,
    activation_name,
    has_experts,
    rotary_bases,
    why_not_lean,
    why_not_recorded,
    window_of,
)
from draftgauge.models.engines.lean_ops import (
    Norm,
    Projection,
    Residual,
    Rotation,
    centred_norm,
    norm,
    packs,
    projection,
    residual,
    rotation,
)
from draftgauge.models.hidden import ScoreRule, score_rule

Update = Callable[[Tensor], object]
Mix = Callable[..., Tensor]
"""Attention as ``torch.nn.functional.scaled_dot_product_attention`` computes it: queries, keys, values, ``attn_mask``,
``enable_gqa``."""


class LeanLayer(NamedTuple):
    """One decoder layer over the residual stream ``x`` ``[k, hidden]``; ``H`` query and ``KV`` key/value heads.

    Attributes:
        qkv: ``x -> [k, (H + 2 KV) head_dim]``, queries first, then keys, then values.
        rotate: normalises, where the family does, and rotates query and key heads ``[k, H + KV, head_dim]`` in place.
        output: adds the output projection of ``[k, H head_dim]`` to ``x``, normed first where the family does so.
        mlp: adds the output of the MLP, or of the experts, to ``x``; their norms are in it.
    """

    input_norm: Norm
    qkv: Projection
    rotate: Rotation
    output: Residual
    mlp: Update


@dataclass(frozen=True)
class LeanWeights:
    """A whole decoder.

    Attributes:
        rotaries: transformers' own rotary modules, one for each base.
        score: what attention makes of the product of a query and a key; ``mix`` is attention with these scores.
        eager: why no pass can be recorded as a CUDA graph, or None if passes can.
        window: of the layers that attend within one, or None where all see everything.
    """

    embedding: Tensor
    embed: Callable[[Tensor], Tensor]
    layers: tuple[LeanLayer, ...]
    norm: Norm
    head: Projection
    rotaries: tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], ...]
    score: ScoreRule
    mix: Mix
    query_heads: int
    key_heads: int
    head_dim: int
    eager: str | None = None
    window: Window | None = None


def fuse(model: PreTrainedModel) -> LeanWeights:
    """Fuse query, key and value projections into one and gate and up into another, layer by layer.

    The model itself stays usable. Models of up to 2 GiB on a CPU get packed copies of their linears (`lean_ops`);
    otherwise the model's own linears become views of the fused weights. Quantised linears and experts are called as
    they are.
    """
    reason = why_not_lean(model)
    if reason is not None:
        raise ModelError(f"the lean engine cannot run this model: {reason}; use engine='auto' or 'modules'")
    config, decoder = model.config, model.model
    pack, bases, score = packs(model), rotary_bases(config), score_rule(model, 0)
    head = projection([model.lm_head], pack)
    cap = getattr(config, "final_logit_softcapping", None)
    return LeanWeights(
        embedding=decoder.embed_tokens.weight,
        embed=_embedding(decoder.embed_tokens),
        layers=tuple(_fuse_layer(layer, config, pack) for layer in decoder.layers),
        norm=_norm_of(config)(decoder.norm.weight, config.rms_norm_eps),
        head=head if cap is None else lambda x: head(x).div_(cap).tanh_().mul_(cap),
        rotaries=tuple(partial(decoder.rotary_emb, layer_type=kind) for kind in bases) or (decoder.rotary_emb,),
        score=score,
        mix=_mix(score, decoder.layers[0].self_attn.head_dim),
        query_heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=decoder.layers[0].self_attn.head_dim,
        eager=why_not_recorded(model),
        window=window_of(config),
    )


def _fuse_layer(layer: Any, config: PreTrainedConfig, pack: bool) -> LeanLayer:
    attention, mlp, eps, norm_of = layer.self_attn, layer.mlp, config.rms_norm_eps, _norm_of(config)
    after_attention = after_mlp = None
    before_mlp = layer.post_attention_layernorm
    if config.model_type in ("gemma2", "gemma3_text"):  # a norm before and one behind each half of the block
        after_attention = norm_of(layer.post_attention_layernorm.weight, eps)
        after_mlp = norm_of(layer.post_feedforward_layernorm.weight, eps)
        before_mlp = layer.pre_feedforward_layernorm
    return LeanLayer(
        input_norm=norm_of(layer.input_layernorm.weight, eps),
        qkv=projection([attention.q_proj, attention.k_proj, attention.v_proj], pack),
        rotate=_rotation(attention, config),
        output=residual(attention.o_proj, pack, after_attention),
        mlp=_mlp(mlp, config, norm_of(before_mlp.weight, eps), after_mlp, pack),
    )


def _mlp(mlp: Any, config: PreTrainedConfig, before: Norm, after: Norm | None, pack: bool) -> Update:
    if has_experts(mlp):  # called as a whole, whatever form transformers gives them
        return lambda x: x.add_(mlp(before(x)[None])[0])
    activation = ACTIVATIONS[activation_name(config)]
    project, add = projection([mlp.gate_proj, mlp.up_proj], pack), residual(mlp.down_proj, pack, after)

    def gated(x: Tensor) -> None:
        gate, up = project(before(x)).chunk(2, -1)
        add(x, activation(gate).mul_(up))

    return gated


def _rotation(attention: Any, config: PreTrainedConfig) -> Rotation:
    head_norm = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        stacked = torch.stack([query] * config.num_attention_heads + [key] * config.num_key_value_heads)
        head_norm = _norm_of(config)(stacked, config.rms_norm_eps)
    bases = rotary_bases(config)
    base = bases.index(attention.layer_type) if len(bases) > 1 else None
    return rotation(head_norm, attention.head_dim, base)


def _norm_of(config: PreTrainedConfig) -> Callable[[Tensor, float], Norm]:
    return centred_norm if config.model_type in GEMMA else norm


def _embedding(module: Any) -> Callable[[Tensor], Tensor]:
    """A function from tokens ``[k]`` to their embeddings, scaled where the family does so (Gemma)."""
    table = module.weight
    if not hasattr(module, "embed_scale"):
        return partial(F.embedding, weight=table)
    scale = module.embed_scale.to(table.dtype)
    return lambda tokens: F.embedding(tokens, table).mul_(scale)


def _mix(score: ScoreRule, head_dim: int) -> Mix:
    """Attention with these scores: PyTorch's own kernels, or, as those know no softcap, one matrix after the other."""
    attention: Mix = F.scaled_dot_product_attention
    if score.softcap is None:
        return attention if score.scaling == head_dim**-0.5 else partial(attention, scale=score.scaling)
    scaling, cap = score.scaling, score.softcap

    def mix(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None) -> Tensor:
        scores = torch.matmul(queries, keys.mT).float().mul_(scaling / cap).tanh_().mul_(cap)
        if attn_mask is not None:
            scores.add_(attn_mask)
        return torch.matmul(scores.softmax(-1).to(values.dtype), values)

    return mix
