"""How much outputs repeat themselves, and traces cut there."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying.simulate import replay
from draftgauge.traces.repetition import (
    cut_at_repetition,
    distinct_share,
    gram_counts,
    prompt_gram_counts,
    repeats_from,
)
from synthetic import repeating_trace


def test_grams_are_counted_by_hand() -> None:
    assert gram_counts([1, 2, 3, 4, 1, 2, 3, 4]) == (4, 5)
    assert gram_counts([1, 2, 3]) == (0, 0)
    assert distinct_share([[1, 2, 3, 4, 1, 2, 3, 4], [7] * 6]) == 5 / 8
    assert distinct_share([[1, 2]]) == 1.0
    assert repeats_from([1, 2, 3, 1, 2, 3, 4], order=3) == 5  # the sixth token would complete 1 2 3 again
    assert repeats_from([1, 1, 1, 1], order=2) == 2
    assert repeats_from([1, 2, 3], order=8) == 3


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_a_cut_trace_repeats_nothing_and_replays_as_its_beginning(seed: int) -> None:
    trace = repeating_trace(seed, prompts=3, length=60, gamma_max=4, vocabulary=3)
    cut = cut_at_repetition(trace, order=4)
    assert (prompt_gram_counts(cut)[:, 0] == prompt_gram_counts(cut)[:, 1]).all()
    for number, (whole, part) in enumerate(zip(trace.prompts, cut.prompts, strict=True)):
        first, begin = trace.offsets[number], cut.offsets[number]
        count = part.output_tokens
        assert count == repeats_from(trace.token[first : trace.offsets[number + 1]].tolist(), order=4)
        np.testing.assert_array_equal(cut.token[begin : begin + count], trace.token[first : first + count])
        assert part.finish == (whole.finish if count == whole.output_tokens else "length")
        left = count - np.arange(count)
        np.testing.assert_array_equal(
            cut.accepted[begin : begin + count], np.minimum(trace.accepted[first : first + count], left)
        )
    assert replay(cut, FixedLength(3)).committed.tolist() == [prompt.output_tokens for prompt in cut.prompts]
