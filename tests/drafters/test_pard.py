"""PARD: a block in one pass over masks, the same from all positions, and lossless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.base import Drafting, LoadOptions, choose_drafter
from draftgauge.drafters.pard import PardDrafter, PardSource
from draftgauge.models.loading import wrap
from lossless import assert_greedy_is_plain, assert_replay_is_live, assert_sampling_keeps_the_law
from models.test_folder import edit
from tiny import noisy, one_pass, save_tiny, tiny_model, tiny_tokenizer, tokens

MASK, VOCABULARY = 8, 8  # the mask behind the target's tokens
ENGINES = ("lean", "modules", "static")


def make(target: Any, engine: str = "lean", **settings: Any) -> Any:
    draft = noisy(tiny_model("llama", vocab_size=VOCABULARY + 1, **settings), 0.1)
    return lambda how: PardDrafter(wrap(draft, engine), MASK, *how, vocabulary=target.spec.vocabulary)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_lossless_and_replayed_as_it_decodes(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    module = tiny_model("llama", vocab_size=VOCABULARY)
    target, prompt = wrap(module, engine), tokens(6, vocabulary=VOCABULARY).tolist()
    assert_greedy_is_plain(target, make(target, engine), prompt)
    assert assert_replay_is_live(target, make(target, engine), prompt, {7}) > 0
    assert assert_replay_is_live(target, make(target, engine, max_position_embeddings=12), [5], set()) > 0
    assert_sampling_keeps_the_law(monkeypatch, target, module, make(target, engine), [1, 2, 3])


@torch.no_grad()
def test_places_are_those_of_a_text_that_ends_in_masks_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    target, passes = wrap(tiny_model("llama", vocab_size=VOCABULARY)), []
    drafter, text = make(target)(Drafting(frozenset())), tokens(6, vocabulary=VOCABULARY).tolist()
    forward = drafter.model.forward
    monkeypatch.setattr(drafter.model, "forward", lambda t, **how: passes.append(len(t)) or forward(t, **how))
    drafter.prefill(text)
    for committed in ([3, 1], [4]):
        drafter.commit(0, committed)
        text += committed
        logits = one_pass(drafter.model.module, torch.tensor([*text, MASK, MASK, MASK]))[-4:, :VOCABULARY]
        assert drafter.propose(4, None).tokens == logits.argmax(-1).tolist()
        assert drafter.propose(2, None).tokens == logits.argmax(-1).tolist()[:2]
        assert drafter.backlog() == 0
    assert passes == [5, 3 + 3, 1 + 1, 1 + 3, 1 + 1]  # what is missing, and the masks


def test_a_folder_says_itself_that_it_is_one(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "draft", "llama")
    with pytest.raises(DraftgaugeError, match=r"drafter pard needs a PARD model .*; .*draft is not one"):
        PardSource.resolve(folder)
    edit(folder, pard_token=95)
    assert choose_drafter(folder) == ("pard", folder)
    target, options = wrap(tiny_model("llama")), LoadOptions()
    source = PardSource.load(folder, target, options)
    assert (source.mask, source.fingerprint()) == (95, PardSource.load(folder, target, options).fingerprint())
    for change, message in [
        ({"ptd_token_id": 4}, "ptd_token_id and pard_token contradict each other"),
        ({"ptd_token_id": ..., "pard_token": 96}, "pard_token 96 is not among 96 tokens"),
        ({"pard_token": "95"}, "pard_token must be a whole number"),
    ]:
        edit(folder, **change)
        with pytest.raises(DraftgaugeError, match=message):
            PardSource.check(folder, tiny_tokenizer(), options)
