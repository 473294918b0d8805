from __future__ import annotations

from draftgauge.traces.trace import distinct_share, gram_counts


def test_grams_are_counted_by_hand() -> None:
    assert gram_counts([1, 2, 3, 4, 1, 2, 3, 4]) == (4, 5)
    assert gram_counts([1, 2, 3]) == (0, 0)
    assert distinct_share([[1, 2, 3, 4, 1, 2, 3, 4], [7] * 6]) == 5 / 8
    assert distinct_share([[1, 2]]) == 1.0
