"""Generating through the Python API, and conversations: templates, system messages, turns, sampling of a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import tokenization_utils_base

from draftgauge.api.bench import bench
from draftgauge.api.generate import generate
from draftgauge.api.profile import profile
from draftgauge.core.errors import DraftgaugeError, ModelError, PromptError, TraceError
from draftgauge.core.parts import Rendering
from draftgauge.core.prompts import Message, read_prompts, turns_of
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.integrations.transformers import speculative
from draftgauge.models.spec import own_sampling
from draftgauge.models.tokenizer import encode_prompt
from draftgauge.pair.loading import Pair, load_pair_of
from draftgauge.pair.prompts import prompts_of
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.requests import GenerateRequest
from draftgauge.traces.run import Manifest, Run, read_trace
from draftgauge.verification import Sampling
from reuse_nets import saved_drafter
from tiny import save_tiny, tiny_model, tiny_tokenizer


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
    with pytest.raises(DraftgaugeError, match=r"temperature must be 0 or more, .* not|a stop string is empty"):
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


THINKING = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{% endfor %}"
    "<a>{% if enable_thinking is defined and enable_thinking is false %}[]{% endif %}"
)
SMALL: dict[str, Any] = {"gamma_max": 2, "max_new_tokens": 6, "cost_seconds": 0}


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pair")
    for part in ("target", "draft"):
        save_tiny(folder / part, chat=True)
        tokenizer = tiny_tokenizer(chat=True)
        tokenizer.chat_template = THINKING
        tokenizer.save_pretrained(folder / part)
    lines: list[Mapping[str, Any]] = [
        {"turns": ["first", "second", "third"], "question_id": 81},
        {"prompt": "plain"},
        {"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]},
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"target": folder / "target", "drafter": folder / "draft", "prompts": folder / "prompts.jsonl"}


def record(chatting: dict[str, Any], out: Path, **options: Any) -> tuple[Manifest, Path]:
    profile(**(chatting | SMALL | {"out": out} | options))
    return Manifest.load(out), out


def test_the_template_gets_its_arguments_and_no_others() -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = THINKING
    messages = [{"role": "user", "content": "hi"}]

    def text(**rendering: Any) -> str:
        return str(tokenizer.decode(encode_prompt(tokenizer, messages, Rendering(**rendering))))

    assert text() == "<u>hi<a>"
    assert text(template_args={"enable_thinking": False}) == "<u>hi<a>[]"
    assert text(template_args={"enable_thinking": True}) == "<u>hi<a>"
    assert text(system="be brief") == "<s>be brief<u>hi<a>"
    with pytest.raises(PromptError, match="does not read 'enable_thinkin'"):
        text(template_args={"enable_thinkin": False})
    for name in ("tokenize", "conversation", "add_generation_prompt"):
        with pytest.raises(PromptError, match=f"'{name}' is set by draftgauge"):
            text(template_args={name: True})
    with pytest.raises(PromptError, match="no chat template to give arguments to"):
        encode_prompt(tiny_tokenizer(), messages, Rendering({"enable_thinking": False}))
    own = [{"role": "system", "content": "own"}, *messages]
    assert tokenizer.decode(encode_prompt(tokenizer, own, Rendering(system="x"))) == "<s>own<u>hi<a>"


def test_every_turn_is_a_prompt_of_its_own(chatting: dict[str, Any]) -> None:
    prompts = read_prompts(chatting["prompts"])
    assert turns_of(prompts, 1) == prompts
    expanded = turns_of(prompts, 2)
    assert [(p.index, p.identifier) for p in expanded] == [(0, "81"), (1, "81/2"), (2, "1"), (4, "2")]
    assert expanded[0].messages == (Message("user", "first"),)
    assert expanded[1].turns == ("first", "second")
    assert not expanded[1].messages
    assert expanded[2].text == "plain"
    assert [p.identifier for p in turns_of(prompts, 9)][:3] == ["81", "81/2", "81/3"]


def test_a_later_turn_stands_behind_the_target_s_own_answers(chatting: dict[str, Any], tmp_path: Path) -> None:
    manifest, run = record(chatting, tmp_path / "run", turns=3, chat_template_args={"enable_thinking": False})
    assert manifest.rendering == Rendering({"enable_thinking": False}, chat=True, turns=3)
    loaded = load_pair_of(manifest)
    settings = DecodingSettings(6, end_tokens=loaded.end_tokens)
    conversation = [{"role": "user", "content": "first"}]
    expected = []
    for said in ("second", "third", None):
        expected.append(encode_prompt(loaded.tokenizer, conversation, manifest.rendering))
        output = plain_decode(loaded.target, expected[-1], settings).tokens
        answer = loaded.tokenizer.decode(output, skip_special_tokens=True)
        conversation += [{"role": "assistant", "content": answer}, {"role": "user", "content": said or ""}]
    encoded = prompts_of(Run(run))
    assert [tokens for _, tokens in encoded[:3]] == expected
    assert [p.identifier for p, _ in encoded] == ["81", "81/2", "81/3", "1", "2"]
    recorded = read_trace(run).prompts
    assert [p.prompt_tokens for p in recorded] == [len(tokens) for _, tokens in encoded]
    rows = bench(run, policies=("fixed:1",), baselines=False, rounds=1)
    assert {row["prompts"] for row in rows} == {5}
    both = tmp_path / "both"  # a target in float16 may answer otherwise: later turns stand behind its own
    profile(
        **chatting, **SMALL, out=both, turns=2, chat_template_args={"enable_thinking": False}, compression="fp32,fp16"
    )
    encoded = prompts_of(Run(both / "fp16"))
    assert [p.prompt_token for p in read_trace(both / "fp16").prompts] == [tuple(tokens) for _, tokens in encoded]
    with pytest.raises(DraftgaugeError, match="leave out --turns"):
        bench(run, turns=1)


def test_a_run_goes_on_only_with_the_same_rendering(chatting: dict[str, Any], tmp_path: Path) -> None:
    _, run = record(chatting, tmp_path / "run", system="be brief", chat=True)
    assert record(chatting, run, system="be brief", chat=True)[0].rendering.system == "be brief"
    with pytest.raises(TraceError, match=r"\(system: 'be brief', not None\)"):
        record(chatting, run)
    assert record(chatting, tmp_path / "default")[0].rendering.chat is True  # as the tokenizer has a template


def test_a_conversation_without_room_is_refused_or_left_out(chatting: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"turns": ["x" * 100, "y" * 40, "z"]}))
    asked: dict[str, Any] = {"prompts": path, "turns": 3}
    with pytest.raises(PromptError, match=r"longer than the 122 tokens.*by id: 0/2"):
        record(chatting, tmp_path / "a", **asked)
    _, run = record(chatting, tmp_path / "b", long_prompts="skip", **asked)
    assert [p.index for p in read_trace(run).prompts] == [0]
    _, run = record(chatting, tmp_path / "c", long_prompts="truncate", **asked)
    assert len(prompts_of(Run(run))) == 3


def test_generate_renders_as_asked(chatting: dict[str, Any]) -> None:
    models = {name: chatting[name] for name in ("target", "drafter")}
    asked: dict[str, Any] = {"max_new_tokens": 4, "policy": "plain", **models}
    text = generate("hi", chat_template_args='{"enable_thinking": false}', system="s", **asked).text
    assert text == generate("<s>s<u>hi<a>[]", chat=False, **asked).text
    with pytest.raises(PromptError, match="plain text takes no system"):
        generate("hi", chat=False, system="s", **asked)


def test_a_checkpoint_s_own_sampling(chatting: dict[str, Any], tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", chat=True)
    path = target / "generation_config.json"

    def own(**values: Any) -> Sampling:
        path.write_text(json.dumps({"eos_token_id": 0, **values}))
        return own_sampling(target)

    assert own() == Sampling()
    assert own(do_sample=True) == Sampling(1.0)
    assert own(do_sample=True, temperature=0.6, top_k=20, top_p=0.95) == Sampling(0.6, 20, 0.95)
    changing = {"min_p": 0.1, "repetition_penalty": 1.1, "bad_words_ids": [[5]], "suppress_tokens": [7], "top_h": 0.5}
    changing |= {"min_new_tokens": 10, "min_length": 30, "forced_eos_token_id": 3, "sequence_bias": [[[5], -10.0]]}
    changing |= {"guidance_scale": 1.5, "presence_penalty": 0.5, "stop_strings": ["x"], "num_return_sequences": 2}
    for name, value in changing.items():
        with pytest.raises(ModelError, match=re.escape(f"use {name} {value}, which")):
            own(do_sample=True, **{name: value})
    neutral = {"min_p": 0.0, "repetition_penalty": 1.0, "num_beams": 1, "min_new_tokens": 0, "max_new_tokens": 9}
    assert own(do_sample=True, transformers_version="5", bos_token_id=1, chat_format="x", **neutral) == Sampling(1.0)
    own(do_sample=True, temperature=0.6, top_k=20)
    manifest, run = record(chatting | {"target": target}, tmp_path / "run", checkpoint_sampling=True, limit=1)
    assert (manifest.temperature, manifest.top_k, manifest.top_p) == (0.6, 20, 1.0)
    same = record(chatting | {"target": target}, run, temperature=0.6, top_k=20, limit=1)[0]
    assert same.fingerprint() == manifest.fingerprint()
    with pytest.raises(DraftgaugeError, match="takes temperature, top_k and top_p from the target"):
        record(chatting, tmp_path / "x", checkpoint_sampling=True, temperature=0.5)
    with pytest.raises(DraftgaugeError, match="at temperature 0 decoding is greedy: give a temperature"):
        record(chatting, tmp_path / "x", top_k=5)
    path.unlink()
    with pytest.raises(ModelError, match="comes without sampling defaults"):
        own_sampling(target)
