"""The bundled pair is what the recipe makes: right answers, states of moderate size, templates of their split alone."""

from __future__ import annotations

import json

import pytest

from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import PAIR_FOLDER
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import encode_prompt, end_tokens
from recipes.reference_pair import measures
from recipes.reference_pair.recipe import SEALED_NAME
from recipes.reference_pair.tasks.base import split_of

SPLITS = ("train", "validation", "test")
TASKS = ("code", "math", "chat", "summarization")
# What a test of few prompts can hold it to; the card has the figures over all of them.
RIGHT_AT_LEAST = {"code": 0.55, "math": 0.7, "chat": 0.5, "summarization": 0.8}


def prompts(split: str) -> list[dict[str, object]]:
    path = PAIR_FOLDER / SEALED_NAME if split == "sealed" else PAIR_FOLDER / "prompts" / f"{split}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return load_model("reference", device="cpu")


def test_templates_of_prompts_are_of_their_split_alone() -> None:
    for split in (*SPLITS, "sealed"):
        assert {split_of(str(row["template"])) for row in prompts(split)} == {split}


def test_its_states_are_of_moderate_size(target: CachedModel) -> None:
    tokenizer = load_tokenizer("reference")
    texts = [encode_prompt(tokenizer, row["messages"]) for row in prompts("validation")[::12]]
    rows = measures.state_rms(target, texts)
    assert [row["layer"] for row in rows] == list(range(target.module.config.num_hidden_layers + 1))
    for row in rows:
        assert 0.1 <= row["rms"] <= 5, row


@pytest.mark.parametrize("task", TASKS)
def test_its_answers_are_right(target: CachedModel, task: str) -> None:
    tokenizer = load_tokenizer("reference")
    settings = DecodingSettings(max_new_tokens=200, end_tokens=end_tokens(target, tokenizer))
    checked = measures.checks(PAIR_FOLDER / "prompts" / "validation.jsonl")
    rows = [row for row in prompts("validation") if row["task"] == task][:6]
    outputs = [plain_decode(target, encode_prompt(tokenizer, row["messages"]), settings).tokens for row in rows]
    answers = [tokenizer.decode(output, skip_special_tokens=True) for output in outputs]
    right = measures.right_shares([task] * len(rows), [checked[str(row["id"])] for row in rows], answers)
    assert sum(right) / len(right) >= RIGHT_AT_LEAST[task]
