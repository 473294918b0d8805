"""What chosen layers of a target compute while it takes in tokens: hidden states, queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError

BATCHED = 3  # axes of a residual stream: texts, positions, numbers
TOWERS = ("vision", "image", "audio")  # parts with layers of their own that read no text


@contextmanager
def watching(module: PreTrainedModel, layers: Sequence[int], take: Callable[[int, Tensor], object]) -> Iterator[None]:
    """Inside the block ``take(layer, states)`` gets the output ``[B, k, H]`` of each of these decoder layers.

    Raises:
        ModelError: in the pass, if a layer's output is no residual stream, or it runs several times a pass.
    """
    blocks, width = decoder_layers(module), module.config.get_text_config().hidden_size
    seen: set[int] = set()

    def begin(module: nn.Module, *_: object) -> None:
        seen.clear()

    def look(layer: int, block: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        if layer in seen or states.ndim != BATCHED or states.shape[-1] != width:
            how = "runs several times a pass" if layer in seen else f"gives states of the shape {list(states.shape)}"
            _refuse_taps(module, f"layer {layer} {how}")
        seen.add(layer)
        take(layer, states)  # and return nothing: it would replace the output

    with ExitStack() as hooks:
        hooks.enter_context(module.register_forward_pre_hook(begin))
        for layer in layers:
            hooks.enter_context(blocks[layer].register_forward_hook(partial(look, layer)))
        yield


def text_decoder(module: PreTrainedModel) -> nn.Module:
    """What holds the decoder layers of a model: in some families ``get_decoder`` is the whole model instead."""
    return _decoder_and_layers(module)[0]


def decoder_layers(module: PreTrainedModel) -> nn.ModuleList:
    return _decoder_and_layers(module)[1]


def final_norm(module: PreTrainedModel) -> nn.Module | None:
    """The norm between the last decoder layer and the head: the first one that is defined behind the layers."""
    parts = list(text_decoder(module).children())
    behind = parts[parts.index(decoder_layers(module)) :]
    return next((part for part in behind if "norm" in type(part).__name__.lower()), None)


def _decoder_and_layers(module: PreTrainedModel) -> tuple[nn.Module, nn.ModuleList]:
    count = module.config.get_text_config().num_hidden_layers
    for name, part in chain(module.get_decoder().named_modules(), module.named_modules()):
        if not any(tower in name for tower in TOWERS):
            for layers in part.children():
                if isinstance(layers, nn.ModuleList) and len(layers) == count:
                    return part, layers
    return _refuse_taps(module, f"no list of its {count} decoder layers is found")


def _refuse_taps(module: PreTrainedModel, reason: str) -> NoReturn:
    raise ModelError(
        f"the hidden states of this {module.config.get_text_config().model_type} model cannot be tapped ({reason}): "
        "draft with a small language model or prompt lookup"
    )


@dataclass(frozen=True)
class ScoreRule:
    """How a layer turns the product of a query and a key into a score; ``softcap`` bounds it (Gemma 2)."""

    scaling: float
    softcap: float | None = None

    def __call__(self, products: Tensor) -> Tensor:
        scores = products * self.scaling
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def score_rule(module: PreTrainedModel, layer: int) -> ScoreRule:
    attention = _attention(module, layer)
    gemma2 = module.config.get_text_config().model_type == "gemma2"  # Gemma 3 names a softcap, and computes none
    return ScoreRule(attention.scaling, attention.attn_logit_softcapping if gemma2 else None)


def _attention(module: PreTrainedModel, layer: int) -> Any:
    attention: Any = getattr(decoder_layers(module)[layer], "self_attn", None)
    parts = all(hasattr(attention, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "scaling", "head_dim"))
    gated = parts and (  # a gate among the queries; of quantised linears some name no widths
        getattr(attention.q_proj, "out_features", None) != getattr(attention.o_proj, "in_features", None)
    )
    if not parts or gated:
        raise ModelError(
            f"layer {layer} of this {module.config.get_text_config().model_type} model has no projections of queries, "
            "keys and values of their own to compare with: choose a drafter that reads hidden states"
        )
    return attention


Part = Literal["queries", "keys", "values"]
_PROJECTIONS: Mapping[Part, tuple[str, str]] = {
    "queries": ("q_proj", "q_norm"),
    "keys": ("k_proj", "k_norm"),
    "values": ("v_proj", ""),
}


@contextmanager
def catching_heads(
    module: PreTrainedModel, layers: Sequence[int], parts: Sequence[Part]
) -> Iterator[dict[tuple[int, Part], Tensor]]:
    """While it lasts, every forward pass leaves heads ``[B, heads, T, D]`` of these layers in the mapping.

    Queries and keys are those before the rotary embedding, and after the norm of heads where the family has one.
    """
    caught: dict[tuple[int, Part], Tensor] = {}

    def catch(layer: int, part: Part, attention: Any, module: nn.Module, inputs: object, output: Tensor) -> None:
        heads = output.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        head_norm = getattr(attention, _PROJECTIONS[part][1] or "no norm", None)
        caught[layer, part] = heads if head_norm is None else head_norm(heads)

    with ExitStack() as hooks:
        for layer, part in product(layers, parts):
            attention = _attention(module, layer)
            projection = getattr(attention, _PROJECTIONS[part][0])
            hooks.enter_context(projection.register_forward_hook(partial(catch, layer, part, attention)))
        yield caught
