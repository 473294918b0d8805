"""What the text has said before: token by token, and for whole traces at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.policies.suffix import CODE_BITS, HABIT, ORDER, Match, SuffixIndex, code_of
from draftgauge.policies.suffix_columns import continuation_runs, continuations, suffix_columns
from draftgauge.policies.text_index import TextIndex, window_start


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


@settings(deadline=None)
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


def spelled_out(text: list[int], tail: list[int]) -> Match:
    """The longest match by going over the whole text."""
    for order in range(min(ORDER, len(tail)), 0, -1):
        ending = tail[-order:]
        after = [text[at] for at in range(order, len(text)) if text[at - order : at] == ending]
        if after:
            streak = 0
            while streak < len(after) and after[-1 - streak] == after[-1]:
                streak += 1
            return Match(after[-1], order, min(streak, 15), min(len(after), 15))
    return Match()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 60))
def test_matches_and_counts_are_those_of_the_text_spelled_out(seed: int, vocabulary: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, vocabulary, length).tolist()
    index = SuffixIndex()
    index.read(text[: length // 3])
    index.commit(text[length // 3 : length // 2])
    index.commit(text[length // 2 :])
    for _ in range(5):
        tail = (text + rng.integers(0, vocabulary, rng.integers(0, 4)).tolist())[-ORDER:]
        assert index.match(tuple(tail)) == spelled_out(text, tail)
        found = index.match(tuple(tail))
        assert index.look_up(tuple(tail)) == found[:2]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(2 * ORDER, 19))
def test_a_full_index_forgets_the_first_half_and_says_the_same_everywhere(
    seed: int, vocabulary: int, capacity: int
) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, vocabulary, 60).tolist()
    index, whole = SuffixIndex(capacity), TextIndex(np.array(text), capacity)
    read = 0
    while read < len(text):
        count = int(rng.integers(1, 7))
        index.commit(text[read : read + count])
        read = min(read + count, len(text))
        start = int(window_start(np.array(read), capacity))
        assert read - start < capacity
        assert sum(map(len, index.after)) <= ORDER * capacity
        tail = (*text[:read], int(rng.integers(0, vocabulary)))[-ORDER:]
        found = index.match(tail)
        assert found == spelled_out(text[start:read], list(tail))
        padded = np.array([(-1,) * (ORDER - len(tail)) + tail])
        at_once = whole.look_up(padded, np.array([read]))
        assert (at_once.token[0], at_once.order[0]) == found[:2]
        assert at_once.code[0] == code_of(found.streak, found.seen)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_continuations_of_a_trace_are_what_an_index_says_row_by_row(seed: int, vocabulary: int) -> None:
    rng, gamma = np.random.default_rng(seed), 5
    prompts = [rng.integers(0, vocabulary, rng.integers(1, 9)).tolist() for _ in range(3)]
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 12, 3))])
    token = rng.integers(0, vocabulary, offsets[-1]).astype(np.int32)
    drafts = rng.integers(0, vocabulary, (offsets[-1], gamma)).astype(np.int32)
    drafts[np.arange(gamma) >= rng.integers(0, gamma + 1, offsets[-1])[:, None]] = -1
    runs = continuation_runs(token, offsets, prompts, gamma)
    foretold_after = continuations(token, offsets, prompts, drafts)

    def follow(index: SuffixIndex, tail: tuple[int, ...], count: int) -> list[Match]:
        found: list[Match] = []
        while len(found) < count and (match := index.match(tail)).order:
            found.append(match)
            tail = (*tail, match.token)[-ORDER:]
        return found

    for prompt, first, end in zip(prompts, offsets[:-1], offsets[1:], strict=True):
        index = SuffixIndex()
        index.read(prompt)
        for row in range(first, end):
            output, drafted = token[row:end].tolist(), [d for d in drafts[row].tolist() if d >= 0]
            for depth in range(min(gamma, len(output)) + 1):
                foretold = follow(index, (*index.tail, *output[:depth])[-ORDER:], gamma - depth)
                right = 0
                while right < min(len(foretold), len(output) - depth) and (
                    foretold[right].token == output[depth + right]
                ):
                    right += 1
                assert runs[row, depth] == right
            for depth in range(len(drafted) + 1):
                foretold = follow(index, (*index.tail, *drafted[:depth])[-ORDER:], gamma - depth)
                known = [match.order << CODE_BITS | code_of(match.streak, match.seen) for match in foretold]
                nothing = gamma - depth - len(known)
                assert foretold_after[depth].cell[row].tolist() == known + [0] * nothing
                assert foretold_after[depth].token[row].tolist() == [match.token for match in foretold] + [-1] * nothing
            index.commit([int(token[row])])
