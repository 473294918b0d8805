"""A dense trace in memory: for every position of the target's greedy output, what would be drafted from there.

Position ``p`` of a prompt stands for the state in which ``p`` output tokens are committed. A step that starts there
drafts ``d_1 .. d_g``; the target verifies them with ``g + 1`` positions and commits the accepted ones and one more of
its own. Greedy output does not depend on the draft lengths, so any policy can be replayed exactly. Sampled output does
not depend on them in law, so any policy can be replayed in expectation (:mod:`draftgauge.traces.sampled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.parts import UNCOMPRESSED

GRAM = 4  # tokens: how much outputs repeat themselves is told by their distinct 4-grams over all

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SIGNALS = ("confidence", "entropy", "margin")

FINISHES = ("length", "stop")


@dataclass(frozen=True)
class PromptInfo:
    """One recorded prompt. ``index`` is its position in the prompt file, ``identifier`` the file's own id or the index,
    ``split`` "train", "validation", "test" or "". ``output_tokens`` is ``N``, at least 1. ``finish`` is "length" (the
    limit was reached) or "stop" (the output ends with an end token). ``prompt_token`` has the prompt's token ids, for
    policies that read the text."""

    index: int
    identifier: str
    task: str
    split: str
    prompt_tokens: int
    output_tokens: int
    finish: str
    prompt_token: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("index", 0), ("prompt_tokens", 0), ("output_tokens", 1)):
            if not least <= getattr(self, name) < 2**31:
                raise TraceError(f"prompt {self.index}: {name} is {getattr(self, name)}, must be {least} or more")
        if self.finish not in FINISHES:
            raise TraceError(f"prompt {self.index}: finish is {self.finish!r}, must be one of {', '.join(FINISHES)}")


@dataclass(frozen=True)
class SampledDrafts:
    """What a trace of sampled decoding knows of the drafts from its positions, beside those that were drawn.

    ``p`` and ``q`` are the distributions of target and draft at a position; ``y`` is the output's token there. See
    :mod:`draftgauge.traces.sampled`.

    Attributes:
        acceptance: ``[P]`` the chance that a token drafted at the position is accepted, ``sum_v min(p(v), q(v))``.
        survival: ``[P]`` the same chance once the output is known to have ``y`` there, ``min(1, q(y) / p(y))``. Both
            are NaN where nothing could be drafted.
        draft_token: ``[P, G]`` the *refused draft*: its first token is one that the target refused; -1 where nothing
            was drafted.
        confidence, entropy, margin: ``[P, G]`` its signals. Those of its first token belong to the position, whatever
            was drafted there.
    """

    acceptance: NDArray[np.float32]
    survival: NDArray[np.float32]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]


@dataclass(frozen=True)
class Trace:
    """All positions of all prompts, one after the other: ``P`` of them, with drafts of up to ``G = gamma_max`` tokens.

    Attributes:
        offsets: ``[prompts + 1]``; prompt ``i`` owns the rows ``offsets[i]:offsets[i + 1]``.
        token: ``[P]`` the target's token at the position.
        target_entropy: ``[P]`` bits, of the distribution that gave ``token``; a step that starts at ``p`` knows only
            those before ``p``.
        drafted: ``[P]`` tokens drafted from the position, fewer than ``G`` where the drafter ended the text or had no
            more to propose.
        accepted: ``[P]`` how many of them equal the target's continuation; tokens past the recorded output do not.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        confidence, entropy, margin: ``[P, G]`` top-1 probability, bits, top-1 minus top-2 probability; NaN likewise.
        max_new_tokens: a live step that starts at ``p`` drafts at most ``max_new_tokens - p - 1``.
        sampled: of sampled decoding only. The output is then one drawn from the target, and the columns above hold one
            draw of the drafts.
        turns: prompts whose indices agree when divided by it are turns of one conversation.
    """

    prompts: tuple[PromptInfo, ...]
    offsets: NDArray[np.int64]
    token: NDArray[np.int32]
    target_entropy: NDArray[np.float32]
    drafted: NDArray[np.int16]
    accepted: NDArray[np.int16]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]
    gamma_max: int
    max_new_tokens: int
    compression: str = UNCOMPRESSED
    sampled: SampledDrafts | None = None
    turns: int = 1

    @property
    def positions(self) -> int:
        return int(self.offsets[-1])

    @property
    def outputs(self) -> list[NDArray[Any]]:
        """The tokens of each prompt's output."""
        return np.split(self.token, self.offsets[1:-1])

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(prompt.task for prompt in self.prompts))
        mean = float(self.accepted.mean()) if self.positions else 0.0
        return (
            f"<Trace of {len(self.prompts)} prompts ({tasks}): {self.positions:,} positions, target "
            f"{self.compression}, drafts of up to {self.gamma_max}, {mean:.2f} tokens accepted on average>"
        )


@dataclass(frozen=True)
class PromptRecord:
    """One prompt, recorded densely: ``N`` output positions, up to ``G`` tokens drafted from each.

    The columns ``[N]`` and ``[N, G]`` are those of :class:`~draftgauge.traces.trace.Trace`. A record of sampled
    decoding has ``acceptance`` and ``survival``, and its drafts are the *refused* ones of
    :class:`~draftgauge.traces.trace.SampledDrafts`.
    """

    info: PromptInfo
    token: NDArray[np.int32]
    target_entropy: NDArray[np.float32]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]
    accepted: NDArray[np.int16]
    acceptance: NDArray[np.float32] | None = None
    survival: NDArray[np.float32] | None = None

    @property
    def sampled(self) -> bool:
        return self.acceptance is not None

    @property
    def gamma_max(self) -> int:
        return int(self.draft_token.shape[1])

    @property
    def drafted(self) -> NDArray[np.int16]:
        """``[N]`` tokens drafted from each position."""
        counts: NDArray[np.int16] = (self.draft_token >= 0).sum(axis=1, dtype=np.int16)
        return counts

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first value that is off."""
        where, length = f"prompt {self.info.index}", self.info.output_tokens
        assert (self.acceptance is None) == (self.survival is None), where
        types = {"token": np.int32, "draft_token": np.int32, "accepted": np.int16}
        chances = ("acceptance", "survival") if self.sampled else ()
        for name in ("token", "target_entropy", "accepted", "draft_token", "confidence", "entropy", "margin", *chances):
            column, flat = getattr(self, name), name in ("token", "target_entropy", "accepted", *chances)
            assert column.shape == ((length,) if flat else (length, self.gamma_max)), (where, name, column.shape)
            assert column.dtype == types.get(name, np.float32), (where, name, column.dtype)
        check_rows(self, where)
        if self.acceptance is not None and self.survival is not None:
            check_chances(self.acceptance, self.survival, self.drafted > 0, where)


def make_record(
    info: PromptInfo, token: Sequence[int], drafts: Sequence[Sequence[int]], gamma_max: int
) -> PromptRecord:
    """A record of ``N`` greedy tokens and what was drafted from each, by a drafter that is certain of all it drafts."""
    tokens = np.asarray(token, np.int32)
    draft_token = np.full((len(drafts), gamma_max), -1, np.int32)
    for row, draft in enumerate(drafts):
        draft_token[row, : len(draft)] = draft
    zero = np.where(draft_token >= 0, np.float32(0), np.float32(np.nan))
    record = PromptRecord(
        info=info,
        token=tokens,
        target_entropy=np.zeros(len(tokens), np.float32),
        draft_token=draft_token,
        confidence=zero + 1,
        entropy=zero,
        margin=zero + 1,
        accepted=accepted_lengths(tokens, draft_token),
    )
    record.validate()
    return record


TOLERANCE = 1e-4  # a softmax in float32 over a large vocabulary may sum to slightly more than 1


def accepted_lengths(
    token: NDArray[np.int32], draft_token: NDArray[np.int32], remaining: NDArray[np.int64] | None = None
) -> NDArray[np.int16]:
    """How many drafted tokens of each position equal the greedy continuation, before the first that does not.

    Args:
        token: ``[P]`` greedy tokens; ``d_1`` drafted from row ``p`` is compared with ``token[p]``, ``d_2`` with
            ``token[p + 1]``, ...
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        remaining: ``[P]`` rows from each row to the end of its own prompt, itself included; by default all rows are one
            prompt.

    Returns:
        ``[P]`` int16; tokens past the recorded output count as rejected.
    """
    rows, gamma_max = draft_token.shape
    left = np.arange(rows, 0, -1) if remaining is None else remaining
    padded = np.concatenate([token, np.zeros(gamma_max, np.int32)])
    continuation = np.lib.stride_tricks.sliding_window_view(padded, gamma_max)[:rows]
    matches = (draft_token == continuation) & (np.arange(gamma_max) < left[:, None])
    lengths: NDArray[np.int16] = np.logical_and.accumulate(matches, axis=1).sum(axis=1, dtype=np.int16)
    return lengths


def check_rows(rows: PromptRecord | Trace, where: str, remaining: NDArray[np.int64] | None = None) -> None:
    """Raise :class:`TraceError` naming the first column with a value out of range, and the row."""
    drafted = rows.draft_token >= 0
    entropy = rows.target_entropy
    _refuse(rows.token < 0, f"{where}: token must be 0 or more")
    _refuse(drafted[:, 1:] & ~drafted[:, :-1], f"{where}: draft_token has tokens after its padding (-1)")
    _refuse(~(entropy >= -TOLERANCE) | np.isinf(entropy), f"{where}: target_entropy must be bits, 0 or more")
    for name, highest in (("confidence", 1.0), ("entropy", np.inf), ("margin", 1.0)):
        values: NDArray[np.float32] = getattr(rows, name)
        problem = "must be a number for each drafted token and NaN for the others"
        _refuse(np.isnan(values) == drafted, f"{where}: {name} {problem}")
        outside = (values < -TOLERANCE) | (values > highest + TOLERANCE) | np.isinf(values)
        _refuse(outside, f"{where}: {name} must lie in 0..{highest:g}")
    expected = accepted_lengths(rows.token, rows.draft_token, remaining)
    _refuse(
        rows.accepted != expected,
        f"{where}: accepted differs from the drafted tokens that equal the greedy continuation",
    )


def check_chances(
    acceptance: NDArray[np.float32], survival: NDArray[np.float32], drafted: NDArray[np.bool_], where: str
) -> None:
    """Raise :class:`TraceError` naming the first chance out of range, and its row."""
    for name, values in (("acceptance", acceptance), ("survival", survival)):
        bad = np.where(drafted, ~((values >= 0) & (values <= 1)), ~np.isnan(values))
        _refuse(bad, f"{where}: {name} must be a chance where a token was drafted and NaN elsewhere")


def _refuse(bad: NDArray[np.bool_], problem: str) -> None:
    if bad.any():
        raise TraceError(f"{problem} (row {int(np.argwhere(bad)[0][0])})")


# The arrays with one row a position; a record of sampled decoding has two more.
COLUMNS = ("token", "target_entropy", "drafted", "accepted", "draft_token", "confidence", "entropy", "margin")
CHANCES = ("acceptance", "survival")


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


def draft_caps(trace: Trace) -> Ints:
    """``[positions]`` the most tokens that a step can draft there, whatever the policy.

    A step leaves room for the target's own token under ``max_new_tokens``, and drafts no more than the drafter had to
    propose. That the output stops before the limit is not known to it.
    """
    return np.minimum(trace.drafted, draft_room(trace))


def draft_room(trace: Trace) -> Ints:
    """``[positions]`` tokens that may be drafted there, leaving room for the target's own under ``max_new_tokens``."""
    return trace.max_new_tokens - 1 - positions_in_prompt(trace)


def positions_in_prompt(trace: Trace) -> Ints:
    starts: Ints = np.repeat(trace.offsets[:-1], np.diff(trace.offsets))
    return np.arange(trace.positions) - starts


def context_lengths(trace: Trace) -> Ints:
    """``[positions]`` prompt and committed output tokens at each row: the context length that steps are costed at."""
    prompt_tokens = np.array([prompt.prompt_tokens for prompt in trace.prompts], np.int64)
    return np.repeat(prompt_tokens, np.diff(trace.offsets)) + positions_in_prompt(trace)


def prompt_of_rows(trace: Trace) -> Ints:
    """``[positions]`` index of each row's prompt in ``trace.prompts``."""
    return np.repeat(np.arange(len(trace.prompts)), np.diff(trace.offsets))


def sum_by_prompt(prompt: Ints, values: ArrayLike, count: int = 0) -> Floats:
    """Sums over what has the same number (rows or steps of a prompt, turns of a conversation), at least ``count``."""
    return np.bincount(prompt, values, count).astype(np.float64, copy=False)  # integers if there are none


def check_prompt_tokens(trace: Trace) -> None:
    lacking = sum(len(prompt.prompt_token) != prompt.prompt_tokens for prompt in trace.prompts)
    if lacking:
        raise TraceError(
            f"the text is needed, and the trace lacks the prompt tokens of {lacking} of {len(trace.prompts)} "
            "prompts (traces of earlier versions do): profile again into a new folder"
        )


def gram_counts(tokens: Sequence[int]) -> tuple[int, int]:
    grams = list(zip(*(tokens[start:] for start in range(GRAM)), strict=False))
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
