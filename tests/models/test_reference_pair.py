"""The bundled pair: it is there, small, loads plainly, and its prompts are what the card says."""

from __future__ import annotations

import ast
import json
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompt
from draftgauge.models.reference import PAIR_FOLDER, PARTS, reference_path
from draftgauge.models.vocabulary import check_same_vocabulary, end_tokens
from draftgauge.policies import make_policy
from draftgauge.training.reference.corpus import Module, is_reserved, prompt_split, standard_library
from draftgauge.training.reference.library import functions

SPLITS = ("train", "validation", "test")
TASKS = ("code", "math", "chat", "summarization")


def prompts(split: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (PAIR_FOLDER / "prompts" / f"{split}.jsonl").read_text().splitlines()]


def sources(module: Module) -> set[str]:
    """What a prompt made from a module can name as its source."""
    classes = {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    return {module.name, *(f"{module.name}.{name}" for name in classes | {name for _, name in functions(module.tree)})}


def test_it_fits_in_a_wheel() -> None:
    assert sum(path.stat().st_size for path in PAIR_FOLDER.rglob("*.safetensors")) <= 20e6


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
    for task in TASKS:
        assert sum(Counter(row["task"] for row in prompts(split))[task] for split in SPLITS) >= 24
    for split in SPLITS:
        assert set(Counter(row["task"] for row in prompts(split)).values()) == {len(prompts(split)) // 4}
        assert {row["split"] for row in prompts(split)} == {split}


def test_prompts_are_disjoint_from_training_and_from_each_other() -> None:
    texts = [row["messages"][0]["content"] for split in SPLITS for row in prompts(split)]
    assert len(texts) == len(set(texts))
    modules: dict[str, set[str]] = {split: set() for split in SPLITS}
    owners = {source: module.name for module in standard_library() for source in sources(module)}
    for split in SPLITS:
        for row in prompts(split):
            module = owners.get(str(row["source"]))
            if module is None:
                continue  # arithmetic, or of another Python version than the one that trained the pair
            assert is_reserved(module), module
            assert prompt_split(module) == split
            modules[split].add(module)
    assert modules["test"]
    assert not modules["train"] & modules["test"]


@pytest.mark.parametrize("task", TASKS)
def test_speculation_is_lossless_and_pays_on_it(task: str) -> None:
    target, draft = load_model("reference", device="cpu"), load_model("reference", device="cpu", part="draft")
    tokenizer = load_tokenizer("reference")
    settings = DecodingSettings(max_new_tokens=48, end_tokens=end_tokens(target, tokenizer))
    drafter = LanguageModelDrafter(draft, settings.end_tokens)
    steps = tokens = 0
    for row in [row for row in prompts("test") if row["task"] == task][:3]:
        ids = encode_prompt(tokenizer, row["messages"])
        plain = plain_decode(target, ids, settings)
        drafted = speculative_decode(target, drafter, make_policy("fixed:4", 16), ids, settings)
        assert drafted.tokens == plain.tokens
        steps, tokens = steps + len(drafted.steps), tokens + len(drafted.tokens)
    assert tokens / steps > 1.3


def test_the_trained_draft_beats_chance() -> None:
    target, draft = load_model("reference", device="cpu"), load_model("reference", device="cpu", part="draft")
    tokens = torch.tensor(encode_prompt(load_tokenizer("reference"), prompts("test")[0]["messages"]))
    agreement = (target.forward(tokens).argmax(-1) == draft.forward(tokens).argmax(-1)).float().mean()
    assert agreement > 0.3
