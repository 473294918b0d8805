"""How much outputs repeat themselves: the distinct 4-grams of an output over all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftgauge.traces.trace import Trace

LENGTH = 4


def gram_counts(tokens: Sequence[int]) -> tuple[int, int]:
    grams = list(zip(*(tokens[start:] for start in range(LENGTH)), strict=False))
    return len(set(grams)), len(grams)


def distinct_share(outputs: Sequence[Sequence[int]]) -> float:
    return distinct_ratio(np.array([gram_counts(tokens) for tokens in outputs], np.int64).reshape(-1, 2))


def distinct_ratio(counts: NDArray[np.int64]) -> float:
    """:func:`distinct_share` from the :func:`gram_counts` of several outputs, ``[outputs, 2]``."""
    distinct, grams = counts.sum(axis=0)
    return float(distinct / grams) if grams else 1.0


def prompt_gram_counts(trace: Trace) -> NDArray[np.int64]:
    """``[prompts, 2]`` :func:`gram_counts` of each output of a trace."""
    return np.array([gram_counts(output.tolist()) for output in trace.outputs], np.int64).reshape(-1, 2)
