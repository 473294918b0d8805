"""Prompts from files and from Python, and rows as a notebook shows them."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import draftgauge
from draftgauge.core.errors import MissingLibraryError, PromptError, missing_library
from draftgauge.core.prompts import (
    Message,
    Prompt,
    first_in_turn,
    for_judging,
    for_training,
    prompts_sha256,
    read_prompts,
    write_prompts,
)
from draftgauge.core.table import Rows
from draftgauge.pair.prompts import choose_prompts
from draftgauge.requests import PromptSpec


def write(path: Path, *entries: object) -> Path:
    path.write_text(
        "\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries), encoding="utf-8"
    )
    return path


def test_all_three_forms(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mixed.jsonl",
        {"prompt": "a", "id": "x1", "task": "code", "category": "other", "split": "test", "reference": "r"},
        "",
        {"turns": ["b", "later"], "question_id": 7, "category": "chat", "reference": ["r1", "r2"]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]},
    )
    assert read_prompts(path) == [
        Prompt(0, "x1", "code", "test", text="a", reference="r"),
        Prompt(1, "7", "chat", "", text="b", reference="r1", turns=("b", "later")),
        Prompt(2, "2", "mixed", "", messages=(Message("system", "s"), Message("user", "c"))),
    ]


USER, ANSWER = Message("user", "6 * 7?"), Message("assistant", "42")
ASKED = {"role": "user", "content": "6 * 7?"}
ANSWER_SAID = {"role": "assistant", "content": "42"}


@pytest.mark.parametrize(
    ("entry", "messages", "reference"),
    [
        ({"conversations": [{"from": "human", "value": "6 * 7?"}, {"from": "gpt", "value": "42"}]}, (USER,), "42"),
        ({"conversations": [ASKED, {"role": "assistant", "content": "42"}, ASKED]}, (USER, ANSWER, USER), None),
        ({"messages": [ASKED, {"role": "assistant", "content": "42"}]}, (USER,), "42"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "6 * 7?"}]}]}, (USER,), None),
        ({"method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [ASKED]}}, (USER,), None),
        ({"body": {"model": "m", "prompt": "6 * 7?"}}, (), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("array", [False, True])
def test_files_that_people_have_are_read(
    tmp_path: Path, entry: dict[str, object], messages: tuple[Message, ...], reference: str | None, array: bool
) -> None:
    """ShareGPT, speculators' conversations, messages with answers, content parts, OpenAI's batch input."""
    entries = [entry | {"custom_id": "r1"}, entry | {"reference": "mine"}]
    path = tmp_path / "f.json"
    path.write_text(json.dumps(entries, indent=1) if array else "\n".join(map(json.dumps, entries)))
    first, second = read_prompts(path)
    assert (first.messages, first.text) == (messages, "" if messages else "6 * 7?")
    assert (first.identifier, first.reference, second.identifier, second.reference) == ("r1", reference, "1", "mine")


@pytest.mark.parametrize(
    ("entry", "identifier", "task"),
    [
        ({"question_id": 81, "category": "writing", "turns": ["Hi", "More"], "reference": []}, "81", "writing"),
        ({"question_id": "c7", "category": "coding", "turns": ["Hi"], "multiturn": False}, "c7", "coding"),
        ({"task_id": "HumanEval/0", "prompt": "Hi", "entry_point": "f", "test": "assert f()"}, "HumanEval/0", "qa"),
    ],
    ids=["Spec-Bench", "SPEED-Bench", "speculator_benchmarks"],
)  # fmt: skip
def test_benchmarks_of_speculation_are_read(tmp_path: Path, entry: dict[str, Any], identifier: str, task: str) -> None:
    (prompt,) = read_prompts(write(tmp_path / "qa.jsonl", entry))
    assert (prompt.text, prompt.identifier, prompt.task) == ("Hi", identifier, task)


def test_selection_keeps_the_index(tmp_path: Path) -> None:
    splits = ["train", "test"] * 4
    path = write(
        tmp_path / "p.jsonl",
        *({"prompt": f"{i}", "task": "ab"[i // 4], "split": split} for i, split in enumerate(splits)),
    )
    assert [p.index for p in read_prompts(path, tasks=["b"], split="test")] == [5, 7]
    assert [p.index for p in read_prompts(path, limit=1, split="test")] == [1]
    assert [p.index for p in first_in_turn(read_prompts(path), 3)] == [0, 1, 4]
    assert len(first_in_turn(read_prompts(path), None)) == 8
    with pytest.raises(PromptError, match="has no task 'c'; it has a, b"):
        read_prompts(path, tasks=["c"])
    with pytest.raises(PromptError, match="split 'dev'; its splits: train, test"):
        read_prompts(path, split="dev")
    with pytest.raises(PromptError, match="limit of prompts is 0"):
        read_prompts(path, limit=0)


def test_what_is_learned_from_and_what_is_judged_on(tmp_path: Path) -> None:
    lines = [{"prompt": str(n), "split": split} for n, split in enumerate(["test", "train", "sealed", "validation"])]
    prompts = read_prompts(write(tmp_path / "p.jsonl", *lines))
    assert [p.text for p in for_training(prompts)] == ["1"]
    assert [p.text for p in for_judging(prompts)] == ["0"]
    for some, used in ((prompts[:1], prompts[:1]), (prompts[2:], prompts[3:]), (prompts[2:3], prompts[2:3])):
        assert for_training(some) == for_judging(some) == used


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": ', "not JSON"),
        ('["a"]', "must be a JSON object, not a list"),
        ({"question": "a"}, "one of prompt, turns, messages, conversations and body; it has only question"),
        ({}, "it has only nothing"),
        ({"prompt": "a", "turns": ["b"]}, "it has prompt and turns"),
        ({"prompt": 5}, "prompt must hold text, not 5"),
        ({"prompt": " "}, "prompt must hold text, not empty text"),
        ({"turns": []}, "turns must be a list of texts with at least one, not an empty list"),
        ({"turns": "a"}, "turns must be a list of texts with at least one, not text"),
        ({"turns": [None]}, "turns must hold text, not null"),
        ({"messages": []}, "messages must be a list with at least one message, not an empty list"),
        ({"messages": [{"role": "user"}]}, "message 1 must be an object with the texts role and content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only parts of type text are read"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "with the texts role and content"),
        ({"conversations": [{"from": "gpt", "value": "a"}]}, "must hold a message that is to be answered"),
        ({"conversations": [{"from": ["human"], "value": "a"}]}, "with the texts role and content"),
        ({"conversations": ["a"]}, "message 1 must be an object"),
        ({"body": {"model": "m"}}, "body must be a request of a batch"),
        ({"messages": [ANSWER_SAID, ASKED, ASKED]}, "messages 2 and 3 are both the user's"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": "x"}, ASKED]}, "tool_calls must be a list of obj"),
        ({"messages": [ASKED, {"role": "assistant", "function_call": {"name": "f"}}]}, "write it as tool_calls"),
        ({"body": {"messages": [ASKED], "functions": [{"name": "f"}]}}, "write them as tools"),
        ({"messages": [ASKED], "tools": ["f"]}, "tools must be a list of objects"),
        ({"body": {"prompt": [1, 2]}}, "prompt must hold text, not a list"),
        ({"prompt": "a", "task": 3}, "task must be text, not 3"),
        ({"prompt": "a", "split": []}, "split must be text, not an empty list"),
        ({"prompt": "a", "split": "dev"}, "split must be train, validation, test or sealed, or be left out, not 'dev'"),
        ({"prompt": None}, "prompt must hold text, not null"),
        ({"prompt": None, "turns": None}, "it has prompt and turns"),
        ({"prompt": "half of a pair: \ud800"}, "not UTF-8"),
        ({"messages": [{"role": "user", "content": "\udce9"}]}, "not UTF-8"),
        ({"prompt": "a", "id": True}, "the id must be text or an integer, not True"),
        ({"prompt": "a", "reference": {}}, "reference must be text or a list of texts, not an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "fine"}, "", line)
    with pytest.raises(PromptError, match=rf"p\.jsonl, line 3: .*{message}"):
        read_prompts(path)


def test_tools_and_turns_of_messages_are_kept(tmp_path: Path) -> None:
    function = {"name": "f", "arguments": '{"x": 1}'}
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    said = [ASKED, called, {"role": "tool", "content": "42", "tool_call_id": "c"}]
    body = {"messages": said, "tools": [{"name": "f"}], "chat_template_kwargs": {"think": False}}
    tools, turns = read_prompts(write(tmp_path / "p.jsonl", {"body": body}, {"messages": [ASKED, ASKED]}))
    assert tools.template_args == {"tools": [{"name": "f"}], "think": False}
    calls = [{"id": "c", "function": {"name": "f", "arguments": {"x": 1}}}]
    assert tools.messages == (
        USER,
        Message("assistant", "", {"tool_calls": calls}),
        Message("tool", "42", {"tool_call_id": "c"}),
    )
    assert (turns.text, turns.turns, turns.messages) == ("6 * 7?", ("6 * 7?", "6 * 7?"), ())
    with pytest.raises(PromptError, match="has a task 'all'"):
        read_prompts(write(tmp_path / "q.jsonl", {"prompt": "a", "task": "all"}, {"prompt": "b"}))


def test_a_pipe_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGAUGE_CACHE", str(tmp_path / "cache"))
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(target=(tmp_path / "pipe").write_text, args=('{"prompt": "hi"}\n',))
    writer.start()
    spec = PromptSpec(prompts=str(tmp_path / "pipe"))
    writer.join()
    for _ in range(2):
        assert [(p.text, p.task) for p in choose_prompts(replace(spec, limit=1))[1]] == [("hi", "prompts")]


def test_nulls_are_left_out(tmp_path: Path) -> None:
    """As tables with gaps are written, e.g. by pandas."""
    line = {"prompt": None, "turns": ["a", "b"], "id": None, "question_id": 7, "task": None, "split": None}
    (prompt,) = read_prompts(write(tmp_path / "p.jsonl", line))
    assert (prompt.text, prompt.identifier, prompt.task, prompt.split) == ("a", "7", "p", "")


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"there is no prompt file .*p\.jsonl"):
        read_prompts(tmp_path / "p.jsonl")
    with pytest.raises(PromptError, match=r"holds no \*\.jsonl file"):
        read_prompts(tmp_path)
    for content in ("", "\n \n"):
        path = write(tmp_path / "p.jsonl", content)
        with pytest.raises(PromptError, match=r"p\.jsonl holds no prompts"):
            read_prompts(path)


def test_a_folder_stands_for_its_files_in_order(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", '{"prompt": "second"}\n')
    write(tmp_path / "a.jsonl", '{"prompt": "first", "id": "x"}\n')
    found = [(p.index, p.identifier, p.task, p.text) for p in read_prompts(tmp_path)]
    assert found == [(0, "x", "a", "first"), (1, "1", "b", "second")]
    before = prompts_sha256(tmp_path)
    write(tmp_path / "b.jsonl", '{"prompt": "another"}\n')
    assert prompts_sha256(tmp_path) != before


ROWS = Rows(
    [
        {"policy": "fixed:2", "task": "code", "gain": 0.5, "verdict": None},
        {"policy": "<b>", "task": "all", "gain": 0.25, "gain_low": 0.125, "gain_high": 0.375, "verdict": "Draft."},
    ]
)


def test_rows_are_a_list_of_dicts_with_one_verdict_and_an_escaped_table() -> None:
    assert json.loads(json.dumps(ROWS)) == ROWS
    assert ROWS.verdict == "Draft."
    html = ROWS._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html
    assert "0.25 [0.125, 0.375]" in html
    assert "fixed:2" not in html  # of several tasks, all of them together
    assert Rows().verdict == ""
    single = Rows([{"gain": 0.25, "gain_low": math.nan, "gain_high": math.nan, "speed": math.nan}])._repr_html_()
    assert "<td>0.25</td>" in single
    assert "nan" not in single
    assert "speed" not in single


def test_printed_rows_are_a_table_as_wide_as_the_terminal_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = [{"task": "all", "policy": f"rule {n}", "gain": n / 8, "same": 1, "long": "x" * n * 30} for n in range(3)]
    rows[1]["verdict"] = "Draft."
    heading, *lines, verdict = str(Rows(rows)).splitlines()
    assert heading.split() == ["policy", "gain"]  # without what is the same in every row, or does not fit
    assert [line.split() for line in lines] == [["rule", "0", "0"], ["rule", "1", "0.125"], ["rule", "2", "0.25"]]
    assert verdict == "Draft."
    checked = Rows([{"check": "made-for", "status": "wrong", "what": "Of another target.", "remedy": "Take its own."}])
    assert str(checked).endswith("\nmade-for: Of another target.\n  do: Take its own.")


def test_rows_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = ROWS.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["gain"].tolist() == [0.5, 0.25]
    assert frame["gain_high"].isna().tolist() == [True, False]


def test_a_library_of_an_extra_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install 'draftgauge[report]'" in str(missing_library("matplotlib.pyplot"))
    assert missing_library("antigravity") is None
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibraryError, match="pip install pandas"):
        ROWS.to_pandas()
    monkeypatch.delitem(sys.modules, "draftgauge.reporting.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibraryError, match=r"draftgauge\[report\]"):
        _ = draftgauge.plot


def test_prompts_may_be_texts_or_dicts(tmp_path: Path) -> None:
    path = write_prompts(["Hello", {"prompt": "2 + 2?", "task": "math"}], tmp_path)
    assert path == write_prompts(["Hello", {"prompt": "2 + 2?", "task": "math"}], tmp_path)
    assert [(prompt.text, prompt.task) for prompt in read_prompts(path)] == [("Hello", "prompts"), ("2 + 2?", "math")]
    for wrong in ([object()], [3], [], [{"prompt": object()}]):
        with pytest.raises(PromptError, match="prompts must be texts or dicts"):
            write_prompts(wrong, tmp_path)  # type: ignore[arg-type]
