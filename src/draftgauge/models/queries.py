"""The queries with which chosen layers of a target attend, caught while it takes in texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
        """Scores of products."""
        scores = products * self.scaling
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def score_rule(module: PreTrainedModel, layer: int) -> ScoreRule:
    """Of a decoder layer."""
    attention: Any = decoder_layers(module)[layer].self_attn
    return ScoreRule(attention.scaling, getattr(attention, "attn_logit_softcapping", None))


@contextmanager
def catching_queries(module: PreTrainedModel, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """While it lasts, every forward pass leaves the queries ``[B, Q, T, D]`` of these layers in the mapping.

    They are those before the rotary embedding, and after the norm of heads where the family has one.
    """
    caught: dict[int, Tensor] = {}

    def hook(layer: int, attention: Any) -> Callable[[nn.Module, object, Tensor], None]:
        head_norm = getattr(attention, "q_norm", None)

        def catch(part: nn.Module, inputs: object, output: Tensor) -> None:
            heads = output.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            caught[layer] = heads if head_norm is None else head_norm(heads)

        return catch

    attentions: dict[int, Any] = {layer: decoder_layers(module)[layer].self_attn for layer in layers}
    handles = [part.q_proj.register_forward_hook(hook(layer, part)) for layer, part in attentions.items()]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
