"""Both engines against a fresh forward pass of transformers."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models import base
from draftgauge.models.base import CachedModel
from draftgauge.models.engines import packing
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.loading import wrap
from tiny import ATTENTION, FAMILIES, LEAN, MIXTURES, one_pass, tiny_model, tokens

# "lean-packed" is the lean engine with all its linears packed: tiny ones are not, unless told to
ENGINES = [(engine, family) for engine in ("lean", "static") for family in LEAN]
ENGINES += [("modules", family) for family in FAMILIES]
# with every kind of attention
MAIN = [("lean", "qwen3"), ("lean-packed", "llama-biases"), ("static", "qwen3"), ("static-packed", "llama-biases")]
MAIN += [("lean", "mistral-sliding"), ("static", "qwen3-sliding"), ("modules", "mistral-sliding")]
MAIN += [("modules", "gemma2"), ("lean", "gemma2"), ("static", "gemma3")]
ATTENTION_KINDS = [(*pair, "gqa") for pair in ENGINES] + [
    (*pair, kind) for pair in MAIN for kind in ATTENTION if kind != "gqa"
]
ATTENTION_KINDS += [("lean-packed", family, "gqa") for family in ("qwen3", "llama-biases", "gemma2", "gemma3")]
ATTENTION_KINDS += [("lean", "llama", "mqa")]


@functools.cache
def one_model(family: str) -> PreTrainedModel:
    """The same model for all examples of a property."""
    return tiny_model(family)


def build(model: PreTrainedModel, engine: str) -> CachedModel:
    with pytest.MonkeyPatch.context() as patch:
        if engine == "lean-packed":
            patch.setattr(packing, "PACK_FROM", 0)
        cached = wrap(model, engine.removesuffix("-packed"))
    if isinstance(cached, StaticModel):
        cached.first_bucket = 8  # so that short texts go through several buckets
    return cached


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize(("engine", "family", "attention"), ATTENTION_KINDS)
def test_incremental_logits_with_rollbacks_equal_one_pass(engine: str, family: str, attention: str) -> None:
    model, text = tiny_model(family, attention), tokens(40)
    expected = one_pass(model, text)
    cached = build(model, engine)
    rows, begin = [], 0
    for step in (7, 1, 5, 1, 2, 17, 1, 6):
        cached.forward(tokens(step + 2, seed=step))  # a draft that is rejected
        assert cached.length == begin + step + 2
        cached.truncate(begin)
        rows.append(cached.forward(text[begin : begin + step]))
        begin += step
    assert cached.length == 40
    assert_same(torch.cat(rows), expected)


def check_branches(
    cached: CachedModel, text: Tensor, starts: Tensor, tokens: Tensor, kept: tuple[int, list[int]]
) -> None:
    """Tokens ``[N, depths]`` of branches off a text give logits of fresh passes; from a depth on some are kept."""
    whole = [one_pass(cached.module, torch.cat((text[:s], b)))[s:] for s, b in zip(starts, tokens, strict=True)]
    session, rows = cached.branches(starts), torch.arange(len(starts))
    for depth in range(tokens.shape[1]):
        if depth == kept[0]:
            rows = torch.tensor(kept[1])
            session.keep(rows)
        assert_same(session.step(tokens[rows, depth]), torch.stack(whole)[rows, depth])


@pytest.mark.parametrize(("engine", "family", "attention"), ATTENTION_KINDS)
def test_branches_equal_fresh_forwards(engine: str, family: str, attention: str) -> None:
    model, text = tiny_model(family, attention), tokens(30)
    starts = torch.tensor([1, 4, 12, 12, 29, 30])
    branches = tokens(6 * 4, seed=1).view(6, 4)
    cached = build(model, engine)
    cached.forward(text)
    check_branches(cached, text, starts, branches, (2, [4, 0, 3]))
    assert cached.length == 30
    following = tokens(3, seed=2)
    assert_same(cached.forward(following), one_pass(model, torch.cat((text, following)))[-3:])


@pytest.mark.parametrize(("engine", "family"), MAIN)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_sequence_of_forwards_and_rollbacks_equals_a_fresh_one(
    engine: str, family: str, data: st.DataObject
) -> None:
    model = one_model(family)
    cached, text = build(model, engine), []
    for _ in range(data.draw(st.integers(1, 5))):
        new = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=9))
        logits = cached.forward(torch.tensor(new))
        text += new
        torch.testing.assert_close(logits, one_pass(model, torch.tensor(text))[-len(new) :], rtol=1e-4, atol=5e-4)
        length = data.draw(st.integers(0, len(text)))
        cached.truncate(length)
        text = text[:length]
        assert cached.length == len(text)


@pytest.mark.parametrize("engine", ["lean", "lean-packed", "static"])
def test_tied_embeddings(engine: str) -> None:
    model, text = tiny_model(tie_word_embeddings=True), tokens(9)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert_same(build(model, engine).forward(text), one_pass(model, text))


@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
def test_a_text_longer_than_the_context_is_refused_and_nothing_is_lost(engine: str) -> None:
    model = tiny_model(max_position_embeddings=24)
    cached = wrap(model, engine)
    cached.forward(tokens(20))
    with pytest.raises(ModelError, match="25 tokens exceeds the 24"):
        cached.forward(tokens(5))
    assert cached.length == 20
    session = cached.branches(torch.tensor([10, 20]))
    for _ in range(4):
        session.step(torch.tensor([1, 2]))
    with pytest.raises(ModelError, match="25 tokens exceeds the 24"):
        session.step(torch.tensor([1, 2]))
    session.keep(torch.tensor([0]))
    assert session.step(torch.tensor([1])).shape == (1, 96)
    assert cached.forward(tokens(4)).shape == (4, 96)


@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
@pytest.mark.parametrize("start", [0, 6])
def test_branches_outside_the_cached_text_are_refused(engine: str, start: int) -> None:
    cached = wrap(tiny_model(), engine)
    cached.forward(tokens(5))
    with pytest.raises(ModelError, match=r"1\.\.5 cached tokens"):
        cached.branches(torch.tensor([3, start]))


def test_lean_cache_grows_past_its_first_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "FIRST_CAPACITY", 512)
    model = tiny_model(max_position_embeddings=1300, num_hidden_layers=1)
    text = tokens(1250)
    cached = wrap(model, "lean")
    rows = torch.cat([cached.forward(part) for part in text.split(417)])  # capacity 512, then 1024, then 1300
    torch.testing.assert_close(rows, one_pass(model, text), rtol=1e-4, atol=5e-4)
    session = cached.branches(torch.tensor([1250, 600]))
    theirs = [one_pass(model, torch.cat((text, text[:1])))[-1], one_pass(model, torch.cat((text[:600], text[1:2])))[-1]]
    assert_same(session.step(text[:2]), torch.stack(theirs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [family for family in LEAN if family not in MIXTURES])
def test_half_precision_agrees_up_to_its_rounding(family: str, dtype: torch.dtype) -> None:
    exact, text = one_pass(tiny_model(family), tokens(24)), tokens(24)
    model = tiny_model(family).to(dtype)
    error = (one_pass(model, text).float() - exact).norm()
    for engine in ("lean", "lean-packed", "static", "modules"):
        cached = build(model, engine)
        ours = torch.cat((cached.forward(text[:11]), cached.forward(text[11:12]), cached.forward(text[12:])))
        assert ours.dtype == torch.float32
        assert cached.spec.dtype == dtype
        assert (ours - exact).norm() < 1.5 * error  # no further from the truth than transformers in one pass
        branched = cached.branches(torch.tensor([10, 23])).step(text[[10, 23]])
        assert (branched - exact[[10, 23]]).norm() < 2 * error


class WithoutWeight(torch.nn.Module):
    """A quantised linear as GPTQ and AWQ have it: no ``weight``, on a CPU too."""

    bias = None

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.register_buffer("qweight", linear.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.qweight.T


def test_linears_without_a_weight_are_called_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_FROM", 0)
    model, text = tiny_model("llama"), tokens(12)
    expected = one_pass(model, text)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if type(linear) is torch.nn.Linear:
                    setattr(part, name, WithoutWeight(linear))
    cached = wrap(model)
    assert cached.spec.engine == "lean"
    assert_same(cached.forward(text), expected)


def test_fusing_leaves_the_transformers_model_as_it_was_and_holds_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "COPY_LIMIT", 0)
    model, text = tiny_model("qwen2"), tokens(12)
    before = one_pass(model, text)
    cached = wrap(model, "lean")
    assert cached.module is model
    assert torch.equal(one_pass(model, text), before)
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage().data_ptr() == attention.v_proj.weight.untyped_storage().data_ptr()


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
BY_KIND = {"full_attention": dict(DYNAMIC), "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"family": "cohere"}, "CohereForCausalLM is not one of"),
        ({"family": "gemma2", "hidden_activation": "relu"}, "activation is relu"),
        ({"family": "gemma2", "use_bidirectional_attention": True}, "see those behind them"),
        ({"family": "gemma3", "rope_parameters": BY_KIND}, r"rotary embeddings \(dynamic\) depend on the length"),
        ({"hidden_act": "gelu"}, "activation is gelu"),
        ({"family": "llama", "rope_parameters": DYNAMIC}, "depend on the length"),
    ],
)
def test_the_lean_engine_says_why_it_refuses(overrides: dict, reason: str) -> None:
    model = tiny_model(**overrides)
    with pytest.raises(ModelError, match=reason):
        wrap(model, "lean")
    assert wrap(model).spec.engine == "modules"
