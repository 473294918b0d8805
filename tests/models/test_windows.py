"""Lean and static engines: sliding windows, soft caps, recorded passes of one shape, and rotation of keys."""

from __future__ import annotations

import copy
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.base import UnreadDraft
from draftgauge.drafters.reuse.rotary import RotaryTables, rotate, target_rotary, window
from draftgauge.models import base
from draftgauge.models.base import text_decoder
from draftgauge.models.engines import static
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_weights import window_of
from draftgauge.models.engines.static import StaticModel, StaticRows
from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, attach_taps, ordered
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


class Log(TorchDispatchMode):
    """Every operation with the shapes and strides of what goes in and comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = [part for part in (*args, result) if isinstance(part, Tensor)]
        numbers = [
            [type(each) if isinstance(each, Tensor) else each for each in part] if isinstance(part, list) else part
            for part in args
            if isinstance(part, int | list | tuple) and func.__name__ != "fill_.Scalar"
        ]
        shapes = [(tuple(part.shape), part.stride(), part.storage_offset()) for part in parts]
        self.entries.append((func.__name__, str(numbers), shapes))
        return result


def logged(model: StaticModel, length: int, count: int) -> list[tuple[Any, ...]]:
    """What a pass of ``count`` tokens after ``length`` ones does, the second time."""
    text = tokens(length + count, seed=1)
    for _ in range(2):
        model.reset()
        model.forward(text[:length])
        new = text[length:].clone()
        with Log() as log:
            model.forward(new)
    return log.entries


@pytest.mark.parametrize("taps", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("family", ["qwen3", "qwen3-sliding", "gemma2", "gemma3"])
def test_the_same_operations_on_the_same_shapes_at_two_lengths(family: str, count: int, taps: bool) -> None:
    model = StaticModel(tiny_model(family))
    if taps:
        attach_taps(model, TapPlan((0, 1)))
    first, second = logged(model, 40, count), logged(model, 83, count)
    assert len(first) > 20
    assert first == second


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Memory and shape of each pass of fixed shape that runs."""
    seen, run = [], static.run_pass

    def logged(weights: Any, memory: Any, shape: Any, *given: Tensor) -> Tensor:
        seen.append((weakref.ref(memory.cache), shape))
        return run(weights, memory, shape, *given)

    monkeypatch.setattr(static, "run_pass", logged)
    return seen


def test_buckets_double_with_the_text_up_to_the_capacity(monkeypatch: pytest.MonkeyPatch, passes: list[Any]) -> None:
    monkeypatch.setattr(base, "FIRST_CAPACITY", 64)
    model = StaticModel(tiny_model("llama", max_position_embeddings=200))
    model.first_bucket = 16
    text, expected = tokens(200), wrap(tiny_model("llama", max_position_embeddings=200), "modules")
    for token in text.split(4):
        torch.testing.assert_close(model.forward(token), expected.forward(token), rtol=1e-4, atol=5e-4)
    assert list(dict.fromkeys(shape.bucket for _, shape in passes)) == [16, 32, 64, 128, 200]
    kept = [shape.bucket for cache, shape in passes if cache() is not None]
    assert set(kept) == {200}  # memory that was outgrown is freed


def test_a_long_prompt_runs_as_the_lean_engines(passes: list[Any]) -> None:
    model = StaticModel(tiny_model())
    model.forward(tokens(static.STATIC_TOKENS + 1))
    assert passes == []
    model.forward(tokens(static.STATIC_TOKENS))
    assert len(passes) == 1


def test_logits_are_not_overwritten_by_the_next_pass() -> None:
    model = StaticModel(tiny_model())
    first = model.forward(tokens(3))
    kept = first.clone()
    model.forward(tokens(3, seed=1))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("end", [None, 2, 3])
def test_drafts_stay_unread_and_end_where_they_would_have_ended(end: int | None) -> None:
    """An end token inside a draft that was not read ends draft, acceptance and output as in one that was."""
    prompt = tokens(10, seed=2).tolist()
    free = plain_decode(wrap(tiny_model(), "lean"), prompt, DecodingSettings(24)).tokens
    ends = frozenset() if end is None else frozenset({free[end]})
    found, settings = [], DecodingSettings(24, end_tokens=ends)
    for engine in ("lean", "static"):
        drafter = LanguageModelDrafter(wrap(tiny_model(), engine), ends)
        result = speculative_decode(wrap(tiny_model(), engine), drafter, FixedLength(5), prompt, settings)
        drafter.prefill(prompt)
        assert isinstance(drafter.propose_unread(3), UnreadDraft) == (engine == "static")
        counts = [(step.drafted, step.accepted, step.committed) for step in result.steps]
        found.append((result.tokens, result.origins, counts))
    assert found[0] == found[1]
    assert result.finish == ("length" if end is None else "stop")


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "glm4", "cohere2", "ernie4_5", "nemotron", "stablelm"])
def test_reordered_keys_rotate_as_the_family_rotates_them(kind: str) -> None:
    model = tiny_model(kind)
    width, apply = 16, sys.modules[type(text_decoder(model)).__module__].apply_rotary_pos_emb
    tables = RotaryTables(target_rotary(model, {}, "", width), width)(9, torch.empty(0))
    heads = torch.randn(1, 2, 9, width)
    cos, sin = model.model.rotary_emb(heads, torch.arange(9)[None])
    part = cos.shape[-1] if kind in ("nemotron", "stablelm") else width  # the part that turns
    turned = torch.cat((apply(heads[..., :part], heads[..., :part], cos, sin)[1], heads[..., part:]), -1)
    torch.testing.assert_close(rotate(ordered(model, heads), window(tables, 0, 9)), ordered(model, turned))
    assert kind in ("llama", "gpt_oss") or not torch.equal(ordered(model, heads), heads)


def test_keys_whose_rotation_is_not_known_are_refused() -> None:
    with pytest.raises(ModelError, match="not known how this gpt2 model tells the positions of its keys"):
        ordered(tiny_model("gpt2", attention="mha", intermediate_size=None), torch.ones(1, 16))
