"""What chosen layers of a target compute while it takes in tokens: hidden states, queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def watching(module: PreTrainedModel, layers: Sequence[int], take: Callable[[int, Tensor], object]) -> Iterator[None]:
    """Inside the block ``take(layer, states)`` gets the output ``[B, k, H]`` of each of these decoder layers."""
    blocks = decoder_layers(module)

    def look(layer: int, block: nn.Module, inputs: object, output: Tensor) -> None:
        take(layer, output)  # and return nothing: it would replace the output

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(blocks[layer].register_forward_hook(partial(look, layer)))
        yield


def decoder_layers(module: PreTrainedModel) -> nn.ModuleList:
    return module.get_decoder().layers


@dataclass(frozen=True)
class ScoreRule:
    """How a layer turns the product of a query and a key into a score; ``softcap`` bounds it (Gemma 2)."""

    scaling: float
    softcap: float | None = None

    def __call__(self, products: Tensor) -> Tensor:
        scores = products * self.scaling
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def score_rule(module: PreTrainedModel, layer: int) -> ScoreRule:
    attention: Any = decoder_layers(module)[layer].self_attn
    gemma2 = module.config.get_text_config().model_type == "gemma2"  # Gemma 3 names a softcap, and computes none
    return ScoreRule(attention.scaling, attention.attn_logit_softcapping if gemma2 else None)


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
            attention: Any = decoder_layers(module)[layer].self_attn
            projection = getattr(attention, _PROJECTIONS[part][0])
            hooks.enter_context(projection.register_forward_hook(partial(catch, layer, part, attention)))
        yield caught
