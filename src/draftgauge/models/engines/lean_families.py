"""Which models the lean engine runs, and whether one is still what transformers made, as fused weights need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.models.spec import rope_kinds

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
