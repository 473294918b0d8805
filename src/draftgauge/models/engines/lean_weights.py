"""The weights of a Llama-like decoder as plain functions, fused and in the order in which the lean engine uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
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
from draftgauge.models.engines.packing import Packing, packing_of
from draftgauge.models.hidden import ScoreRule, score_rule
from draftgauge.models.weight_only import WeightOnlyLinear, joined

Projection = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor, Tensor], Tensor]
Norm = Callable[[Tensor], Tensor]
Rotation = Callable[[Tensor, Tensor, Tensor], object]
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
    packing: Packing
    eager: str | None = None
    window: Window | None = None


def fuse(model: PreTrainedModel, owned: bool = False) -> LeanWeights:
    """Fuse query, key and value projections into one and gate and up into another, layer by layer.

    On a CPU linears are packed where that pays. An ``owned`` model gives its weights up for it, layer by layer, and
    ``packing.restore`` gives them back. Another one of up to 2 GiB keeps them beside packed copies. Otherwise the
    model's own linears become views of the fused weights. Quantised linears and experts are called as they are.
    """
    reason = why_not_lean(model)
    if reason is not None:
        raise ModelError(f"the lean engine cannot run this model: {reason}; use engine='auto' or 'modules'")
    config, decoder = model.config, model.model
    packing, bases, score = packing_of(model, owned), rotary_bases(config), score_rule(model, 0)
    head, table = projection([model.lm_head], packing), decoder.embed_tokens.weight
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(decoder.embed_tokens, "embed_scale", None)  # Gemma's
    scale = None if scale is None else scale.to(table.dtype)
    layers = []
    for layer in decoder.layers:
        attention, before_mlp = layer.self_attn, layer.post_attention_layernorm
        after_attention = after_mlp = None
        if config.model_type in ("gemma2", "gemma3_text"):  # a norm before and one behind each half of the block
            after_attention = _norm(layer.post_attention_layernorm.weight, config)
            after_mlp = _norm(layer.post_feedforward_layernorm.weight, config)
            before_mlp = layer.pre_feedforward_layernorm
        fused = LeanLayer(
            input_norm=_norm(layer.input_layernorm.weight, config),
            qkv=projection([attention.q_proj, attention.k_proj, attention.v_proj], packing),
            rotate=_rotation(attention, config),
            output=residual(attention.o_proj, packing, after_attention),
            mlp=_mlp(layer.mlp, config, _norm(before_mlp.weight, config), after_mlp, packing),
        )
        layers.append(fused)
    return LeanWeights(
        embedding=table,
        embed=lambda tokens: F.embedding(tokens, table) if scale is None else F.embedding(tokens, table).mul_(scale),
        layers=tuple(layers),
        norm=_norm(decoder.norm.weight, config),
        head=head if cap is None else lambda x: head(x).div_(cap).tanh_().mul_(cap),
        rotaries=tuple(partial(decoder.rotary_emb, layer_type=kind) for kind in bases) or (decoder.rotary_emb,),
        score=score,
        mix=_mix(score, decoder.layers[0].self_attn.head_dim),
        query_heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=decoder.layers[0].self_attn.head_dim,
        packing=packing,
        eager=why_not_recorded(model),
        window=window_of(config),
    )


def projection(linears: Sequence[Any], packing: Packing) -> Projection:
    """One function whose outputs are those of the linears side by side.

    Args:
        linears: with the same input. Other modules than ``nn.Linear`` (quantised ones) are called as they are.
        packing: packs the fused weight where that pays; otherwise the linears become views of it.
    """
    if all(isinstance(linear, WeightOnlyLinear) for linear in linears) and (whole := joined(linears)) is not None:
        return whole
    if any(type(linear) is not nn.Linear for linear in linears):
        return linears[0] if len(linears) == 1 else lambda x: torch.cat([linear(x) for linear in linears], -1)
    return packing.multiply(linears)


def residual(linear: Any, packing: Packing, norm: Norm | None = None) -> Residual:
    """A function that adds a linear's output, normed in Gemma 2 and 3, to the residual ``x`` in place."""
    project = projection([linear], packing)
    if norm is None:
        return lambda x, inner: x.add_(project(inner))
    return lambda x, inner: x.add_(norm(project(inner)))


def _mlp(mlp: Any, config: PreTrainedConfig, before: Norm, after: Norm | None, packing: Packing) -> Update:
    if has_experts(mlp):  # called as a whole, whatever form transformers gives them
        return lambda x: x.add_(mlp(before(x)[None])[0])
    activation = ACTIVATIONS[activation_name(config)]
    project, add = projection([mlp.gate_proj, mlp.up_proj], packing), residual(mlp.down_proj, packing, after)

    def gated(x: Tensor) -> None:
        gate, up = project(before(x)).chunk(2, -1)
        add(x, activation(gate).mul_(up))

    return gated


def _rotation(attention: Any, config: PreTrainedConfig) -> Rotation:
    """Normalises the heads where there is a norm (Qwen3, Gemma 3), and rotates them in place.

    A function of query and key heads ``[k, H + KV, D]`` and rotary tables ``[k, bases, D]``, the sine signed.
    """
    head_norm, head_dim, bases = None, attention.head_dim, rotary_bases(config)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        stacked = torch.stack([query] * config.num_attention_heads + [key] * config.num_key_value_heads)
        head_norm = _norm(stacked, config)
    base = bases.index(attention.layer_type) if len(bases) > 1 else None

    def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        normed = heads if head_norm is None else head_norm(heads)
        if base is not None:
            cos, sin = cos.narrow(1, base, 1), sin.narrow(1, base, 1)
        torch.addcmul(normed * cos, normed.roll(head_dim // 2, -1), sin, out=heads)

    return rotate


def _norm(weight: Tensor, config: PreTrainedConfig) -> Norm:
    """RMS norm over the last dimension, times ``weight`` (``[..., dim]``, broadcast).

    In Gemma it is times one more than the weight, and in float32 up to the end whatever the model's dtype.
    """
    dtype, dim, eps = weight.dtype, weight.shape[-1], config.rms_norm_eps
    gemma = config.model_type in GEMMA
    weight = 1.0 + weight.detach().float() if gemma else weight

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, (dim,), weight, eps) if weight.ndim == 1 else F.rms_norm(x, (dim,), None, eps).mul_(weight)

    return norm if not gemma or dtype == torch.float32 else lambda x: norm(x.float()).to(x.dtype)


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
