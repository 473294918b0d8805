"""Live taps against transformers' own hidden states and cache, and features of whole texts against live taps."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models import base
from draftgauge.models.engines import lean
from draftgauge.models.loading import wrap
from draftgauge.models.spec import cache_argument
from draftgauge.models.taps import TapPlan, Taps, attach_taps, batch_features, default_taps, tap_plan
from markov import MarkovModel
from tiny import LEAN, MIXTURES, tiny_model, tiny_multimodal, tokens

LAYERS = 5
FULL = ("qwen3", "qwen2", "llama", "llama3-rope", "mistral", "gemma", "gemma2", "gemma3", *MIXTURES)
ENGINES = [(engine, family) for engine in ("lean", "static") for family in FULL if family in LEAN]
ENGINES += [("modules", family) for family in FULL]


@functools.cache
def target(family: str) -> PreTrainedModel:
    return tiny_model(family, num_hidden_layers=LAYERS)


def one_pass(model: PreTrainedModel, text: Tensor, plan: TapPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states ``[T, S, H]``, keys and values ``[S, KV, T, D]`` of transformers' own forward."""
    cache = DynamicCache()
    with torch.no_grad():
        states = model(
            text[None], use_cache=True, output_hidden_states=True, **cache_argument(model, cache)
        ).hidden_states
    # Of the last one, transformers gives the normed states.
    assert all(layer < LAYERS - 1 for layer in plan.hidden_layers)
    kept = [cache.layers[layer] for layer in plan.kv_layers]
    return (
        torch.stack([states[layer + 1][0] for layer in plan.hidden_layers], 1),
        torch.stack([layer.keys[0] for layer in kept]),
        torch.stack([layer.values[0] for layer in kept]),
    )


def read(taps: Taps, begin: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = taps.keys_values(begin, end)
    return taps.hidden(begin, end), keys, values


def assert_same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)  # of the order of 10


@pytest.mark.parametrize(("engine", "family"), ENGINES)
def test_live_taps_are_transformers_hidden_states_and_cache(engine: str, family: str) -> None:
    model, text = target(family), tokens(40)
    plan = TapPlan((0, 3), tap_plan(model.config, hidden=False, kv=True).kv_layers)
    cached = wrap(model, engine)
    taps = attach_taps(cached, plan)
    begin = 0
    for step in (7, 1, 5, 1, 2, 17, 1, 6):
        cached.forward(tokens(step + 2, seed=step))  # a draft that is rejected
        cached.truncate(begin)
        cached.forward(text[begin : begin + step], last_only=step > 6)
        begin += step
    assert taps.length == 40
    expected = one_pass(model, text, plan)
    assert_same(read(taps, 0, 40), expected)
    assert_same(read(taps, 13, 20), (expected[0][13:20], expected[1][:, :, 13:20], expected[2][:, :, 13:20]))


@pytest.mark.parametrize(
    ("engine", "family"), [("lean", "qwen3"), ("static", "qwen3"), ("modules", "qwen3"), ("modules", "gemma")]
)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_sequence_of_forwards_and_rollbacks(engine: str, family: str, data: st.DataObject) -> None:
    model, plan = target(family), TapPlan((1, 2), (0, 4))
    cached, text = wrap(model, engine), []
    taps = attach_taps(cached, plan)
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            cached.reset()
            text = []
        new = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=9))
        cached.forward(torch.tensor(new))
        text += new
        assert_same(read(taps, 0, len(text)), one_pass(model, torch.tensor(text), plan))
        length = data.draw(st.integers(1, len(text)))
        cached.truncate(length)
        text = text[:length]
        assert_same(read(taps, 0, length), one_pass(model, torch.tensor(text), plan))


@pytest.mark.parametrize(("engine", "family"), ENGINES)
def test_features_of_a_padded_batch_are_the_live_taps(engine: str, family: str) -> None:
    model, texts = target(family), [tokens(23, seed=1), tokens(17, seed=2)]
    plan = tap_plan(model.config, hidden=True, kv=True)
    batch = torch.stack([torch.nn.functional.pad(text, (0, 23 - len(text))) for text in texts])
    features = batch_features(model, batch, plan)
    assert features.hidden is not None
    assert not features.hidden.requires_grad
    assert not features.hidden.is_inference()  # training saves them for backward
    cached = wrap(model, engine)
    taps = attach_taps(cached, plan)
    for row, text in enumerate(texts):
        cached.reset()
        logits = torch.cat((cached.forward(text[:9]), cached.forward(text[9:])))
        own = features.until(len(text))
        assert_same((*read(taps, 0, len(text)), logits), (part[row] for part in vars(own).values()))


@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
def test_taps_do_not_change_the_logits(engine: str) -> None:
    model, text = target("qwen3"), tokens(20)
    plain = wrap(model, engine).forward(text)
    tapped = wrap(model, engine)
    attach_taps(tapped, TapPlan((0, 4), (1,)))
    assert torch.equal(tapped.forward(text), plain)


@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
def test_a_long_prompt_grows_the_store_and_goes_in_pieces(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "FIRST_CAPACITY", 16)
    monkeypatch.setattr(lean, "PREFILL_CHUNK", 10)
    model, text, plan = target("qwen3"), tokens(70), TapPlan((0, 2), (3,))
    cached = wrap(model, engine)
    taps = attach_taps(cached, plan)
    for part in text.split([33, 1, 36]):
        cached.forward(part)
    assert_same(read(taps, 0, 70), one_pass(model, text, plan))


def test_default_layers_are_low_middle_and_high() -> None:
    assert default_taps(36) == (2, 18, 33)
    assert default_taps(8) == (2, 4, 5)
    few = [(0,), (0, 1), (0, 1, 2), (0, 2, 3), (0, 2, 4), (1, 3, 5), (2, 3, 4)]
    assert [default_taps(count) for count in range(1, 8)] == few


def test_keys_come_from_full_attention_layers_unless_told_otherwise() -> None:
    config = tiny_model("gemma2", num_hidden_layers=8).config  # every other layer looks at a window
    assert tap_plan(config, hidden=True, kv=True) == TapPlan((2, 4, 5), (1, 3, 5))
    assert tap_plan(config, hidden=True, kv=False, layers=[2]) == TapPlan((2,), ())
    with pytest.raises(
        ModelError, match=r"layer 2 of this gemma2 attends within a window of 8 tokens.*full attention, 1, 3, 5, 7"
    ):
        tap_plan(config, hidden=True, kv=True, layers=[1, 2])
    sliding = tiny_model("mistral-sliding").config
    assert tap_plan(sliding, hidden=True, kv=False) == TapPlan((0, 1), ())
    with pytest.raises(ModelError, match="choose a target with full attention"):
        tap_plan(sliding, hidden=False, kv=True)


@pytest.mark.parametrize(
    ("model", "layers", "message"),
    [
        ({}, [0, 2], r"no layer 2 to tap: this qwen3 has 2, counted from 0 to 1"),
        ({}, [-1], "no layer -1"),
        ({}, [1, 1], "each once"),
        ({}, [], "none at all"),
        ({"family": "deepseek_v3"}, None, "this deepseek_v3 caches a latent"),
        (
            {"family": "llama", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            None,
            "dynamic",
        ),
    ],
)
def test_what_cannot_be_tapped_is_refused(model: dict, layers: list[int] | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tap_plan(tiny_model(**model).config, hidden=True, kv=True, layers=layers)


def test_a_plan_for_another_model_and_a_wrapped_model_are_refused() -> None:
    with pytest.raises(ModelError, match="no layer 6"):
        attach_taps(wrap(tiny_model()), TapPlan(hidden_layers=(6,)))
    with pytest.raises(ModelError, match="not for a MarkovModel"):
        attach_taps(MarkovModel.random(3, seed=0), TapPlan())


def test_the_text_model_of_a_multimodal_target_is_tapped() -> None:
    text = tiny_model("gemma3", num_hidden_layers=LAYERS)
    model = tiny_multimodal(text)
    plan = tap_plan(model.config, hidden=True, kv=True)
    assert plan == tap_plan(text.config, hidden=True, kv=True)
    found = []
    for target_model in (model, text):
        cached = wrap(target_model)
        taps = attach_taps(cached, plan)
        logits = cached.forward(tokens(20))
        found.append((logits, *read(taps, 0, 20)))
    assert_same(*found)
