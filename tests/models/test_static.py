"""The static engine: no shape and no operation depends on how long the text is, so that a pass can be recorded."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.base import UnreadDraft
from draftgauge.models import base
from draftgauge.models.engines import static
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, attach_taps
from draftgauge.policies.fixed import FixedLength
from tiny import tiny_model, tokens


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
