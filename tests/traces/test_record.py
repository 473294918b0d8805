from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import TraceError
from draftgauge.traces.trace import (
    PromptInfo,
    PromptRecord,
    Trace,
    accepted_lengths,
    make_record,
    remaining_rows,
    select,
    take,
)
from synthetic import synthetic_record, synthetic_trace


def info(length: int, index: int = 0) -> PromptInfo:
    return PromptInfo(index, str(index), "code", "test", 5, length, "stop")


def test_accepted_is_the_matching_prefix_up_to_the_end_of_the_output() -> None:
    record = make_record(info(4), [7, 8, 9, 7], [[7, 8, 9, 7], [8, 1, 7], [], [7, 7]], gamma_max=4)
    assert record.accepted.tolist() == [4, 1, 0, 1]
    assert record.drafted.tolist() == [4, 3, 0, 2]


def test_acceptance_does_not_run_into_the_next_prompt() -> None:
    token = np.asarray([1, 1, 1], np.int32)
    draft = np.full((3, 3), 1, np.int32)
    remaining = remaining_rows(np.asarray([0, 1, 3]))
    assert remaining.tolist() == [1, 2, 1]
    assert accepted_lengths(token, draft, remaining).tolist() == [1, 2, 1]


def good() -> PromptRecord:
    return synthetic_record(np.random.default_rng(1), 3, 12, 4, 12)


def changed(name: str, at: tuple[int, ...], value: float) -> dict[str, Any]:
    column = getattr(good(), name).copy()
    column[at] = value
    return {name: column}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed("token", (2,), -1), r"token must be 0 or more \(row 2\)"),
        (changed("draft_token", (5, 1), -1), r"draft_token has tokens after its padding \(-1\) \(row 5\)"),
        (changed("target_entropy", (0,), np.nan), "target_entropy must be bits"),
        (changed("target_entropy", (1,), -0.5), "target_entropy must be bits"),
        (changed("confidence", (4, 0), 1.5), r"confidence must lie in 0..1 \(row 4\)"),
        (changed("entropy", (4, 0), -1), r"entropy must lie in 0..inf \(row 4\)"),
        (
            changed("margin", (4, 0), np.nan),
            r"margin must be a number for each drafted token and NaN for the others \(row 4\)",
        ),
        (
            changed("accepted", (11,), 4),
            r"accepted differs from the drafted tokens that equal the greedy continuation \(row 11\)",
        ),
    ],
)
def test_what_is_off_is_named(changes: dict[str, Any], message: str) -> None:
    good().validate()
    with pytest.raises(TraceError, match=f"prompt 3: {message}"):
        replace(good(), **changes).validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tokens": 0}, "output_tokens is 0, must be 1 or more"),
        ({"output_tokens": 2**63}, "output_tokens is 9223372036854775808"),
        ({"index": -1}, "index is -1"),
        ({"prompt_tokens": 2**31}, "prompt_tokens is 2147483648"),
        ({"finish": "eos"}, "finish is 'eos', must be one of length, stop"),
    ],
)
def test_prompts_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        replace(info(4), **changes)


def rows_of(trace: Trace, place: int) -> list[list[int]]:
    return trace.draft_token[trace.offsets[place] : trace.offsets[place + 1]].tolist()


def test_select_and_take_keep_prompts_whole() -> None:
    trace = synthetic_trace(2, prompts=5, length=9, gamma_max=3)
    keep = [True, False, False, True, True]
    chosen = select(trace, keep)
    assert [p.index for p in chosen.prompts] == [0, 3, 4]
    assert [rows_of(chosen, i) for i in range(3)] == [rows_of(trace, i) for i in (0, 3, 4)]
    assert chosen.positions == sum(p.output_tokens for p in chosen.prompts) == len(chosen.token)
    twice = take(trace, np.asarray([4, 0, 4]))
    assert [rows_of(twice, i) for i in range(3)] == [rows_of(trace, i) for i in (4, 0, 4)]
    assert select(trace, [False] * 5).positions == 0
