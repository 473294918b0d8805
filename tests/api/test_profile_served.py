"""Runs of answers that an engine served, of sampled decoding, and of hybrids: recorded, resumed and replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.api.advise import advise
from draftgauge.api.bench import bench
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.report import write_report
from draftgauge.core.errors import DraftgaugeError, PromptError, TraceError
from draftgauge.core.prompts import Prompt
from draftgauge.judging.replay import replay as walk
from draftgauge.models.loading import load_tokenizer
from draftgauge.pair import recording
from draftgauge.pair.served import ServedAnswer, answer_tokens, answered_prompts, read_differences, read_outputs
from draftgauge.policies.spec import make_policy
from draftgauge.traces.run import Manifest, Run, read_trace
from draftgauge.traces.trace import Trace
from small_profiles import PROMPTS, SMALL, record, save_hybrid, save_models
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


SETTINGS: dict[str, Any] = SMALL | {"temperature": 1.2, "top_k": 40}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return save_models(tmp_path_factory.mktemp("models"), [""] * 5)


@pytest.fixture(scope="module")
def run(few: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = profile(**few, out=tmp_path_factory.mktemp("run"), **SETTINGS)
    return Path(rows[0]["run"])


def test_a_sampled_run_says_how_it_was_drawn(run: Path) -> None:
    manifest, trace = Manifest.load(run), read_trace(run)
    assert (manifest.temperature, manifest.top_k, manifest.top_p, manifest.complete) == (1.2, 40, 1.0, True)
    assert trace.sampled is not None
    assert 0.05 < np.nanmean(trace.sampled.acceptance) < 1
    assert len({tuple(trace.token[a:b]) for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)}) == 5


def test_an_interrupted_run_goes_on_with_the_same_draws(few: dict[str, Any], run: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("record") and done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(**few, out=tmp_path, progress=stop, **SETTINGS)
    profile(**few, out=tmp_path, **SETTINGS)
    whole, resumed = read_trace(run), read_trace(tmp_path)
    np.testing.assert_array_equal(resumed.token, whole.token)
    np.testing.assert_array_equal(resumed.sampled.draft_token, whole.sampled.draft_token)
    np.testing.assert_array_equal(resumed.sampled.survival, whole.sampled.survival)
    with pytest.raises(TraceError, match="seed: 0, not 1"):
        profile(**few, out=tmp_path, seed=1, **SETTINGS)
    with pytest.raises(TraceError, match=r"temperature: 1.2, not 0.0"):
        profile(**few, out=tmp_path, **SETTINGS | {"temperature": 0.0, "top_k": 0})


def test_sampled_runs_replay_to_the_same_rows(run: Path) -> None:
    found = replay(run, ["no-draft", "fixed", "hf-heuristic", "cumulative-confidence"])
    rows = {row["policy"]: row for row in found if row["task"] == "all"}
    assert rows["no-draft"]["tokens_per_step"] == 1
    assert 1 < rows["fixed:1"]["tokens_per_step"] < rows["fixed:3"]["tokens_per_step"]
    assert rows["fixed:2"]["steps"] != int(rows["fixed:2"]["steps"]), "a mean over walks"
    assert all(row["tokens"] == rows["no-draft"]["tokens"] for row in rows.values())
    assert rows["hindsight"]["tokens_per_second"] >= rows["no-draft"]["tokens_per_second"] * (1 - 1e-9)


def test_policies_that_look_tokens_up_are_left_out_unless_they_are_asked_for(run: Path, tmp_path: Path) -> None:
    assert {"stopping", "two-source"} & {row["policy"] for row in replay(run)} == {"stopping"}
    assert {"stopping", "two-source"} & {row["policy"] for row in advise(run)} == {"stopping"}
    live = {"compression": "uncompressed", "task": "all", "tokens_per_second": 9.0, "ratio_to_plain": 1.5}
    live |= {"policy": "two-source", "mismatches": 0}
    page = write_report(run, tmp_path / "report.html", [live]).read_text()
    assert "two-source" in page  # as measured
    for verb in (replay, advise):
        with pytest.raises(TraceError, match="of sampled decoding does not hold"):
            verb(run, policies=["two-source"])


def test_what_sampling_cannot_do_is_refused(few: dict[str, Any], run: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftgaugeError, match="drafter language_model, not prompt_lookup"):
        profile(**few | {"drafter": "prompt_lookup"}, out=tmp_path / "a", **SETTINGS)
    with pytest.raises(DraftgaugeError, match="top_p"):
        profile(**few, out=tmp_path / "a", **SETTINGS, top_p=1.5)
    assert not (tmp_path / "a").exists()
    with pytest.raises(DraftgaugeError, match="sampled decoding"):
        bench(run)


def test_replay_charges_what_rolling_back_costs(models: dict[str, Any], tmp_path: Path) -> None:
    hybrids = {"target": save_hybrid(tmp_path / "target"), "drafter": save_hybrid(tmp_path / "draft", noise=0.05)}
    record(models | hybrids, tmp_path / "run")
    trace, costs = Run(tmp_path / "run").read()
    assert len(costs.rollback) == trace.gamma_max
    taken, free = (
        walk(trace, make_policy("fixed:3", trace.gamma_max, costs), curve).record
        for curve in (costs, replace(costs, rollback=()))
    )
    rejected = taken.accepted < taken.drafted
    assert 0 < rejected.sum() < len(rejected)
    back = np.where(rejected, np.array(costs.rollback)[np.minimum(taken.accepted, trace.gamma_max - 1)], 0.0)
    np.testing.assert_allclose(taken.seconds - free.seconds, back, atol=1e-9)
