"""Models that call transformers' own parts: mixtures of experts, and what was changed by users."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

import draftgauge
from command_line import succeeds
from draftgauge.core.errors import ModelError
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.pair.costs import experts_read
from generating import plain_and_speculative, prompt, target_of
from tiny import MIXTURES, one_pass, save_tiny, tiny_model, tokens

TEXT = tokens(24)
FAMILIES = pytest.mark.parametrize("family", MIXTURES)
ENGINES = pytest.mark.parametrize("engine", ["lean", "static"])


def in_parts(cached: CachedModel) -> Tensor:
    return torch.cat((cached.forward(TEXT[:11]), cached.forward(TEXT[11:12]), cached.forward(TEXT[12:])))


def routed(model: PreTrainedModel, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What ``run`` returns, and the experts that every token of its passes goes to, ``[T, layers x experts]``."""
    chosen: dict[int, list[Tensor]] = {}
    handles = [
        layer.mlp.gate.register_forward_hook(
            lambda module, inputs, output, index=index: chosen.setdefault(index, []).append(output[2].sort(-1).values)
        )
        for index, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "experts")
    ]
    result = run()
    for handle in handles:
        handle.remove()
    return result.float(), torch.cat([torch.cat(passes) for passes in chosen.values()], -1)


@FAMILIES
@ENGINES
@pytest.mark.parametrize("how", ["eager", "batched_mm", "grouped_mm"])
def test_every_way_of_transformers_to_run_experts_gives_the_same(family: str, engine: str, how: str) -> None:
    model = tiny_model(family)
    model.set_experts_implementation("eager")
    expected, way = routed(model, lambda: one_pass(model, TEXT))
    assert len(way.unique()) == 4  # every expert is some token's
    model.set_experts_implementation(how)
    torch.testing.assert_close(in_parts(wrap(model, engine)), expected, rtol=1e-4, atol=2e-4)


@FAMILIES
@torch.no_grad()
def test_the_experts_that_passes_read_are_counted(family: str) -> None:
    model = tiny_model(family)
    cached = wrap(model, "lean")
    counted = experts_read(cached, TEXT.tolist(), 5)
    assert cached.length == 0
    assert counted[0] == 2  # experts a token
    for count in (2, 5):
        read = []
        for begin in range(len(TEXT) - count + 1):
            cached.reset()
            if begin:
                cached.forward(TEXT[:begin])
            _, ways = routed(model, lambda a=begin, b=begin + count: cached.forward(TEXT[a:b]))
            read += [len(layer.unique()) for layer in ways.unflatten(1, (-1, 2)).unbind(1)]
        assert counted[count - 1] == pytest.approx(sum(read) / len(read))
    assert list(counted) == sorted(counted)
    assert experts_read(wrap(tiny_model(), "lean"), TEXT.tolist(), 5) == ()


def test_experts_are_counted_where_a_pass_is_split_and_not_where_a_router_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine takes long texts in by parts, of which the last may be shorter than a draft; routers of Llama 4 and
    DBRX return scores alone."""
    model = tiny_model(MIXTURES[0])
    whole = experts_read(wrap(model, "lean"), TEXT.tolist(), 5)
    monkeypatch.setattr("draftgauge.models.engines.lean.PREFILL_CHUNK", 20)
    assert experts_read(wrap(model, "lean"), TEXT.tolist()[:22], 5) == pytest.approx(
        experts_read(wrap(model, "lean"), TEXT.tolist()[:20], 5)
    )
    assert len(whole) == 5
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            gate = layer.mlp.gate
            monkeypatch.setattr(gate, "register_forward_hook", lambda hook: nullcontext())
    assert experts_read(wrap(model, "lean"), TEXT.tolist(), 5) == ()


def test_a_profile_shows_them_beside_what_verifying_takes(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "one and one and one"}) + "\n")
    common = ["--drafter", "prompt_lookup", "--prompts", str(tmp_path / "prompts.jsonl"), "--gamma-max", "3"]
    common += ["--max-new-tokens", "8", "--cost-seconds", "0", "--json", str(tmp_path / "rows.json")]
    for family in ("mixtral", "qwen3"):
        target, out = str(save_tiny(tmp_path / family, family)), str(tmp_path / f"run-{family}")
        shown = succeeds("profile", "--target", target, *common, "--out", out)
        row = json.loads((tmp_path / "rows.json").read_text())["rows"][0]
        assert ("mixture of experts" in shown.stdout) == ("experts_1" in row) == (family == "mixtral")
        if family == "mixtral":
            assert 2 == row["experts_1"] < row["experts_4"] <= 4
            assert row["verify_1_ms"] == row["verify_one_ms"]
            assert row["verify_4_ms"] > 0


@FAMILIES
@ENGINES
def test_a_changed_expert_is_called_as_it_is(family: str, engine: str) -> None:
    """A patched forward and a hook inside the block do what they do in transformers."""
    model = tiny_model(family)
    before, mlp = one_pass(model, TEXT), model.model.layers[1].mlp
    mlp.experts.forward = MethodType(lambda self, x, *routes: 0.5 * type(self).forward(self, x, *routes), mlp.experts)
    mlp.register_forward_hook(lambda module, inputs, output: output + 0.1)
    expected = one_pass(model, TEXT)
    assert (expected - before).abs().max() > 0.1
    torch.testing.assert_close(in_parts(wrap(model, engine)), expected, rtol=1e-4, atol=2e-4)


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
