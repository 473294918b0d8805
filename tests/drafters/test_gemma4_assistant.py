"""Gemma 4's assistants: logits as transformers computes them, at either position, lossless, ranked beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Gemma4AssistantConfig, PreTrainedModel

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.base import Drafting, LoadOptions, choose_drafter
from draftgauge.drafters.gemma4_assistant import POSITIONS, AssistantDrafter, AssistantNet, AssistantSource
from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, attach_taps
from lossless import assert_greedy_is_plain, assert_replay_is_live, assert_sampling_keeps_the_law
from tiny import tiny_model, tiny_tokenizer, tokens

VOCABULARY, WINDOW = 8, 4
KINDS = ["sliding_attention", "full_attention"] * 2
SIZES = {"layer_types": KINDS, "sliding_window": WINDOW, "global_head_dim": 32, "num_hidden_layers": 4}
SIZES |= {"hidden_size_per_layer_input": 0, "final_logit_softcapping": None}


def gemma(vocabulary: int = VOCABULARY, **changes: Any) -> PreTrainedModel:
    return tiny_model("gemma4_text", vocab_size=vocabulary, **SIZES | changes)


def assistant(target: PreTrainedModel, ordered: bool = False) -> PreTrainedModel:
    text = target.config.to_dict() | {"hidden_size": 32, "num_kv_shared_layers": 4, "vocab_size_per_layer_input": 0}
    config = Gemma4AssistantConfig(
        text_config=AutoConfig.for_model(**text),
        backbone_hidden_size=target.config.hidden_size,
        use_ordered_embeddings=ordered,
        num_centroids=4,
        centroid_intermediate_top_k=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).eval()
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(target.config.vocab_size))
    return model


def make(target: Any, model: PreTrainedModel, position: str = "bonus") -> Any:
    taps = attach_taps(target, TapPlan((3,)))
    return lambda how: AssistantDrafter(AssistantNet(model, target, position), target, taps, *how)


@torch.no_grad()
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
def test_logits_are_those_of_transformers(ordered: bool, position: str) -> None:
    module = gemma()
    model, target, text = assistant(module, ordered), wrap(module), tokens(9, vocabulary=VOCABULARY)
    drafter = make(target, model, position)(Drafting(frozenset()))
    target.forward(text[:-1])
    drafter.prefill(text.tolist())
    drafter._take_in()
    seen = module(text[None, :-1], return_shared_kv_states=True, output_hidden_states=True, use_cache=False)
    state, last = seen.hidden_states[-1][:, -1:], text[None, -1:]
    shared = {kind: tuple(seen.shared_kv_states[kind]) for kind in set(KINDS)}
    shared["sliding_attention"] = tuple(part[:, :, -WINDOW:] for part in shared["sliding_attention"])
    branches = drafter.net.branches(drafter._cache, 7, drafter._begun)
    for _ in range(3):
        entering = torch.cat((module.get_input_embeddings()(last), state), -1)
        at = torch.tensor([[7 + POSITIONS[position]]])
        out = model(inputs_embeds=entering, position_ids=at, shared_kv_states=shared, use_cache=False)
        drafted = branches.logits > -torch.inf
        assert int(drafted.sum()) == (VOCABULARY // 2 if ordered else VOCABULARY)
        torch.testing.assert_close(branches.logits[drafted], out.logits[0][drafted], rtol=1e-4, atol=1e-4)
        last, state = branches.logits.argmax(-1)[None], out.last_hidden_state
        branches.advance(last[0])


@pytest.mark.parametrize(("ordered", "position"), [*zip((False, True), POSITIONS, strict=True)])
def test_it_is_lossless_and_replayed_as_it_decodes(
    monkeypatch: pytest.MonkeyPatch, ordered: bool, position: str
) -> None:
    module = gemma()
    target, model, prompt = wrap(module), assistant(module, ordered), tokens(6, vocabulary=VOCABULARY).tolist()
    assert_greedy_is_plain(target, make(target, model, position), prompt)
    assert assert_replay_is_live(target, make(target, model, position), prompt, {7}) > 0
    if ordered:  # where most tokens are never drafted
        assert_sampling_keeps_the_law(monkeypatch, target, module, make(target, model, position), [1, 2, 3])


def test_the_position_is_a_setting_of_the_source(tmp_path: Path) -> None:
    module = gemma(96)
    assistant(module).save_pretrained(tmp_path)
    target, prints, drafts = wrap(module), set(), []
    for name in (str(tmp_path), f"{tmp_path}:position=processed"):
        assert choose_drafter(name) == ("gemma4_assistant", name)
        source = AssistantSource.load(name, target, LoadOptions())
        prints.add(source.fingerprint())
        drafter = source.drafter(target, attach_taps(target, source.tap_plan), Drafting(frozenset()))
        target.forward(tokens(40))
        drafter.prefill([*tokens(40).tolist(), 5])
        drafts.append([signal.confidence for signal in drafter.propose(6, lambda signal: True).signals])
    assert len(prints) == 2
    assert drafts[0] != drafts[1]
    with pytest.raises(DraftgaugeError, match="position must be one of bonus, processed, not 'next'"):
        AssistantSource.check(f"{tmp_path}:position=next", tiny_tokenizer(), LoadOptions())
    for other, message in [
        (tiny_model("llama"), "reads the keys and values of a Gemma 4 target, and this one is a llama"),
        (gemma(96, hidden_size=32), "width 64, not 32"),
        (gemma(96, global_head_dim=16), r"full_attention .heads, numbers of a key. .2, 32., not .2, 16."),
    ]:
        with pytest.raises(DraftgaugeError, match=message):
            AssistantSource.load(tmp_path, wrap(other), LoadOptions())
