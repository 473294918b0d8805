"""Layers that differ in the lean and the static engine: sliding windows past their edge, soft caps, several bases."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_weights import window_of
from draftgauge.models.engines.static import StaticRows
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from models.test_engines import assert_same, build, check_branches
from tiny import noisy, one_pass, tiny_model, tokens

MIXED: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 0, "num_hidden_layers": 3}
MIXED |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
# A scale of scores that is not the heads' own, and caps that bite.
GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 24, "final_logit_softcapping": 6.0, "num_hidden_layers": 3}
SLIDING: dict[str, dict[str, Any]] = {"mistral": {}, "qwen2": MIXED, "qwen3": MIXED}
SLIDING |= {"gemma2": {**GEMMA, "attn_logit_softcapping": 1.5}, "gemma3": {**GEMMA, "sliding_window_pattern": 2}}
MANY = 28  # tokens, beyond every window
FAMILIES = pytest.mark.parametrize("family", SLIDING)
ENGINES = pytest.mark.parametrize("engine", ["lean", "static"])


def sliding(family: str, window: int, seed: int = 0) -> PreTrainedModel:
    return tiny_model(family, seed=seed, sliding_window=window, **SLIDING[family])


def test_windows_are_read_as_transformers_reads_them() -> None:
    assert window_of(tiny_model("mistral", sliding_window=None).config) is None
    assert window_of(tiny_model("mistral", sliding_window=9).config) == (9, (True, True))
    assert window_of(tiny_model("qwen2", sliding_window=9).config) is None  # it is switched off
    assert window_of(sliding("qwen3", 5).config) == (5, (True, False, True))
    experts = {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
    assert window_of(tiny_model("qwen2_moe", sliding_window=8, **experts).config) == (8, (True, False))


@FAMILIES
@pytest.mark.parametrize(("engine", "window", "length"), [("lean", 8, 30), ("static", 16, 5)])
def test_outputs_far_beyond_the_window_are_those_of_generate(
    engine: str, family: str, window: int, length: int
) -> None:
    model, prompt, settings = sliding(family, window), tokens(length, seed=2).tolist(), DecodingSettings(MANY)
    expected = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=MANY, pad_token_id=0, eos_token_id=None
    )[0, length:].tolist()
    target, drafter = build(model, engine), LanguageModelDrafter(build(noisy(copy.deepcopy(model), 0.15), engine))
    assert plain_decode(target, prompt, settings).tokens == expected
    result = speculative_decode(target, drafter, FixedLength(5), prompt, settings)
    assert result.tokens == expected
    accepted = {step.accepted for step in result.steps}
    assert len(accepted) > 1, "every step went alike: rolling back was not tried"


@FAMILIES
@ENGINES
def test_rolling_back_anywhere_around_the_edge(engine: str, family: str) -> None:
    model, text = sliding(family, 8), tokens(24, seed=4)
    expected = one_pass(model, text)
    cached = build(model, engine)
    for begin in range(13):
        for count in (1, 2, 5, 11):
            cached.reset()
            cached.forward(text[:begin]) if begin else None
            cached.forward(tokens(count + 1, seed=begin + count))  # a draft that is rejected
            cached.truncate(begin)
            rows = cached.forward(text[begin : begin + count])
            assert_same(rows, expected[begin : begin + count])


@FAMILIES
@ENGINES
@pytest.mark.parametrize("window", [1, 8])
def test_branches_longer_than_the_window(engine: str, family: str, window: int) -> None:
    model, text, deep = sliding(family, window), tokens(14), tokens(4 * 12, seed=1).view(4, 12)
    starts = torch.tensor([1, 4, 13, 14])
    cached = build(model, engine)
    cached.forward(text)
    check_branches(cached, text, starts, deep, (5, [3, 1]))


@FAMILIES
def test_texts_side_by_side_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    monkeypatch.setattr(StaticRows, "first_bucket", 8)
    model = sliding(family, 8)
    texts = [tokens(length, seed=length) for length in (5, 23, 9, 8, 40)]
    static_side = StaticRows(LeanModel(model), 5, 48)
    for row, text in enumerate(texts):
        static_side.prefill(row, text[: row + 1].tolist())
    feed = [text[row + 1 :] for row, text in enumerate(texts)]
    counts = [len(each) for each in feed]
    together = static_side.step(range(5), counts, torch.cat(feed)).split(counts)
    for row, text in enumerate(texts):
        expected = one_pass(model, text)
        assert_same(together[row], expected[row + 1 :])
    few = {3: tokens(4, seed=7), 4: tokens(1, seed=8)}
    together = static_side.step(list(few), [4, 1], torch.cat(list(few.values()))).split([4, 1])
    for (row, fed), logits in zip(few.items(), together, strict=True):
        assert_same(logits, one_pass(model, torch.cat((texts[row], fed)))[-len(fed) :])


@pytest.mark.parametrize(
    ("family", "overrides", "reason"),
    [
        ("llama", {"sliding_window": 8}, "llama does not have"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layers of chunked_attention"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 2}, "its sliding_window is None"),
    ],
)
def test_other_windows_are_refused(family: str, overrides: dict, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        wrap(tiny_model(family, **overrides), "lean")
