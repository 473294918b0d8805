"""A model's cache is handed over under the name that the installed transformers has for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, batch_features
from draftgauge.training.reuse.generate import greedy_answers
from tiny import tiny_model, tokens


@pytest.fixture(autouse=True)
def no_old_names() -> Iterator[None]:
    """Arguments that transformers wants to get rid of are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        yield


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_modules_take_their_cache_by_its_present_name(family: str) -> None:
    model = wrap(tiny_model(family), "modules")
    text = tokens(6)
    whole = model.forward(text)
    assert model.length == 6
    model.truncate(3)
    assert torch.allclose(model.forward(text[3:]), whole[3:], atol=1e-5)
    drafted = model.branches(torch.tensor([3, 5])).step(text[[3, 5]])
    assert torch.allclose(drafted, whole[[3, 5]], atol=1e-5)


def test_batches_take_their_cache_by_its_present_name() -> None:
    module = tiny_model("qwen3")
    text = tokens(6)
    features = batch_features(module, text[None], TapPlan(kv_layers=(0,)))
    assert features.keys is not None
    assert features.keys.shape[-2] == 6
    answer = greedy_answers(module, [text.tolist()], new_tokens=2, end_tokens=())
    assert answer[0][0] == int(features.logits.reshape(-1, features.logits.shape[-1])[-1].argmax())
