"""The bundled pair: small, loads plainly, is worth speculating with, and its prompts are what the card says."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import draftgauge
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import PAIR_FOLDER, PARTS, bundled_questions, reference_path
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import check_same_vocabulary, encode_prompt, end_tokens
from draftgauge.policies import make_policy
from draftgauge.traces.trace import gram_counts

SPLITS = ("train", "validation", "test")
PACKAGE = Path(draftgauge.__file__).parent
README = Path(__file__).resolve().parents[2] / "README.md"
TASKS = ("code", "math", "chat", "summarization")


def prompts(split: str) -> list[dict[str, object]]:
    path = PAIR_FOLDER / "sealed.jsonl" if split == "sealed" else PAIR_FOLDER / "prompts" / f"{split}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return load_model("reference", device="cpu")


def test_the_package_fits_in_a_wheel() -> None:
    """Of less than 25 MB, as CONTRIBUTING.md says."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(len(zlib.compress(path.read_bytes(), 1)) for path in files) < 25e6


def test_it_loads_without_this_package() -> None:
    for part in PARTS:
        model = AutoModelForCausalLM.from_pretrained(reference_path(part))
        tokenizer = AutoTokenizer.from_pretrained(reference_path(part))
        assert model.config.model_type == "qwen3"
        assert len(tokenizer) == model.config.vocab_size == 4096
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id
        for name, weight in model.named_parameters():  # nf4 packs inputs in blocks of 64
            assert weight.ndim != 2 or weight.shape[1] % 64 == 0, name
        check_same_vocabulary(load_tokenizer("reference"), tokenizer)


def test_prompts_cover_every_task_and_split() -> None:
    for split in (*SPLITS, "sealed"):
        counts = Counter(row["task"] for row in prompts(split))
        assert set(counts) == set(TASKS)
        assert set(counts.values()) == {len(prompts(split)) // 4}
        assert counts["code"] >= 24
        assert {row["split"] for row in prompts(split)} == {split}


def test_templates_of_prompts_are_of_their_split_alone() -> None:
    templates = [row["template"] for split in (*SPLITS, "sealed") for row in prompts(split)]
    assert len(templates) == len(set(templates))


@pytest.mark.parametrize("task", TASKS)
def test_speculation_is_lossless_and_pays(target: CachedModel, task: str) -> None:
    draft, tokenizer = load_model("reference/draft", device="cpu"), load_tokenizer("reference")
    settings = DecodingSettings(max_new_tokens=48, end_tokens=end_tokens(target, tokenizer))
    drafter = LanguageModelDrafter(draft, settings.end_tokens)
    row = next(row for row in prompts("validation") if row["task"] == task)
    ids = encode_prompt(tokenizer, row["messages"])
    drafted = speculative_decode(target, drafter, make_policy("fixed:4", 16), ids, settings)
    assert drafted.tokens == plain_decode(target, ids, settings).tokens
    assert drafted.tokens_per_step > 1.5


def test_questions_for_training_drafters_are_conversations_that_no_prompt_is_among() -> None:
    questions = bundled_questions()
    assert len(questions) == 1198
    assert all(messages[-1]["role"] == "user" for messages in questions)
    asked = [row["messages"] for split in (*SPLITS, "sealed") for row in prompts(split)]
    assert not [messages for messages in questions if messages in asked]


def test_sealed_prompts_are_not_among_those_that_a_folder_stands_for() -> None:
    assert {prompt.split for prompt in read_prompts(PAIR_FOLDER / "prompts")} == set(SPLITS)


def test_the_prompts_of_the_readme_get_sentences_and_no_loop(target: CachedModel) -> None:
    tokenizer = load_tokenizer("reference")
    settings = DecodingSettings(max_new_tokens=128, end_tokens=end_tokens(target, tokenizer))
    asked = re.findall(r'draftgauge generate "([^"]+)"', README.read_text(encoding="utf-8"))
    assert len(asked) >= 1
    for question in asked:
        output = plain_decode(
            target, encode_prompt(tokenizer, [{"role": "user", "content": question}]), settings
        ).tokens
        different, all_grams = gram_counts(output)
        assert different >= 0.6 * all_grams, tokenizer.decode(output)
