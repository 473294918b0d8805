"""How much outputs repeat themselves, and traces cut where they begin to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftgauge.traces.build import COLUMNS, offsets_of
from draftgauge.traces.trace import Trace

SHARE_OF = 4
"""Length of the n-grams whose distinct share is reported."""
REPEATED = 8
"""Length of the n-gram whose second occurrence counts as the beginning of repetition."""


def grams_of(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """The n-grams of an output, in their order."""
    return list(zip(*(tokens[start:] for start in range(SHARE_OF)), strict=False))


def gram_counts(tokens: Sequence[int]) -> tuple[int, int]:
    """How many distinct n-grams an output has, and how many in all; (0, 0) for a shorter one."""
    grams = grams_of(tokens)
    return len(set(grams)), len(grams)


def distinct_share(outputs: Sequence[Sequence[int]]) -> float:
    """Distinct n-grams of each output over all its n-grams, summed over outputs; 1 where no output is that long."""
    return distinct_ratio(np.array([gram_counts(tokens) for tokens in outputs], np.int64).reshape(-1, 2))


def distinct_ratio(counts: NDArray[np.int64]) -> float:
    """What :func:`gram_counts` of several outputs, ``[outputs, 2]``, say of all of them; 1 where none is that long."""
    distinct, grams = counts.sum(axis=0)
    return float(distinct / grams) if grams else 1.0


def prompt_gram_counts(trace: Trace) -> NDArray[np.int64]:
    """``[prompts, 2]`` :func:`gram_counts` of each output of a trace."""
    outputs = np.split(trace.token, trace.offsets[1:-1])
    return np.array([gram_counts(output.tolist()) for output in outputs], np.int64).reshape(-1, 2)


def repeats_from(tokens: Sequence[int], order: int = REPEATED) -> int:
    """Length of the longest beginning in which no n-gram occurs twice; all of it where none does."""
    seen = set()
    for end in range(order, len(tokens) + 1):
        gram = tuple(tokens[end - order : end])
        if gram in seen:
            return end - 1
        seen.add(gram)
    return len(tokens)


def cut_at_repetition(trace: Trace, order: int = REPEATED) -> Trace:
    """The trace with every output cut before it completes an n-gram that it has held before.

    What was drafted stays; tokens past the new end count as rejected, as past any end of an output. Only for greedy
    traces.
    """
    assert trace.sampled is None, "a trace of sampled decoding is not cut"
    outputs = np.split(trace.token, trace.offsets[1:-1])
    lengths = np.array([repeats_from(output.tolist(), order) for output in outputs], np.int64)
    offsets = offsets_of(lengths)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    rows = inside + np.repeat(trace.offsets[:-1], lengths)
    columns = {name: getattr(trace, name)[rows] for name in COLUMNS}
    left = np.repeat(lengths, lengths) - inside
    columns["accepted"] = np.minimum(columns["accepted"], left).astype(trace.accepted.dtype)
    prompts = tuple(
        prompt if length == prompt.output_tokens else replace(prompt, output_tokens=length, finish="length")
        for prompt, length in zip(trace.prompts, lengths.tolist(), strict=True)
    )
    return replace(trace, prompts=prompts, offsets=offsets, **columns)
