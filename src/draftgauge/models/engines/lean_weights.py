"""Which models the lean engine runs, and their weights as plain functions, fused and in the order of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.base import ScoreRule, score_rule
from draftgauge.models.engines.packing import Packing, convert, packing_of
from draftgauge.models.spec import rope_kinds
from draftgauge.models.weight_only import WeightOnlyLinear, joined

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen2_moe", "qwen3_moe")
SLIDE_THROUGHOUT = ("mistral", "mixtral", "qwen3_moe")  # within a window, in every layer, if they have one
GEMMA = ("gemma", "gemma2", "gemma3_text")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
ATTENTION_KINDS = {"full_attention", "sliding_attention"}  # of a layer, where a configuration names them
RECORDED = {"Linear", "Linear4bit"}  # torch's, and bitsandbytes' of 4 bits: their kernels can be recorded
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")  # their frequencies change with the length: a cached key would go stale


class Window(NamedTuple):
    """Sliding-window attention: a token sees itself and the ``length - 1`` before it.

    Attributes:
        length: in tokens.
        layers: for each layer whether it attends so; the others see everything.
    """

    length: int
    layers: tuple[bool, ...]


def why_not_lean(model: PreTrainedModel) -> str | None:
    """The reason why the lean engine cannot run this model, or None if it can."""
    config = model.config
    if not of_a_family(model):
        return f"{type(model).__name__} is not one of transformers' {', '.join(FAMILIES)}"
    length, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if config.model_type in ("llama", "gemma") and length is not None:
        return f"its configuration names a sliding window, which transformers' {config.model_type} does not have"
    if other := set(kinds or ()) - ATTENTION_KINDS:
        return f"it has layers of {', '.join(sorted(other))}"
    if window_of(config) is not None and (length is None or length < 1):
        return f"it has sliding-window layers, and its sliding_window is {length}"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see those behind them"
    for rope in rope_kinds(config):
        if rope["rope_type"] in LENGTH_DEPENDENT_ROPE:
            return f"its rotary embeddings ({rope['rope_type']}) depend on the length of the text"
    if activation_name(config) not in ACTIVATIONS:
        return f"its activation is {activation_name(config)}"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights lie on several devices"
    return why_changed(model)


def window_of(config: PreTrainedConfig) -> Window | None:
    """Where and how far the layers of a model of the families attend within a window, as transformers reads it."""
    length: Any = getattr(config, "sliding_window", None)
    if config.model_type in SLIDE_THROUGHOUT:  # whatever kinds of layers its configuration names
        sliding = (length is not None,) * config.num_hidden_layers
    else:
        kinds = getattr(config, "layer_types", None) or ("full_attention",) * config.num_hidden_layers
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    return Window(length, sliding) if any(sliding) else None


def of_a_family(model: PreTrainedModel) -> bool:
    family = model.config.model_type
    folder = family.removesuffix("_text")
    return family in FAMILIES and type(model).__module__ == f"transformers.models.{folder}.modeling_{folder}"


def why_not_recorded(model: PreTrainedModel) -> str | None:
    """Why passes of a model cannot be recorded as CUDA graphs: LLM.int8, for one, waits for outliers to be counted."""
    if any(has_experts(layer.mlp) for layer in model.model.layers):
        return "which experts run is known only when their router has run"
    other = {type(linear).__name__ for linear in linears(model)} - RECORDED
    return f"{', '.join(sorted(other))} runs code of its own" if other else None


def linears(model: PreTrainedModel) -> Iterator[nn.Module]:
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield from (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        yield from (mlp,) if has_experts(mlp) else (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    yield model.lm_head


def has_experts(mlp: nn.Module) -> bool:
    return not hasattr(mlp, "gate_proj")


def rotary_bases(config: PreTrainedConfig) -> list[str]:
    return sorted(set(config.layer_types)) if config.model_type == "gemma3_text" else []


def activation_name(config: PreTrainedConfig) -> str:
    return config.hidden_activation if config.model_type in ("gemma2", "gemma3_text") else config.hidden_act


PLAIN_TENSORS: tuple[type, ...] = (nn.Parameter, Tensor)
_LIBRARIES = ("torch.nn.", "transformers.activations")
# These stay behind after hidden states were asked for, and then do nothing.
_IDLE_HOOKS = "transformers.utils.output_capturing"


def why_changed(model: PreTrainedModel) -> str | None:
    """What was changed in a model of one of transformers' families, or None if nothing was.

    Linears that are not plain are called as modules, so whatever they do is done.
    """
    called = {id(part) for linear in linears(model) if type(linear) is not nn.Linear for part in linear.modules()}
    dtype = model.get_input_embeddings().weight.dtype
    for name, module in model.named_modules():
        if id(module) in called:
            continue
        kind, what = type(module), None
        definer = next(base for base in kind.__mro__ if "forward" in vars(base))
        hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
        if kind.__module__ != type(model).__module__ and not kind.__module__.startswith(_LIBRARIES):
            what = f"is a {kind.__name__} of {kind.__module__}"
        elif "forward" in vars(module) or getattr(vars(definer)["forward"], "__module__", None) != definer.__module__:
            what = "has had its forward replaced"
        elif any(getattr(hook, "__module__", None) != _IDLE_HOOKS for hook in hooks):
            what = "has hooks"
        if what is not None:
            return f"{name or 'the model'} {what}"
        for part, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None and type(tensor) not in PLAIN_TENSORS:
                return f"{name}.{part} is a {type(tensor).__name__} and not a plain tensor"
        for part, parameter in module._parameters.items():
            if parameter is not None and parameter.dtype != dtype:
                return f"{name}.{part} is {parameter.dtype}, and the embeddings {dtype}"
    return None


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


def fuse(model: PreTrainedModel, owned: bool = False, dtype: torch.dtype | None = None) -> LeanWeights:
    """Fuse query, key and value projections into one and gate and up into another, layer by layer.

    On a CPU linears are packed where that pays. An ``owned`` model gives its weights up for it, layer by layer, and
    ``packing.restore`` gives them back. Another one of up to 2 GiB keeps them beside packed copies. Otherwise the
    model's own linears become views of the fused weights. Quantised linears and experts are called as they are.
    With a ``dtype`` the weights are converted to it, linears one after the other.
    """
    reason = why_not_lean(model)
    if reason is not None:
        raise ModelError(f"the lean engine cannot run this model: {reason}; use engine='auto' or 'modules'")
    config, decoder = model.config, model.model
    packing, bases, score = packing_of(model, owned, dtype), rotary_bases(config), score_rule(model, 0)
    later = {id(weight) for each in linears(model) if type(each) is nn.Linear for weight in each.parameters()}
    convert((weight for weight in model.parameters() if id(weight) not in later), dtype)
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
