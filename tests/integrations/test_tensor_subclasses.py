"""Weights of a tensor subclass, as quantisers make them: not looked into, and decoded as ``generate`` decodes them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

import draftgauge
from generating import draft_of, plain_and_speculative, prompt, target_of


class Whole(Tensor):
    """Whole numbers and a scale."""

    whole: Tensor
    scale: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Whole:
        made: Whole = Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)
        made.scale = weight.abs().max() / 127
        made.whole = (weight / made.scale).round()
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return Whole.of(args[0].whole * args[0].scale)
        plain = tree_map(lambda each: each.whole * each.scale if isinstance(each, Whole) else each, args)
        return function(*plain, **(kwargs or {}))


class WholeLinear(nn.Linear):
    """A linear of a class of its own, which the lean engines call as it is."""


def quantised(model: PreTrainedModel, kind: type[nn.Linear]) -> PreTrainedModel:
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.__class__, part.weight = kind, nn.Parameter(Whole.of(part.weight.data), requires_grad=False)
    return model


@pytest.mark.parametrize(("kind", "engine"), [(WholeLinear, "lean"), (WholeLinear, "static"), (nn.Linear, "modules")])
def test_weights_of_a_subclass_decode_as_generate_decodes_them(kind: type[nn.Linear], engine: str) -> None:
    target, draft = quantised(target_of("qwen3"), kind), quantised(draft_of("qwen3"), kind)
    speculation = draftgauge.speculative(draft, "fixed:3", engine=engine)
    for seed in range(2):
        assert torch.equal(*plain_and_speculative(target, speculation, inputs=prompt(seed=seed), max_new_tokens=12))
