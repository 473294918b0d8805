"""Models that are no longer what transformers made: the lean engines refuse them, and auto falls back and says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

import draftgauge
from draftgauge.core.errors import ModelError
from draftgauge.models.loading import wrap
from generating import plain_and_speculative, prompt, target_of
from tiny import one_pass, tiny_model, tokens


class Doubled(nn.Linear):
    """Some adapter."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Subclass(Tensor):
    """Some quantised or sharded weight."""


class Halves(Tensor):
    """A quantised weight, with what it holds inside."""

    @classmethod
    def of(cls, half: Tensor) -> Tensor:
        made = Tensor._make_wrapper_subclass(cls, half.shape, dtype=half.dtype)
        made.half = half
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls.of(args[0].half)
        return function(*tree_map(lambda each: 2 * each.half if type(each) is cls else each, args), **(kwargs or {}))


def replace_a_forward(model: PreTrainedModel) -> None:
    mlp = model.model.layers[1].mlp
    mlp.forward = MethodType(lambda self, x: 0 * x, mlp)


def hook_a_layer(model: PreTrainedModel) -> None:
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output * 0)


def hook_an_input(model: PreTrainedModel) -> None:
    model.model.norm.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0,))


def another_norm(model: PreTrainedModel) -> None:
    class OtherNorm(type(model.model.norm)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return x

    model.model.norm.__class__ = OtherNorm


def a_subclass(model: PreTrainedModel) -> None:
    weight = model.model.embed_tokens.weight
    model.model.embed_tokens.weight = nn.Parameter(weight.data.as_subclass(Subclass))


def another_dtype(model: PreTrainedModel) -> None:
    model.model.layers[0].input_layernorm.to(torch.bfloat16)


CHANGES = [
    (replace_a_forward, r"model\.layers\.1\.mlp has had its forward replaced"),
    (hook_a_layer, r"model\.layers\.0 has hooks"),
    (hook_an_input, r"model\.norm has hooks"),
    (another_norm, r"model\.norm is a OtherNorm"),
    (a_subclass, r"embed_tokens\.weight is a Subclass"),
    (another_dtype, r"input_layernorm\.weight is torch\.bfloat16, and the embeddings torch\.float32"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=lambda part: getattr(part, "__name__", ""))
def test_a_changed_model_falls_back_to_modules_and_says_so(
    change: Callable[[PreTrainedModel], None], reason: str
) -> None:
    model = tiny_model("llama")
    wrap(model, "lean")
    change(model)
    for engine in ("lean", "static"):
        with pytest.raises(ModelError, match=reason):
            wrap(model, engine)
    with pytest.warns(UserWarning, match=f"modules run this llama model: .*{reason}"):
        assert wrap(model).spec.engine == "modules"


def test_a_forward_patched_on_the_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda self, x: 0 * x)
    with pytest.raises(ModelError, match="has had its forward replaced"):
        wrap(model, "lean")


@pytest.mark.parametrize("engine", ["lean", "static"])
def test_a_linear_of_another_kind_is_called_as_it_is(engine: str) -> None:
    model, text = tiny_model("llama"), tokens(9)
    down = model.model.layers[1].mlp.down_proj
    down.__class__ = Doubled
    torch.testing.assert_close(wrap(model, engine).forward(text), one_pass(model, text), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("kind", "engine"), [(Doubled, "lean"), (Doubled, "static"), (nn.Linear, "modules")])
def test_weights_of_a_subclass_are_not_looked_into(kind: type[nn.Linear], engine: str) -> None:
    model = copy.deepcopy(target_of("qwen3"))
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.__class__, part.weight = kind, nn.Parameter(Halves.of(part.weight.data / 2), requires_grad=False)
    for drafter in (model, "prompt_lookup"):
        speculation = draftgauge.speculative(drafter, "fixed:3", engine=engine)
        for _ in range(2):
            assert torch.equal(*plain_and_speculative(model, speculation, inputs=prompt(), max_new_tokens=12))


def test_a_model_that_was_asked_for_its_hidden_states_is_unchanged() -> None:
    model = tiny_model("qwen3")
    with torch.no_grad():
        model(tokens(4)[None], output_hidden_states=True)
    assert wrap(model).spec.engine == "lean"
