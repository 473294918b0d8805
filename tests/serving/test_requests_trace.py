"""Traces from vLLM's per-request metrics: what a drafter would do at every length up to the one it served with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.judging.replay import replay_fixed_all
from draftgauge.serving.requests_trace import RequestSteps, import_requests, position_matches, trace_of_requests
from draftgauge.traces.run import make_trace
from draftgauge.traces.trace import PromptInfo, Trace, make_record
from engine_server import vllm_answer

LENGTH, WIDTH = 40, 4


def served(matches: NDArray[np.bool_], width: int = WIDTH) -> RequestSteps:
    """What a server that drafts ``width`` tokens reports of a request; ``matches[p]`` is of the token after the first.

    The first token comes from the prompt's pass, and the last step may run past the end, where it drafts on.
    """
    drafted, accepted, at = [], [], 0
    while at < len(matches):
        ahead = matches[at : at + width]
        right = int(ahead.argmin()) if not ahead.all() else len(ahead)
        drafted.append(width)
        accepted.append(right)
        at += right + 1
    return RequestSteps(7, len(matches) + 1, tuple(drafted), tuple(accepted), width)


def known_trace(matches: list[NDArray[np.bool_]], width: int = WIDTH) -> Trace:
    """The trace of a drafter that depends on the text alone."""
    records = []
    for index, right in enumerate(matches):
        token = list(range(1, len(right) + 1))
        drafts = []
        for row in range(len(right)):
            ahead = right[row : row + width]
            count = int(ahead.argmin()) if not ahead.all() else len(ahead)
            drafts.append([*token[row : row + count], *[0] * (width - count)])
        info = PromptInfo(index, str(index), "requests", "", 8, len(right), "stop")
        records.append(make_record(info, token, drafts, width))
    return make_trace(records, max(map(len, matches)))


def no_whole_draft(rng: np.random.Generator) -> NDArray[np.bool_]:
    """Runs of matches that are shorter than a draft, so that nothing has to be drawn."""
    pieces = [[*[True] * int(rng.integers(0, WIDTH)), False] for _ in range(LENGTH)]
    return np.array([match for piece in pieces for match in piece][:LENGTH])


def test_where_no_draft_is_accepted_whole_the_trace_is_exact() -> None:
    rng = np.random.default_rng(0)
    matches = [no_whole_draft(rng) for _ in range(12)]
    imported = trace_of_requests([served(right) for right in matches])
    assert imported.left_out == 0
    ends = sum(bool(right[-1]) for right in matches)  # drafts that run past the end
    assert imported.drawn <= ends / (12 * LENGTH)
    exact = known_trace(matches)
    for ours, theirs in zip(replay_fixed_all(imported.trace), replay_fixed_all(exact), strict=True):
        assert (ours.steps == theirs.steps).all()
        assert (ours.accepted == theirs.accepted).all()


def test_what_is_drawn_leaves_the_tokens_of_a_step_unbiased() -> None:
    rng = np.random.default_rng(1)
    matches = [rng.random(200) < 0.7 for _ in range(150)]
    imported = trace_of_requests([served(right) for right in matches])
    assert 0.02 < imported.drawn < 0.15
    exact = replay_fixed_all(known_trace(matches))
    for ours, theirs in zip(replay_fixed_all(imported.trace), exact, strict=True):
        assert ours.tokens_per_step == pytest.approx(theirs.tokens_per_step, rel=0.01)


def test_steps_that_do_not_account_for_the_tokens() -> None:
    assert position_matches(RequestSteps(5, 20, (4, 4), (1, 0), 4)) is None
    assert position_matches(RequestSteps(5, 1, (), (), 4)) is None
    whole = served(np.zeros(10, np.bool_))
    short = RequestSteps(5, 20, (4, 4), (1, 0), 4)
    assert trace_of_requests([whole, short]).left_out == 1
    with pytest.raises(TraceError, match="drafted nothing"):
        trace_of_requests([short])


def answer(**metrics: object) -> dict[str, Any]:
    steps = {"num_spec_steps": 2, "num_accepted_draft_tokens": 2, "num_draft_tokens": 8, "num_spec_tokens": 4}
    steps |= {"per_step_accepted": [2, 0], "per_step_drafted": [4, 4]}
    return vllm_answer(tokens=range(5), **steps | metrics)


def test_a_file_of_answers(tmp_path: Path) -> None:
    """Texts may hold other line separators; an answer without a step is left out."""
    path = tmp_path / "answers.jsonl"
    separated = answer() | {"task": "chat", "choices": [{"text": "a\u2028b"}]}
    short = answer(num_spec_steps=0)
    speculative = short["metrics"]["speculative_decoding"]
    del speculative["per_step_accepted"], speculative["per_step_drafted"]
    given = [json.dumps(each, ensure_ascii=False) for each in (separated, separated, short)]
    path.write_text("\n".join(given) + "\n", encoding="utf-8")
    imported = import_requests(path)
    assert (len(imported.trace.prompts), imported.left_out) == (2, 1)
    assert (imported.trace.prompts[0].task, imported.trace.prompts[0].prompt_tokens) == ("chat", 12)
    assert imported.trace.accepted[:4].tolist() == [2, 1, 0, 0]
    path.write_bytes(given[0].replace("\u2028", "\xe9").encode("latin-1"))
    with pytest.raises(TraceError, match="not UTF-8"):
        import_requests(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ("[1]", "line 1 is no answer of vLLM"),
        (json.dumps(answer(num_spec_tokens=10**9)), "more than 1024"),
        ('{"usage": {}, "metrics": null}', "--per-request-spec-decode-metrics detailed"),
        (json.dumps(answer(per_step_accepted=[5, 0])), "accepts more tokens than it drafts"),
        (json.dumps(answer(per_step_accepted=[1])), "accepts more tokens than it drafts"),
        ("", "holds no answers"),
    ],
)
def test_files_that_are_none(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match=message):
        import_requests(path)
    with pytest.raises(TraceError, match="there is no file of answers"):
        import_requests(tmp_path / "missing.jsonl")


def test_servers_of_different_lengths_are_not_mixed() -> None:
    matches = np.zeros(10, np.bool_)
    with pytest.raises(TraceError, match=r"up to \[2, 4\] tokens"):
        trace_of_requests([served(matches, 2), served(matches, 4)])
