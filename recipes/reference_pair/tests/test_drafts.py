"""Drafts that are trained anew for a target that stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draftgauge.models.folder import PAIR_FOLDER
from recipes.reference_pair import data, recipe
from recipes.reference_pair.recipe import Recipe, train_reference
from recipes.reference_pair.tokenizer import dialogue

TEXTS = [dialogue([("user", f"Add {n} and {n}.")], f"{n} + {n} = {2 * n}.") for n in range(600)]


def weights(pair: Path, model: str) -> dict[str, torch.Tensor]:
    return load_file(pair / model / "model.safetensors")


def test_the_target_stays_as_it_is_and_the_drafts_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {*data.shares(0.4), *recipe.DISTILLED_SHARES} - {recipe.ANSWERS}
    monkeypatch.setattr(data, "training_texts", lambda *_: dict.fromkeys(kinds, TEXTS))
    monkeypatch.setattr(data, "training_questions", lambda count, seed: [])
    monkeypatch.setattr(recipe, "_answered_apart", lambda *_: TEXTS)
    monkeypatch.setattr(recipe, "save_prompts", lambda *_: {})
    small = Recipe(target_tokens=0, draft_tokens=4096, short=128, long=128, step_tokens=1024)
    with torch.compiler.set_stance("force_eager"):
        train_reference(tmp_path / "pair", tmp_path / "work", small, torch.device("cpu"), start=PAIR_FOLDER)

    before, after = weights(PAIR_FOLDER, "target"), weights(tmp_path / "pair", "target")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for draft in recipe.DRAFT_SHAPES:
        before, after = weights(PAIR_FOLDER, draft), weights(tmp_path / "pair", draft)
        assert any(not torch.equal(before[name], after[name]) for name in before)
    record = json.loads((tmp_path / "pair" / "training.json").read_text())
    assert (record["target_tokens"], record["target_loss"]) == (0, None)
    assert record["trained_drafts"] == list(recipe.DRAFT_SHAPES)
    assert record["draft_tokens"] == small.draft_tokens
    assert record["before"] == json.loads((PAIR_FOLDER / "training.json").read_text())
