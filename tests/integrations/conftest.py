"""A tiny target and a draft that resembles it."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from generating import draft_of, target_of


@pytest.fixture
def target() -> PreTrainedModel:
    return target_of("qwen3")


@pytest.fixture
def draft() -> PreTrainedModel:
    return draft_of("qwen3")
