"""Answers that a serving engine wrote give the trace of the target's own decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftgauge.api.profile import profile
from draftgauge.core.errors import DraftgaugeError, PromptError, TraceError
from draftgauge.core.prompts import Prompt
from draftgauge.models.loading import load_tokenizer
from draftgauge.pair import recording
from draftgauge.pair.served import answer_tokens, answered_prompts, read_differences
from draftgauge.serving.outputs import ServedAnswer, read_outputs
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.run import read_trace
from draftgauge.traces.trace import Trace
from small_profiles import PROMPTS, SMALL, record
from tiny import tiny_tokenizer


def batch_lines(trace: Trace, with_tokens: bool) -> list[dict[str, Any]]:
    """What a serving engine would have written of a trace."""
    lines = []
    for number, info in enumerate(trace.prompts):
        tokens = trace.token[trace.offsets[number] : trace.offsets[number + 1]].tolist()
        message = {"role": "assistant", "content": tiny_tokenizer().decode(tokens, skip_special_tokens=True)}
        choice: dict[str, Any] = {"message": message, "finish_reason": info.finish}
        choice |= {"token_ids": tokens} if with_tokens else {}
        body = {"choices": [choice]}
        lines.append({"custom_id": info.identifier, "response": {"status_code": 200, "body": body}, "error": None})
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("with_tokens", "shards"), [(True, 1), (False, 1), (False, 2)])
def test_served_answers_give_the_same_trace(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, with_tokens: bool, shards: int
) -> None:
    lines = batch_lines(whole[1], with_tokens)
    failed = {"custom_id": "p99", "response": None, "error": {"code": "429"}}
    path = write_lines(tmp_path / "answers.jsonl", [*lines, failed])
    trace = record(models, tmp_path / "run", outputs=path, shards=shards)
    assert trace.prompts == whole[1].prompts
    for name in ("token", "drafted", "accepted", "draft_token"):
        assert (getattr(trace, name) == getattr(whole[1], name)).all(), name
    assert trace.target_entropy == pytest.approx(whole[1].target_entropy, abs=1e-4)
    assert read_differences(tmp_path / "run") == {info.index: () for info in trace.prompts}
    assert Manifest.load(tmp_path / "run").outputs is not None
    with pytest.raises(TraceError, match=r"outputs.sha256"):
        record(models, tmp_path / "run")


def test_positions_that_are_not_the_target_s_choice_are_flagged(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path
) -> None:
    lines = batch_lines(whole[1], True)[:2]
    choice = lines[1]["response"]["body"]["choices"][0]
    tokens = choice["token_ids"]
    tokens[-1] = 1 + tokens[-1] % 90
    choice["message"]["content"] = tiny_tokenizer().decode(tokens)
    path = write_lines(tmp_path / "answers.jsonl", lines)
    rows = profile(**(models | SMALL), out=tmp_path / "run", outputs=path)
    assert read_differences(tmp_path / "run") == {0: (), 1: (len(tokens) - 1,)}
    trace = read_trace(tmp_path / "run")
    assert rows[-1]["differing"] == pytest.approx(1 / trace.positions)
    by_task = {row["task"]: row["differing"] * row["tokens"] for row in rows}
    assert by_task == pytest.approx(dict.fromkeys(by_task, 0) | {trace.prompts[1].task: 1, "all": 1})
    assert [p.index for p in trace.prompts] == [0, 1]


def test_answers_that_cannot_be_used(models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"

    def refused(match: str, lines: list[dict[str, Any]]) -> None:
        write_lines(path, lines)
        with pytest.raises(DraftgaugeError, match=match):
            record(models, tmp_path / match[:12], outputs=path)

    def changed(**choice: Any) -> list[dict[str, Any]]:
        (line,) = batch_lines(whole[1], True)[:1]
        line["response"]["body"]["choices"][0] |= choice
        return [line]

    refused("holds the token 500, and the target's tokenizer has 96", changed(token_ids=[5, 500]))
    refused("is written with another tokenizer", changed(token_ids=[5, 6, 7]))
    refused("holds the token -5", changed(token_ids=[5, -5]))
    refused("has no text", changed(message={"content": None}))
    refused("has its reasoning or tool calls beside", changed(token_ids=[], message={"content": "b", "reasoning": "a"}))
    refused("has no choice with a text", changed(message=None))
    refused("tokens are not the target's choice", changed(token_ids=[], message={"content": "zzzzzzzz"}))
    refused("answers none of the prompts", [changed()[0] | {"custom_id": "else"}])
    refused("comes a second time", changed() * 2)
    refused("has no custom_id", [{"id": 3}])
    refused("has no choice with a text", [{"custom_id": "p0", "response": {"body": {"choices": []}}}])
    refused("holds no answer of a request that succeeded", [{"custom_id": "p0", "response": None, "error": "x"}])
    path.write_text("{")
    with pytest.raises(PromptError, match="line 1: not JSON"):
        read_outputs(path)
    with pytest.raises(PromptError, match="there is no file of answers"):
        read_outputs(tmp_path / "none.jsonl")
    with pytest.raises(DraftgaugeError, match="leave out the temperature"):
        record(models, tmp_path / "run", outputs=path, temperature=1.0)


def without_token_ids(choice: dict[str, Any], **message: Any) -> None:
    choice["token_ids"] = None
    choice["message"] |= message


@pytest.mark.parametrize("shards", [1, 2])
def test_answers_that_cannot_be_used_are_left_out_and_said(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, shards: int
) -> None:
    lines = batch_lines(whole[1], True)
    choices = [line["response"]["body"]["choices"][0] for line in lines]
    without_token_ids(choices[1], reasoning_content="a long thought")
    without_token_ids(choices[4], reasoning="a long thought")
    without_token_ids(choices[5], content=None)
    choices[7]["token_ids"] = [5, 6, 500]
    choices[2]["message"] |= {"reasoning": "all of it", "content": choices[2]["message"]["content"][-3:]}
    asked: dict[str, Any] = {"outputs": write_lines(tmp_path / "answers.jsonl", lines), "shards": shards}
    with pytest.warns(UserWarning, match="left out") as warned:
        trace = record(models, tmp_path / "run", **asked)
    left_out = {1, 4, 5, 7}
    assert [prompt.index for prompt in trace.prompts] == [n for n in range(PROMPTS) if n not in left_out]
    assert Manifest.load(tmp_path / "run").complete
    (message,) = [str(each.message) for each in warned]
    assert f"4 of {PROMPTS} answers cannot be used; of 2 (p1, p4): it has its reasoning or tool calls" in message
    assert "of 1 (p5): it has no text" in message
    assert "of 1 (p7): it is written with another tokenizer: it holds the token 500" in message
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()}
    record(models, tmp_path / "run", **asked)  # nothing is left to do
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()} == before


def test_a_run_of_which_answers_were_left_out_goes_on_after_a_stop(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = batch_lines(whole[1], True)
    without_token_ids(lines[3]["response"]["body"]["choices"][0], content=None)
    path, recorded = write_lines(tmp_path / "answers.jsonl", lines), []
    usual = recording.record_answer

    def stops(*arguments: Any) -> Any:
        if len(recorded) == 5:
            raise KeyboardInterrupt
        recorded.append(arguments[2][0].index)
        return usual(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(recording, "record_answer", stops)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="1 of 11 answers cannot be used"):
            record(models, tmp_path / "run", outputs=path)
    with pytest.warns(UserWarning, match="1 of 11 answers cannot be used"):
        trace = record(models, tmp_path / "run", outputs=path)
    assert [prompt.index for prompt in trace.prompts] == [n for n in range(PROMPTS) if n != 3]


def test_most_answers_unusable_for_one_reason_are_refused(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path
) -> None:
    lines = batch_lines(whole[1], True)
    for line in lines[:6]:
        line["response"]["body"]["choices"][0]["token_ids"] = [5, 6, 7]
    path = write_lines(tmp_path / "answers.jsonl", lines)
    with pytest.raises(
        PromptError, match=r"6 of 11 answers cannot be used; of 6 \(p0, p1, p2 \.\.\.\): it is written with"
    ):
        record(models, tmp_path / "run", outputs=path)
    assert not (tmp_path / "run").exists()


def test_an_answer_that_ends_within_a_character_is_taken_with_all_its_tokens() -> None:
    tokenizer = load_tokenizer("reference")
    tokens = tuple(tokenizer("smile \N{GRINNING FACE}", add_special_tokens=False)["input_ids"])[:-1]
    assert tokenizer.decode(tokens).endswith("\ufffd")
    end = frozenset({0})
    for text in ("smile ", "smile \ufffd"):
        assert answer_tokens(ServedAnswer(text, "length", tokens), tokenizer, end, 100).tokens == list(tokens)
    thought = ServedAnswer("ile", "length", tokens, parted=True)
    assert answer_tokens(thought, tokenizer, end, 100).tokens == list(tokens)
    for other in (ServedAnswer("ile", "length", tokens), ServedAnswer("frown", "length", tokens, parted=True)):
        with pytest.raises(PromptError, match="is written with another tokenizer"):
            answer_tokens(other, tokenizer, end, 100)


def test_an_answer_to_an_id_that_two_prompts_have_is_refused(whole: tuple[Path, Trace], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "answers.jsonl", batch_lines(whole[1], True))
    prompts = [(Prompt(0, "p0", "code", "", text="a"), [1]), (Prompt(1, "p0", "math", "", text="b"), [2])]
    with pytest.raises(PromptError, match="answers p0, and several prompts have that id"):
        answered_prompts(path, prompts)
