"""Traces put together in memory: from records, and from other traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.core.compressions import UNCOMPRESSED
from draftgauge.traces.record import PromptRecord
from draftgauge.traces.sampled import with_chances
from draftgauge.traces.trace import SIGNALS, SampledDrafts, Trace

# The arrays with one row a position; a record of sampled decoding has two more.
COLUMNS = ("token", "target_entropy", "drafted", "accepted", "draft_token", "confidence", "entropy", "margin")
CHANCES = ("acceptance", "survival")


def make_trace(records: Sequence[PromptRecord], max_new_tokens: int, compression: str = UNCOMPRESSED) -> Trace:
    """A trace in memory from valid records of one run, at least one, in the order given.

    ``max_new_tokens`` is the run's limit of output tokens, ``compression`` that of the target.
    """
    (gamma_max,) = {record.gamma_max for record in records}
    assert len({record.sampled for record in records}) == 1, "a trace is either greedy or sampled"
    for record in records:
        record.validate()
        assert record.info.output_tokens <= max_new_tokens, record.info
    columns: dict[str, Any] = {name: np.concatenate([getattr(record, name) for record in records]) for name in COLUMNS}
    trace = Trace(
        prompts=tuple(record.info for record in records),
        offsets=offsets_of([record.info.output_tokens for record in records]),
        gamma_max=gamma_max,
        max_new_tokens=max_new_tokens,
        compression=compression,
        **columns,
    )
    if not records[0].sampled:
        return trace
    return with_chances(trace, *(np.concatenate([getattr(record, name) for record in records]) for name in CHANCES))


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """``[prompts + 1]`` first row of each prompt, then the number of rows."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def remaining_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """``[P]`` rows from each row to the end of its prompt, itself included."""
    return np.repeat(offsets[1:], np.diff(offsets)) - np.arange(offsets[-1])


def conversations(trace: Trace) -> NDArray[np.int64]:
    """``[prompts]`` number of the conversation that each is a turn of, from 0 on; mostly there is one turn."""
    if trace.turns == 1:
        return np.arange(len(trace.prompts))
    numbers = np.unique([prompt.index // trace.turns for prompt in trace.prompts], return_inverse=True)[1]
    return numbers.reshape(-1).astype(np.int64)


def select(trace: Trace, keep: ArrayLike) -> Trace:
    """The prompts for which ``keep`` (``[prompts]`` bool) is true, in their order."""
    mask = np.asarray(keep, np.bool_)
    assert mask.shape == (len(trace.prompts),), mask.shape
    return take(trace, np.flatnonzero(mask))


def take(trace: Trace, order: NDArray[np.int64]) -> Trace:
    """The prompts at the positions ``order`` (``[n]``), in that order; a position may come more than once."""
    lengths = np.diff(trace.offsets)[order]
    offsets = offsets_of(lengths)
    rows = np.arange(offsets[-1]) + np.repeat(trace.offsets[:-1][order] - offsets[:-1], lengths)
    columns = {name: getattr(trace, name)[rows] for name in COLUMNS}
    sampled = trace.sampled
    if sampled is not None:
        sampled = SampledDrafts(*(getattr(sampled, each.name)[rows] for each in fields(sampled)))
    return replace(trace, prompts=tuple(trace.prompts[i] for i in order), offsets=offsets, sampled=sampled, **columns)


def narrow(trace: Trace, gamma_max: int) -> Trace:
    """The trace as if drafts of at most ``gamma_max`` tokens had been recorded; itself where none is longer."""
    if gamma_max >= trace.gamma_max:
        return trace
    wide = ("draft_token", *SIGNALS)
    columns: dict[str, Any] = {name: getattr(trace, name)[:, :gamma_max] for name in wide}
    counts = {name: np.minimum(getattr(trace, name), gamma_max) for name in ("drafted", "accepted")}
    sampled = trace.sampled
    if sampled is not None:
        sampled = replace(sampled, **{name: getattr(sampled, name)[:, :gamma_max] for name in wide})
    return replace(trace, gamma_max=gamma_max, sampled=sampled, **columns, **counts)
