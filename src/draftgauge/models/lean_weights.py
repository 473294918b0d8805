"""The weights of a Llama-like decoder, fused and in the order in which the lean engine uses them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.lean_checks import why_changed
from draftgauge.models.lean_ops import Norm, Projection, Residual, norm, packs, projection, residual

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ATTENTION_KINDS = {"full_attention", "sliding_attention"}  # of a layer, where a configuration names them
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")  # their frequencies change with the length: a cached key would go stale


class Window(NamedTuple):
    """Sliding-window attention: a token sees itself and the ``length - 1`` before it.

    Attributes:
        length: in tokens.
        layers: for each layer whether it attends so; the others see everything.
    """

    length: int
    layers: tuple[bool, ...]


class LeanLayer(NamedTuple):
    """One decoder layer. ``x`` is the residual stream ``[k, hidden]``; ``H`` and ``KV`` count query and key/value
    heads.

    Attributes:
        input_norm: before attention.
        qkv: ``x -> [k, (H + 2 KV) head_dim]``, queries first, then keys, then values.
        head_norm: of query and key heads ``[k, H + KV, head_dim]``, or None where the family has none.
        output: adds the output projection of ``[k, H head_dim]`` to ``x``.
        post_norm: before the MLP.
        gate_up: ``x -> [k, 2 intermediate]``, gate first.
        down: adds the down projection of ``[k, intermediate]`` to ``x``.
    """

    input_norm: Norm
    qkv: Projection
    head_norm: Norm | None
    output: Residual
    post_norm: Norm
    gate_up: Projection
    down: Residual


@dataclass(frozen=True)
class LeanWeights:
    """A whole decoder; see :class:`LeanLayer` for the letters.

    Attributes:
        plain: all linears are plain ones; quantised linears run code of their own.
        window: of the layers that attend within one, or None where all see everything.
    """

    embedding: Tensor
    layers: tuple[LeanLayer, ...]
    norm: Norm
    head: Projection
    rotary: nn.Module
    query_heads: int
    key_heads: int
    head_dim: int
    plain: bool = True
    window: Window | None = None


def why_not_lean(model: PreTrainedModel) -> str | None:
    """The reason why the lean engine cannot run this model, or None if it can."""
    config = model.config
    if not of_a_family(model):
        return f"{type(model).__name__} is not one of transformers' {', '.join(FAMILIES)}"
    reason = _why_no_window(config)
    if reason is not None:
        return reason
    if config.rope_parameters["rope_type"] in LENGTH_DEPENDENT_ROPE:
        return f"its rotary embeddings ({config.rope_parameters['rope_type']}) depend on the length of the text"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights lie on several devices"
    return why_changed(model, list(linears(model)))


def window_of(config: PreTrainedConfig) -> Window | None:
    """Where and how far the layers of a model of the families attend within a window, as transformers reads it."""
    length: Any = getattr(config, "sliding_window", None)
    if config.model_type == "mistral":  # whatever kinds of layers its configuration names
        sliding = (length is not None,) * config.num_hidden_layers
    else:
        kinds = getattr(config, "layer_types", None) or ("full_attention",) * config.num_hidden_layers
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    return Window(length, sliding) if any(sliding) else None


def _why_no_window(config: PreTrainedConfig) -> str | None:
    """The reason why it cannot be said what the layers see, or None."""
    length, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if config.model_type == "llama" and length is not None:
        return "its configuration names a sliding window, which transformers' llama does not have"
    other = set(kinds or ()) - ATTENTION_KINDS
    if other:
        return f"it has layers of {', '.join(sorted(other))}"
    if window_of(config) is not None and (length is None or length < 1):
        return f"it has sliding-window layers, and its sliding_window is {length}"
    return None


def of_a_family(model: PreTrainedModel) -> bool:
    """Whether transformers' own code of one of :data:`FAMILIES` runs this model."""
    family = model.config.model_type
    return family in FAMILIES and type(model).__module__ == f"transformers.models.{family}.modeling_{family}"


def fuse(model: PreTrainedModel) -> LeanWeights:
    """Fuse query, key and value projections into one and gate and up into another, layer by layer.

    The model itself stays usable. Small models on a CPU get packed copies of their linears (see :mod:`lean_ops`);
    otherwise the model's own linears become views of the fused weights and nothing is held twice. Quantised linears
    (bitsandbytes) are called as they are.

    Raises:
        ModelError: if the lean engine cannot run this model.
    """
    reason = why_not_lean(model)
    if reason is not None:
        raise ModelError(f"the lean engine cannot run this model: {reason}; use engine='auto' or 'modules'")
    config, decoder = model.config, model.model
    pack = packs(model)
    return LeanWeights(
        embedding=decoder.embed_tokens.weight,
        layers=tuple(_fuse_layer(layer, config, pack) for layer in decoder.layers),
        norm=norm(decoder.norm.weight, config.rms_norm_eps),
        head=projection([model.lm_head], pack),
        rotary=decoder.rotary_emb,
        query_heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=decoder.layers[0].self_attn.head_dim,
        plain=has_plain_linears(model),
        window=window_of(config),
    )


def has_plain_linears(model: PreTrainedModel) -> bool:
    """Whether no matrix of a model of the families is quantised or adapted."""
    return all(type(linear) is nn.Linear for linear in linears(model))


def linears(model: PreTrainedModel) -> Iterator[nn.Module]:
    """Everything that multiplies by a matrix in a model of one of the families, the output head included."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield from (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        yield from (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    yield model.lm_head


def _fuse_layer(layer: Any, config: PreTrainedConfig, pack: bool) -> LeanLayer:
    attention, mlp, eps = layer.self_attn, layer.mlp, config.rms_norm_eps
    head_norm = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        head_norm = norm(torch.stack([query] * config.num_attention_heads + [key] * config.num_key_value_heads), eps)
    return LeanLayer(
        input_norm=norm(layer.input_layernorm.weight, eps),
        qkv=projection([attention.q_proj, attention.k_proj, attention.v_proj], pack),
        head_norm=head_norm,
        output=residual(attention.o_proj, pack),
        post_norm=norm(layer.post_attention_layernorm.weight, eps),
        gate_up=projection([mlp.gate_proj, mlp.up_proj], pack),
        down=residual(mlp.down_proj, pack),
    )
