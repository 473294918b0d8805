"""Models that are no longer what transformers made: the lean engines refuse them, and auto falls back and says so."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.loading import wrap
from tiny import one_pass, tiny_model, tokens


class Doubled(nn.Linear):
    """Some adapter."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Subclass(Tensor):
    """Some quantised or sharded weight."""


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


def test_a_model_that_was_asked_for_its_hidden_states_is_unchanged() -> None:
    model = tiny_model("qwen3")
    with torch.no_grad():
        model(tokens(4)[None], output_hidden_states=True)
    assert wrap(model).spec.engine == "lean"
