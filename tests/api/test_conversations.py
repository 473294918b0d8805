"""Conversations as people use them: template arguments, system messages, several turns, a checkpoint's own sampling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from draftgauge.api.bench import bench
from draftgauge.api.generate import generate
from draftgauge.api.profile import profile
from draftgauge.core.errors import DraftgaugeError, ModelError, PromptError, TraceError
from draftgauge.core.prompts import Message, read_prompts
from draftgauge.core.rendering import Rendering, turns_of
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.spec import own_sampling
from draftgauge.models.tokenizer import encode_prompt
from draftgauge.pair.loading import load_pair_of
from draftgauge.pair.prompts import prompts_of
from draftgauge.traces.run import Manifest, Run, read_trace
from draftgauge.verification import Sampling
from tiny import save_tiny, tiny_tokenizer

THINKING = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{% endfor %}"
    "<a>{% if enable_thinking is defined and enable_thinking is false %}[]{% endif %}"
)
SMALL: dict[str, Any] = {"gamma_max": 2, "max_new_tokens": 6, "cost_seconds": 0}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
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


def record(pair: dict[str, Any], out: Path, **options: Any) -> tuple[Manifest, Path]:
    profile(**(pair | SMALL | {"out": out} | options))
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


def test_every_turn_is_a_prompt_of_its_own(pair: dict[str, Any]) -> None:
    prompts = read_prompts(pair["prompts"])
    assert turns_of(prompts, 1) == prompts
    expanded = turns_of(prompts, 2)
    assert [(p.index, p.identifier) for p in expanded] == [(0, "81"), (1, "81/2"), (2, "1"), (4, "2")]
    assert expanded[0].messages == (Message("user", "first"),)
    assert expanded[1].turns == ("first", "second")
    assert not expanded[1].messages
    assert expanded[2].text == "plain"
    assert [p.identifier for p in turns_of(prompts, 9)][:3] == ["81", "81/2", "81/3"]


def test_a_later_turn_stands_behind_the_target_s_own_answers(pair: dict[str, Any], tmp_path: Path) -> None:
    manifest, run = record(pair, tmp_path / "run", turns=3, chat_template_args={"enable_thinking": False})
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
    profile(**pair, **SMALL, out=both, turns=2, chat_template_args={"enable_thinking": False}, compression="fp32,fp16")
    encoded = prompts_of(Run(both / "fp16"))
    assert [p.prompt_token for p in read_trace(both / "fp16").prompts] == [tuple(tokens) for _, tokens in encoded]
    with pytest.raises(DraftgaugeError, match="leave out --turns"):
        bench(run, turns=1)


def test_a_run_goes_on_only_with_the_same_rendering(pair: dict[str, Any], tmp_path: Path) -> None:
    _, run = record(pair, tmp_path / "run", system="be brief", chat=True)
    assert record(pair, run, system="be brief", chat=True)[0].rendering.system == "be brief"
    with pytest.raises(TraceError, match=r"rendering: .*be brief.*, not .*'system': None"):
        record(pair, run)
    assert record(pair, tmp_path / "default")[0].rendering.chat is True  # as the tokenizer has a template


def test_a_conversation_without_room_is_refused_or_left_out(pair: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"turns": ["x" * 100, "y" * 40, "z"]}))
    asked: dict[str, Any] = {"prompts": path, "turns": 3}
    with pytest.raises(PromptError, match=r"longer than the 122 tokens.*by id: 0/2"):
        record(pair, tmp_path / "a", **asked)
    _, run = record(pair, tmp_path / "b", long_prompts="skip", **asked)
    assert [p.index for p in read_trace(run).prompts] == [0]
    _, run = record(pair, tmp_path / "c", long_prompts="truncate", **asked)
    assert len(prompts_of(Run(run))) == 3


def test_generate_renders_as_asked(pair: dict[str, Any]) -> None:
    models = {name: pair[name] for name in ("target", "drafter")}
    asked: dict[str, Any] = {"max_new_tokens": 4, "policy": "plain", **models}
    text = generate("hi", chat_template_args='{"enable_thinking": false}', system="s", **asked).text
    assert text == generate("<s>s<u>hi<a>[]", chat=False, **asked).text
    with pytest.raises(PromptError, match="plain text takes no system"):
        generate("hi", chat=False, system="s", **asked)


def test_a_checkpoint_s_own_sampling(pair: dict[str, Any], tmp_path: Path) -> None:
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
    manifest, run = record(pair | {"target": target}, tmp_path / "run", checkpoint_sampling=True, limit=1)
    assert (manifest.temperature, manifest.top_k, manifest.top_p) == (0.6, 20, 1.0)
    same = record(pair | {"target": target}, run, temperature=0.6, top_k=20, limit=1)[0]
    assert same.fingerprint() == manifest.fingerprint()
    with pytest.raises(DraftgaugeError, match="takes temperature, top_k and top_p from the target"):
        record(pair, tmp_path / "x", checkpoint_sampling=True, temperature=0.5)
    with pytest.raises(DraftgaugeError, match="at temperature 0 decoding is greedy: give a temperature"):
        record(pair, tmp_path / "x", top_k=5)
    path.unlink()
    with pytest.raises(ModelError, match="comes without sampling defaults"):
        own_sampling(target)
