"""N-gram matches and stored texts: as going over the whole text says, and where a full index forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.evaluate import evaluate_design
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import Replay, replay
from draftgauge.judging.splits import Design
from draftgauge.policies.lookup import TextLookup
from draftgauge.policies.ngrams import LONGEST, MOST_MATCHED, Match, NgramIndex, StoredTexts, with_stored
from draftgauge.policies.spec import make_policy
from draftgauge.traces.trace import Trace
from linear_costs import curve
from synthetic import repeating_trace

texts_of_few_words = st.lists(st.integers(0, 3), max_size=60)


def spelled_out(text: list[int], tail: list[int], least: int = 1) -> Match | None:
    """The match of the longest n-gram, of at least so many tokens, by going over the whole text."""
    for n in range(min(LONGEST, len(tail)), least - 1, -1):
        places = [at for at in range(n, len(text)) if text[at - n : at] == tail[-n:] and text[at] >= 0]
        if places:
            followers = [text[at] for at in places]
            streak = 0
            while streak < len(followers) and followers[-1 - streak] == followers[-1]:
                streak += 1
            matched = n
            while n == LONGEST and matched < min(MOST_MATCHED, len(tail), places[-1]):
                if text[places[-1] - 1 - matched] != tail[-1 - matched]:
                    break
                matched += 1
            return Match(followers[-1], matched, len(followers), streak)
    return None


@settings(deadline=None)
@given(text=texts_of_few_words, drafted=st.lists(st.integers(0, 3), max_size=4), cut=st.integers(0, 60))
def test_a_match_is_what_going_over_the_text_finds(text: list[int], drafted: list[int], cut: int) -> None:
    index = NgramIndex()
    index.extend(text[:cut])
    index.extend(text[cut:])
    tail = [*text, *drafted]
    assert index.match(tail) == spelled_out(text, tail)


def test_the_longest_ngram_and_its_latest_place_count() -> None:
    index = NgramIndex()
    index.extend([1, 2, 3, 9, 2, 3, 4])
    assert index.match([2, 3]) == Match(token=4, matched=2, seen=2, streak=1)  # the later of 9 and 4
    assert index.match([1, 2, 3]) == Match(token=9, matched=3, seen=1, streak=1)  # longer, earlier
    assert index.match([7]) is None
    assert index.match([4]) is None  # nothing has followed the end of the text yet
    assert index.continuation(3) == []
    index.extend([2])
    assert index.match([2]) == Match(token=3, matched=1, seen=2, streak=2)
    assert index.continuation(2, least=1) == [3, 9]  # lookup copies what followed the first time
    assert index.continuation(2) == []


def test_the_length_of_a_match_goes_beyond_the_longest_indexed_ngram() -> None:
    text = list(range(50))
    index = NgramIndex()
    index.extend(text)
    for length in (3, LONGEST, LONGEST + 3, 40):
        match = index.match([99, *text[-1 - length : -1]])
        assert match is not None
        assert match.matched == min(length, MOST_MATCHED)


@settings(deadline=None)
@given(text=texts_of_few_words, tail=st.lists(st.integers(0, 3), max_size=6))
def test_a_full_index_forgets_the_older_half(text: list[int], tail: list[int]) -> None:
    index = NgramIndex(capacity=10)
    index.extend(text)
    forgotten = 0 if len(text) < 10 else 5 * ((len(text) - 10) // 5 + 1)
    assert index.text == text[forgotten:]
    assert index.match(tail) == spelled_out(text[forgotten:], tail)


@settings(deadline=None)
@given(own=texts_of_few_words, stored=st.lists(texts_of_few_words, max_size=3))
def test_a_stored_match_counts_where_it_is_longer(own: list[int], stored: list[list[int]]) -> None:
    index = NgramIndex(StoredTexts(stored).index)
    index.extend(own)
    first = spelled_out(own, own)
    order = 0 if first is None else min(first.matched, LONGEST)
    joined = [token for text in stored for token in (-1, *text)]  # what is between texts follows nothing
    longer = None if order == LONGEST else spelled_out(joined, own, order + 1)
    assert index.match(own) == (longer or first)


def test_no_text_goes_on_into_the_next_and_the_last_one_counts() -> None:
    index = NgramIndex(StoredTexts([[1, 2, 3], [4, 2, 5, 6], [], [7]]).index)
    assert index.match([2]) == Match(5, 1, 2, 1)
    assert index.match([1, 2]) == Match(3, 2, 1, 1)
    assert index.match([3]) is None
    assert index.match([6]) is None
    index.extend([9, 2])
    assert index.continuation(3, least=1) == [3]
    index.extend([8, 2])  # a match in the text itself comes before a stored one of its length
    assert index.continuation(1, least=1) == [8]


GAMMA_MAX = 6


def stored_answers(trace: Trace) -> StoredTexts:
    """The very outputs of a trace."""
    return StoredTexts([part.tolist() for part in np.split(trace.token, trace.offsets[1:-1])])


def test_what_is_stored_is_found_and_what_is_not_changes_nothing() -> None:
    trace = repeating_trace(1, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=40)
    costs = curve(0.1)

    def outcome(stored: StoredTexts | None) -> Replay:
        policy = TextLookup(2, 6)
        if stored is not None:
            with_stored([policy], stored)
        return replay(trace, policy)

    alone = outcome(None)
    for without in (StoredTexts([]), StoredTexts([[500, 501] * 9])):  # tokens that the trace does not know
        np.testing.assert_array_equal(outcome(without).record.accepted, alone.record.accepted)
    assert outcome(stored_answers(trace)).tokens_per_step > 1.5 * alone.tokens_per_step
    without = hindsight_optimum(trace, costs, text=True).tokens_per_second
    assert hindsight_optimum(trace, costs, True, stored_answers(trace)).tokens_per_second > without


def test_policies_that_look_nothing_up_take_no_datastore() -> None:
    stored = StoredTexts([[1, 2, 3]])
    with pytest.raises(DraftgaugeError, match="looks tokens up"):
        with_stored([make_policy("fixed:2", 4)], stored)
    with_stored([make_policy("fixed:2", 4), make_policy("lookup", 4)], stored)


def test_bounds_look_in_the_stored_texts_too() -> None:
    trace = repeating_trace(1, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=40)
    costs, policy, stored = curve(0.1), TextLookup(2, 6), stored_answers(trace)
    with_stored([policy], stored)
    rows = evaluate_design(Design("all", trace, None), costs, {"lookup": policy}, stored=stored)
    found = {str(row["policy"]): row["tokens_per_second"] for row in rows if row["task"] == "all"}
    bound = hindsight_optimum(trace, costs, True, stored).tokens_per_second
    assert found["lookup"] <= found["hindsight-two-sources"] == pytest.approx(bound)
