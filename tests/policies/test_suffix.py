"""What the text has said before: token by token, and for whole traces at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgauge.policies.suffix import HABIT, ORDER, SuffixIndex, suffix_columns


def test_the_longest_matched_ending_and_its_last_continuation_count() -> None:
    index = SuffixIndex()
    index.read([1, 2, 3, 9, 2, 3, 4])
    assert index.look_up((2, 3)) == (4, 2)  # the later of 9 and 4
    assert index.look_up((1, 2, 3)) == (9, 3)  # longer ending, earlier place
    assert index.look_up((7, 3)) == (4, 1)
    assert index.look_up((7,)) == (-1, 0)
    assert index.look_up(index.tail) == (-1, 0)  # nothing has followed the end of the text yet
    index.commit([9])
    assert index.look_up((3, 4)) == (9, 2)


def test_habit_and_run_follow_what_was_predicted() -> None:
    index = SuffixIndex()
    index.read([1, 2, 1])
    assert (index.habit, index.run) == (0.0, 0)
    index.commit([2])  # predicted
    assert index.habit == pytest.approx(1 - HABIT)
    assert index.run == 1
    index.commit([5])  # predicted was 1
    assert index.habit == pytest.approx((1 - HABIT) * HABIT - (1 - HABIT))
    assert index.run == 0
    index.commit([6])  # nothing was
    assert index.habit == pytest.approx(HABIT * ((1 - HABIT) * HABIT - (1 - HABIT)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_columns_of_a_trace_are_what_an_index_says_row_by_row(seed: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, vocabulary, rng.integers(1, 9)).tolist() for _ in range(3)]
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 12, 3))])
    token = rng.integers(0, vocabulary, offsets[-1]).astype(np.int32)
    drafts = rng.integers(0, vocabulary, (offsets[-1], 6)).astype(np.int32)
    drafts[np.arange(6) >= rng.integers(0, 7, offsets[-1])[:, None]] = -1
    columns = suffix_columns(token, offsets, prompts, drafts)
    for prompt, first, end in zip(prompts, offsets[:-1], offsets[1:], strict=True):
        index = SuffixIndex()
        index.read(prompt)
        for row in range(first, end):
            assert columns.habit[row] == pytest.approx(index.habit, abs=1e-12)
            assert columns.run[row] == index.run
            tail = index.tail
            for depth, drafted in enumerate(drafts[row].tolist()):
                predicted, order = index.look_up(tail)
                assert columns.order[row, depth] == order
                if drafted < 0:
                    break
                assert columns.agreement[row, depth] == (order if drafted == predicted else -order)
                tail = (*tail, drafted)[-ORDER:]
            index.commit([int(token[row])])
