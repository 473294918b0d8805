"""Drafts from every position of a known output: from all positions together, or one by one as a live run would.

Row ``p`` drafts the continuation of prompt and ``output[:p]``. If the first token drafted at ``p`` equals
``output[p]``, the rest of that draft is the draft of row ``p + 1``. Only rows whose first token differs from the output
need a branch of their own. Along a sampled output, every position gets its acceptance probabilities
(:mod:`draftgauge.traces.sampled`) and one draft that begins with a token that the target would reject.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.base import Drafter, Drafting
from draftgauge.models.base import CachedModel
from draftgauge.verification import Sampling, choose, draw, probabilities, residual, signals

Rows = NDArray[np.int64]

CHUNK = 256  # positions that go through the draft model together: bounds the memory for logits


@dataclass(frozen=True)
class DenseDrafts:
    """Drafts from ``N`` positions, each of up to ``G`` tokens; -1 and NaN where nothing was drafted.

    Attributes:
        tokens: ``[N, G]`` int32.
        shown: ``[3, N, G]`` float32, confidence, entropy (bits) and margin.
    """

    tokens: NDArray[np.int32]
    shown: NDArray[np.float32]

    @classmethod
    def empty(cls, positions: int, gamma_max: int) -> DenseDrafts:
        return cls(
            np.full((positions, gamma_max), -1, np.int32), np.full((3, positions, gamma_max), np.nan, np.float32)
        )


@runtime_checkable
class DraftsEverywhere(Drafter, Protocol):
    """A drafter that can draft from all positions of a text together, faster than from one after the other."""

    def draft_everywhere(
        self, prompt_tokens: list[int], output: list[int], gamma_max: int, vocabulary: int
    ) -> DenseDrafts: ...


def draft_everywhere(
    drafter: Drafter, prompt_tokens: list[int], output: list[int], gamma_max: int, vocabulary: int
) -> DenseDrafts:
    """Greedy drafts from every position of an output, from all positions together if the drafter can.

    A drafter that reads its target's states needs this text to be the last one that the target has processed.
    """
    if isinstance(drafter, DraftsEverywhere):
        if not getattr(drafter, "sampling", Sampling()).greedy:
            raise DraftgaugeError("a trace holds greedy drafts: record with a drafter at temperature 0")
        return drafter.draft_everywhere(prompt_tokens, output, gamma_max, vocabulary)
    return draft_position_by_position(drafter, prompt_tokens, output, gamma_max)


@torch.inference_mode()
def draft_densely(
    model: CachedModel,
    prompt_tokens: list[int],
    output: list[int],
    gamma_max: int,
    end_tokens: frozenset[int] = frozenset(),
    vocabulary: int | None = None,
) -> DenseDrafts:
    """Greedy drafts of a language model from every position of an output, all positions together.

    One pass processes prompt and output; then every branch grows by one token in each of ``gamma_max - 1`` passes.
    Drafts are shorter where an end token comes or the draft model's context ends.

    Args:
        output: ``N`` tokens; an end token can only be the last.
        vocabulary: number of the target's logits; further logits of the draft model are ignored.
    """
    positions = len(output)
    # Drafts that equal the output up to its end continue with row N.
    rows = min(positions + 1, model.spec.context - len(prompt_tokens) + 1)
    drafts = DenseDrafts.empty(positions, gamma_max)
    if rows <= 0:
        return drafts
    own = DenseDrafts.empty(rows, gamma_max)
    text = take_in_prompt(model, prompt_tokens, output)[:rows]
    for begin in range(0, rows, CHUNK):
        logits = model.forward(text[begin : begin + CHUNK])[:, :vocabulary]
        note(logits, logits.argmax(-1), own, np.arange(begin, begin + len(logits)), 0)

    first = own.tokens[:, 0]
    ended = np.isin(first, list(end_tokens))
    goes_on = np.zeros(rows, np.bool_)  # with the draft of the next row, whose text it shares
    goes_on[:-1] = (first[:-1] == np.asarray(output[: rows - 1])) & ~ended[:-1]
    limits = np.minimum(gamma_max, model.spec.context - len(prompt_tokens) - np.arange(rows) + 1)
    if rows > positions:  # row N only continues other rows, which have at least one token before it
        limits[positions] = min(limits[positions], gamma_max - 1) if goes_on[positions - 1] else 1
    branching = np.flatnonzero(~goes_on & ~ended & (limits > 1))
    grow_branches(model, len(prompt_tokens), branching, limits, own, Growth(best, vocabulary))
    cut_after_end(own, end_tokens)

    # The draft of row p equals the output up to row q, the next one that does not go on: it consists of the first
    # tokens of the rows before q, then the draft of row q.
    count, stops, depth = min(positions, rows), np.flatnonzero(~goes_on), np.arange(gamma_max)
    start = np.arange(count)[:, None]
    stop = stops[np.searchsorted(stops, start)]
    follows = depth < stop - start
    row, column = np.where(follows, start + depth, stop), np.where(follows, 0, depth - (stop - start))
    drafts.tokens[:count] = own.tokens[row, column]
    drafts.shown[:, :count] = own.shown[:, row, column]
    return drafts


def draft_position_by_position(
    drafter: Drafter, prompt_tokens: list[int], output: list[int], gamma_max: int
) -> DenseDrafts:
    """The same with any drafter, from one position after the other as in a live run."""
    drafts = DenseDrafts.empty(len(output), gamma_max)
    drafter.prefill(prompt_tokens)
    for position, token in enumerate(output):
        draft = drafter.propose(gamma_max, lambda signal: True)
        count = len(draft.tokens)
        drafts.tokens[position, :count] = draft.tokens
        for depth, signal in enumerate(draft.signals):
            drafts.shown[:, position, depth] = signal[1:4]
        drafter.commit(0, [token])
    return drafts


def take_in_prompt(model: CachedModel, prompt_tokens: list[int], output: list[int]) -> Tensor:
    """Process a prompt up to its last token; that token and the output, ``[1 + N]``, as ids that the model has."""
    text = torch.tensor([*prompt_tokens, *output], device=model.spec.device).clamp_(max=model.spec.vocabulary - 1)
    before = len(prompt_tokens) - 1
    model.reset()
    if before:
        model.forward(text[:before], last_only=True)
    return text[before:]


class Growth(NamedTuple):
    """How drafts go on.

    Attributes:
        choose: the next tokens ``[n]`` from logits ``[n, V]``.
        vocabulary: number of logits that are used; None for all.
        mask: taken in in place of every drafted token, by models that were trained so.
    """

    choose: Callable[[Tensor], Tensor]
    vocabulary: int | None
    mask: int | None = None


def best(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def grow_branches(
    model: CachedModel,
    prompt_tokens: int,
    branching: Rows,
    limits: NDArray[np.int64],
    own: DenseDrafts,
    growth: Growth,
) -> None:
    """Continue the drafts of some rows after their first token: one token for all of them a pass, up to their limits.

    Args:
        branching: the rows ``[n]``; so many tokens of the output, and those of the prompt, are before each draft.
        limits: longest draft of every row of ``own``, which holds the first tokens and receives the others.
    """
    device, most = model.spec.device, min(CHUNK, model.spec.branches)
    for begin in range(0, len(branching), most):
        rows = branching[begin : begin + most]
        session = model.branches(torch.tensor(prompt_tokens + rows, device=device))
        tokens = torch.tensor(own.tokens[rows, 0], dtype=torch.int64, device=device)
        for depth in range(1, int(limits[rows].max())):
            within = limits[rows] > depth
            if not within.all():
                kept = torch.tensor(np.flatnonzero(within), device=device)
                session.keep(kept)
                tokens, rows = tokens[kept], rows[within]
            taken_in = tokens if growth.mask is None else torch.full_like(tokens, growth.mask)
            logits = session.step(taken_in)[:, : growth.vocabulary]
            tokens = growth.choose(logits)
            note(logits, tokens, own, rows, depth)


def note(
    logits: Tensor, tokens: Tensor, own: DenseDrafts, rows: Rows, depth: int, confidence: Tensor | None = None
) -> None:
    """Note a token of each row and its signals, with the drafter's own ``confidence`` ``[n]`` if it has one."""
    of_row, *others = signals(logits)
    own.tokens[rows, depth] = tokens.cpu().numpy()
    own.shown[:, rows, depth] = torch.stack([of_row if confidence is None else confidence, *others]).cpu().numpy()


def cut_at_context(own: DenseDrafts, room: int) -> None:
    """Drop what a draft has beyond the context: row ``p`` has room for ``room - p`` tokens."""
    beyond = np.add.outer(np.arange(len(own.tokens)), np.arange(own.tokens.shape[1])) >= room
    own.tokens[beyond] = -1
    own.shown[:, beyond] = np.nan


def cut_after_end(own: DenseDrafts, end_tokens: frozenset[int]) -> None:
    ends = np.isin(own.tokens, list(end_tokens))
    after = np.cumsum(ends, axis=1) - ends > 0
    own.tokens[after] = -1
    own.shown[:, after] = np.nan


Chances = NDArray[np.float32]


@runtime_checkable
class DraftsRefused(Drafter, Protocol):
    """A drafter whose drafts along a sampled output can be recorded: its draft depends on the text before it alone."""

    def draft_refused(
        self,
        prompt_tokens: list[int],
        output: list[int],
        target_logits: Tensor,
        sampling: Sampling,
        gamma_max: int,
        generator: Generator,
    ) -> tuple[DenseDrafts, Chances, Chances]: ...


@torch.inference_mode()
def draft_refused(
    model: CachedModel,
    how: Drafting,
    prompt_tokens: list[int],
    output: list[int],
    target_logits: Tensor,
    sampling: Sampling,
    gamma_max: int,
) -> tuple[DenseDrafts, Chances, Chances]:
    """From every position of an output a draft whose first token is rejected, and the acceptance probabilities there.

    Args:
        model: the draft model, whose cache is overwritten.
        how: its end tokens, sampling and generator.
        output: ``N`` tokens; an end token can only be the last.
        target_logits: ``[N, V]`` that the output was drawn from.

    Returns:
        The drafts; ``acceptance`` and ``survival``, ``[N]`` each, NaN where the text outgrows the draft model.
    """
    own, generator = how.sampling or Sampling(), how.generator
    vocabulary, positions = target_logits.shape[-1], len(output)
    rows = max(0, min(positions, model.spec.context - len(prompt_tokens) + 1))
    drafts = DenseDrafts.empty(positions, gamma_max)
    chances = np.full((2, positions), np.nan, np.float32)
    text = take_in_prompt(model, prompt_tokens, output) if rows else torch.empty(0)
    following = torch.tensor(output, device=model.spec.device)
    for begin in range(0, rows, CHUNK):
        end = min(begin + CHUNK, rows)
        logits = model.forward(text[begin:end])[:, :vocabulary]
        p, q = probabilities(target_logits[begin:end], sampling), probabilities(logits, own)  # [n, V], [n, W]
        token, row = following[begin:end], torch.arange(end - begin, device=p.device)
        shared, last = p[:, : q.shape[-1]], q.shape[-1] - 1  # the draft has no mass on ids that it lacks
        of_draft = torch.where(token <= last, q[row, token.clamp(max=last)], 0.0)
        # The output's token had a probability above 0 when it was drawn. Here, computed together with other rows,
        # rounding may put it outside the top-p nucleus.
        of_target = p[row, token].clamp_min(torch.finfo(p.dtype).tiny)
        probability = torch.stack([torch.minimum(shared, q).sum(-1), of_draft / of_target]).clamp(0, 1)
        refused = draw(residual(q, shared), generator).clamp_min(0)  # from norm(max(q - p, 0))
        # Where logits are not finite the token does not matter: the recorder refuses their signals.
        note(logits, refused, drafts, np.arange(begin, end), 0)
        chances[:, begin:end] = probability.cpu().numpy()
    limits = np.minimum(gamma_max, model.spec.context - len(prompt_tokens) - np.arange(rows) + 1)
    branching = np.flatnonzero(~np.isin(drafts.tokens[:rows, 0], list(how.end_tokens)) & (limits > 1))

    def drawn(logits: Tensor) -> Tensor:  # as live drafting would
        return choose(logits, own, generator).clamp_min(0)

    grow_branches(
        model, len(prompt_tokens), branching, limits, drafts, Growth(drawn, vocabulary)
    )  # as live drafting would
    cut_after_end(drafts, how.end_tokens)
    return drafts, chances[0], chances[1]
