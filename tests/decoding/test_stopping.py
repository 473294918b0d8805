"""Where outputs end: limits, end tokens, and stop strings that cross token boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding import DecodingSettings
from draftgauge.decoding.settings import Stopper, StopStringWatch

PIECES = ["a", "b", "ab", " a", "ba\n", "", "é", "b b"]


def decode(tokens: list[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def decode_without_first_space(tokens: list[int]) -> str:
    """As tokenizers do that mark a word's beginning: the text's first space is not there."""
    return decode(tokens).removeprefix(" ")


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=120),
    strings=st.lists(st.text("ab é\n", min_size=3, max_size=6), min_size=1, max_size=2),
    decoder=st.sampled_from([decode, decode_without_first_space]),
)
def test_the_watch_finds_the_first_token_that_completes_a_stop_string(tokens, strings, decoder):
    watch = StopStringWatch(strings, decoder)
    found = next((i for i, token in enumerate(tokens) if watch.completed_by(token)), None)
    prefixes = (decoder(tokens[: i + 1]) for i in range(len(tokens)))
    expected = next((i for i, text in enumerate(prefixes) if any(string in text for string in strings)), None)
    assert found == expected


def test_an_output_ends_at_its_limit():
    stopper = Stopper(DecodingSettings(max_new_tokens=3))
    assert stopper.cut([5, 6]) == ([5, 6], None)
    assert stopper.remaining == 1
    assert stopper.cut([7]) == ([7], "length")


@pytest.mark.parametrize("limit", [9, 2])
def test_an_end_token_stays_also_at_the_limit_and_what_follows_is_dropped(limit):
    stopper = Stopper(DecodingSettings(limit, end_tokens=frozenset({6, 8})))
    assert stopper.cut([5, 6, 7, 8]) == ([5, 6], "stop")


def test_a_stop_string_stays_with_the_whole_token_that_completes_it():
    stopper = Stopper(DecodingSettings(max_new_tokens=9, stop_strings=("bb",), detokenize=decode))
    assert stopper.cut([0, 1]) == ([0, 1], None)
    assert stopper.cut([7, 0]) == ([7], "stop")  # "ab" + "b b"


def test_bad_settings():
    with pytest.raises(DraftgaugeError, match="max_new_tokens"):
        DecodingSettings(max_new_tokens=0)
    with pytest.raises(DraftgaugeError, match="empty"):
        DecodingSettings(stop_strings=("a", ""))
    with pytest.raises(DraftgaugeError, match="detokenizer"):
        Stopper(DecodingSettings(stop_strings=("a",)))
