"""Queries, keys and values of chosen layers of a target, caught while it takes in texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.models.hidden import decoder_layers


@dataclass(frozen=True)
class ScoreRule:
    """How a layer turns the product of a query and a key into a score before the softmax.

    Attributes:
        scaling: of the product.
        softcap: scores are bounded by it (Gemma 2), or None.
    """

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

    def hook(layer: int, part: Part, attention: Any) -> Callable[[nn.Module, object, Tensor], None]:
        head_norm = getattr(attention, _PROJECTIONS[part][1] or "no norm", None)

        def catch(projection: nn.Module, inputs: object, output: Tensor) -> None:
            heads = output.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            caught[layer, part] = heads if head_norm is None else head_norm(heads)

        return catch

    with ExitStack() as hooks:
        for layer, part in product(layers, parts):
            attention: Any = decoder_layers(module)[layer].self_attn
            projection = getattr(attention, _PROJECTIONS[part][0])
            hooks.enter_context(projection.register_forward_hook(hook(layer, part, attention)))
        yield caught
