"""The drafts that a decoding loop makes on its way through a held-out text."""

from __future__ import annotations

import numpy as np

from draftgauge.diagnostics.texts import HeldOutText, Ints


def walked(text: HeldOutText, accepted: Ints, labelled: Ints, max_new_tokens: int) -> tuple[Ints, Ints]:
    """The drafts that a decoding loop makes on its way through the text, as (accepted, drafted) lengths of its steps.

    Each step commits the accepted tokens and one more; a draft leaves room for that one, as the live loop does.
    """
    steps, position = [], 0
    while position < len(text.output):
        drafted = min(int(labelled[position]), max_new_tokens - position - 1)
        steps.append((min(int(accepted[position]), drafted), drafted))
        position += steps[-1][0] + 1
    return np.array([s[0] for s in steps], np.int64), np.array([s[1] for s in steps], np.int64)
