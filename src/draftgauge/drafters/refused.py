"""Drafts along a sampled output: the chance of acceptance at every position, and one refused draft from each.

The draft takes in prompt and output in one pass, which with the logits that the output was drawn from gives both
chances of :mod:`draftgauge.traces.sampled`. From every position a branch opens with a token that the target would
refuse, and all branches grow together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from draftgauge.drafters.base import Drafter
from draftgauge.drafters.dense import (
    CHUNK,
    DenseDrafts,
    branch_chunks,
    cut_after_end,
    grow_branches,
    note,
    take_in_prompt,
)
from draftgauge.models.base import CachedModel
from draftgauge.verification import Sampling, choose, draw, probabilities, residual

Chances = NDArray[np.float32]


@dataclass(frozen=True)
class DraftRules:
    model: CachedModel
    end_tokens: frozenset[int]
    sampling: Sampling


@runtime_checkable
class DraftsRefused(Drafter, Protocol):
    """A drafter whose drafts along a sampled output can be recorded: one draft tells of the next positions too."""

    def draft_refused(
        self,
        prompt_tokens: list[int],
        output: list[int],
        target_logits: Tensor,
        sampling: Sampling,
        gamma_max: int,
        generator: Generator,
    ) -> tuple[DenseDrafts, Chances, Chances]:
        """See :func:`draft_refused`."""
        ...


@torch.inference_mode()
def draft_refused(
    rules: DraftRules,
    prompt_tokens: list[int],
    output: list[int],
    target_logits: Tensor,
    sampling: Sampling,
    gamma_max: int,
    generator: Generator,
) -> tuple[DenseDrafts, Chances, Chances]:
    """Drafts from every position of an output whose first token is refused, and the chances of acceptance there.

    Args:
        rules: the draft model, whose cache is overwritten, and how it drafts.
        prompt_tokens: at least one.
        output: ``N`` tokens; an end token can only be the last.
        target_logits: ``[N, V]`` that the output was drawn from.
        sampling: of the target.
        gamma_max: longest draft, ``G``.
        generator: on the models' device.

    Returns:
        The drafts; ``acceptance`` and ``survival``, ``[N]`` each, NaN where the text is longer than the draft model
        takes.
    """
    model, vocabulary = rules.model, target_logits.shape[-1]
    positions = len(output)
    rows = max(0, min(positions, model.spec.context - len(prompt_tokens) + 1))
    drafts = DenseDrafts.empty(positions, gamma_max)
    chances = np.full((2, positions), np.nan, np.float32)
    text = take_in_prompt(model, prompt_tokens, output) if rows else torch.empty(0)
    following = torch.tensor(output, device=model.spec.device)
    for begin in range(0, rows, CHUNK):
        end = min(begin + CHUNK, rows)
        logits = model.forward(text[begin:end])[:, :vocabulary]
        p, q = probabilities(target_logits[begin:end], sampling), probabilities(logits, rules.sampling)
        probability, refused = _first_refused(p, q, following[begin:end], generator)
        # Of logits that are not finite any token will do: the recorder refuses their signals.
        note(logits, refused, drafts, np.arange(begin, end), 0)
        chances[:, begin:end] = probability.cpu().numpy()
    _grow(rules, len(prompt_tokens), rows, drafts, vocabulary, generator)
    return drafts, chances[0], chances[1]


def _first_refused(p: Tensor, q: Tensor, output: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Acceptance and survival ``[2, n]``, and a token ``[n]`` drafted and refused, of the law ``norm(max(q - p, 0))``.

    Args:
        p: ``[n, V]`` the target's distributions.
        q: ``[n, W]`` the draft's; a narrower one has no mass on the ids it lacks.
        output: ``[n]`` the tokens that the output has.
    """
    shared = p[:, : q.shape[-1]]
    position = torch.arange(len(output), device=p.device)
    inside = output < q.shape[-1]
    of_draft = torch.where(inside, q[position, output.clamp(max=q.shape[-1] - 1)], 0.0)
    # The output's token had mass when it was drawn; computed over other rows at once, it may lose it at a nucleus'
    # edge.
    of_target = p[position, output].clamp_min(torch.finfo(p.dtype).tiny)
    chances = torch.stack([torch.minimum(shared, q).sum(-1), of_draft / of_target])
    return chances.clamp(0, 1), draw(residual(q, shared), generator).clamp_min(0)


def _grow(
    rules: DraftRules,
    prompt_tokens: int,
    rows: int,
    drafts: DenseDrafts,
    vocabulary: int,
    generator: Generator,
) -> None:
    """Draft on after the refused tokens, as the draft would go on after them live."""
    limits = np.minimum(len(drafts.tokens[0]), rules.model.spec.context - prompt_tokens - np.arange(rows) + 1)
    ended = np.isin(drafts.tokens[:rows, 0], list(rules.end_tokens))
    branching = np.flatnonzero(~ended & (limits > 1))
    for chunk in branch_chunks(rules.model, branching):
        grow_branches(
            rules.model,
            prompt_tokens + chunk,
            chunk,
            limits,
            drafts,
            vocabulary,
            lambda logits: choose(logits, rules.sampling, generator).clamp_min(0),
        )
    cut_after_end(drafts, rules.end_tokens)
