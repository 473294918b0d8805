"""Generating through the Python API: settings reach the loop, streams equal results, sampling is seeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import tokenization_utils_base

from draftgauge.api.generate import generate
from draftgauge.core.errors import DraftgaugeError, ModelError, PromptError
from draftgauge.integrations.transformers import speculative
from draftgauge.pair.loading import Pair
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.requests import GenerateRequest
from reuse_nets import saved_drafter
from tiny import save_tiny, tiny_model


def test_a_policy_that_was_fitted_on_another_pair_is_named(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FITTED, "two", (lambda *given: FixedLength(2), ()))
    provenance = {"pair": {"target": "other", "draft": None}, "target": "a-target"}
    save_fitted(FittedPolicy("two", 16, (), {}, provenance), tmp_path / "two.json")
    with pytest.warns(UserWarning, match=r"was fitted on another pair \(a-target and no model\)"):
        text = generate(pair, "hello", str(tmp_path / "two.json"), max_new_tokens=4, cost_seconds=0).text
    assert text == generate(pair, "hello", "plain", max_new_tokens=4).text


def test_the_default_policy_is_that_of_speculative() -> None:
    assert GenerateRequest(prompt="x").policy == speculative.policy == "two-source"


def test_the_stream_is_the_result(pair: Pair) -> None:
    pieces: list[tuple[str, str]] = []
    how = generate(
        pair, "hello", "fixed:2", max_new_tokens=20, on_text=lambda piece, origin: pieces.append((piece, origin))
    )
    assert "".join(piece for piece, _ in pieces) == how.text == str(how)
    assert {origin for _, origin in pieces} <= set(how.origins)


def test_looked_up_tokens_are_named_and_counted(pair: Pair) -> None:
    prompt = pair.tokenizer.encode("one two three four one two three four one two")
    plain = generate(pair, prompt, "plain", max_new_tokens=60)
    pieces: list[str] = []
    how = generate(
        pair, prompt, "lookup:least=1", max_new_tokens=60, on_text=lambda piece, origin: pieces.append(origin)
    )
    assert how.text == plain.text
    row = how.row()
    assert how.origins.count("text") == round(row["source_text"] * row["steps"]) > 0
    assert row["source_model"] == row["drafted"] == 0
    assert row["appended"] >= row["accepted"] == how.origins.count("text")
    assert 0 < row["distinct_4grams"] <= 1
    assert set(pieces) <= set(how.origins)


def test_a_long_prompt_is_refused_in_one_message(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[object] = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", lambda *said: warned.append(said))
    monkeypatch.setattr(pair.tokenizer, "model_max_length", 16)
    with pytest.raises(DraftgaugeError, match="context longer than the model takes"):
        generate(pair, "word " * 5_000, "plain", max_new_tokens=8)
    assert not warned


@pytest.mark.parametrize("token", [-1, 1_000_000])
def test_tokens_that_the_target_does_not_know_are_refused(pair: Pair, token: int) -> None:
    with pytest.raises(PromptError, match=f"holds the token {token}; the target's are 0 to"):
        generate(pair, [1, token], "plain", max_new_tokens=8)


@pytest.mark.parametrize("policy", ["fixed:2", speculative.policy])
def test_sampling_is_decided_by_the_seed(pair: Pair, policy: str) -> None:
    options = {"max_new_tokens": 24, "temperature": 1.0, "top_p": 0.95, "cost_seconds": 0}
    one, same, other = (generate(pair, "hello", policy, seed=seed, **options).text for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": 1.0, "top_p": 0.0}, {"stop": ("",)}])
def test_settings_out_of_range_are_refused_before_a_model_is_loaded(wrong: dict[str, Any]) -> None:
    with pytest.raises(DraftgaugeError, match=r"temperature is 0 or more, .* not|a stop string is empty"):
        generate("hello", target="nowhere", **wrong)
    with pytest.raises(DraftgaugeError, match="-1"):
        generate("hello", "fixed:-1", target="nowhere")


def test_plain_decoding_needs_no_draft(tmp_path: Path) -> None:
    target = str(save_tiny(tmp_path / "target"))
    how = generate("a b", "plain", target=target, max_new_tokens=4)
    assert len(how.tokens) == 4 or how.finish == "stop"
    with pytest.raises(ModelError, match=r"target and draft \(the bundled one: name yours with --drafter\) have"):
        generate("a b", "fixed:2", target=target)


def test_stop_strings_end_the_output(pair: Pair) -> None:
    text = generate(pair, "hello", "plain", max_new_tokens=30).text
    how = generate(pair, "hello", "fixed:4", max_new_tokens=30, stop=(text[4:6],))
    assert how.finish == "stop"
    assert how.text.endswith(text[4:6])
    assert text.startswith(how.text)


def test_bad_requests(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.api.generate.pair_costs", None)  # nothing is measured for them
    with pytest.raises(PromptError, match="empty"):
        generate(pair, "  ")
    with pytest.raises(DraftgaugeError, match="context longer than the model takes"):
        generate(pair, "hello", max_new_tokens=4000)


def test_plain_decoding_beside_a_drafter_decodes_with_the_target_that_it_was_trained_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "drafter"
    saved_drafter(folder, tiny_model(num_hidden_layers=4))
    load = Mock(side_effect=ModelError("enough"))
    monkeypatch.setattr("draftgauge.api.generate.load_pair", load)
    monkeypatch.setattr("draftgauge.api.generate.target_of", lambda spec: f"target of {spec.drafter}")
    with pytest.raises(ModelError, match="enough"):
        generate("hello", "plain", drafter=str(folder))
    (spec,) = load.call_args.args
    assert (spec.target, spec.drafter) == (f"target of {folder}", "prompt_lookup")
