"""The recorder: the target's output for a prompt, and the drafts from each of its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import Prompt
from draftgauge.decoding.plain import plain_decode, prefill
from draftgauge.decoding.settings import DecodingSettings, Finish
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.dense import CHUNK, Chances, DenseDrafts, DraftsRefused, draft_everywhere
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.traces.trace import PromptInfo, PromptRecord, accepted_lengths
from draftgauge.verification import NOT_FINITE, best_tokens, check_finite, entropy_bits


@dataclass(frozen=True)
class Answer:
    """An output: its tokens, how it ended, and the target's ``entropy`` ``[N]`` in bits before each, if known."""

    tokens: list[int]
    finish: Finish
    entropy: NDArray[np.float32] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RecordingPlan:
    """What is recorded of every prompt.

    Attributes:
        settings: their limit and end tokens end the output, the end tokens also drafts.
    """

    settings: DecodingSettings
    gamma_max: int = 16

    def __post_init__(self) -> None:
        if self.gamma_max < 1:
            raise DraftgaugeError(f"gamma_max is the longest draft and must be at least 1, not {self.gamma_max}")
        if self.settings.stop_strings:
            raise DraftgaugeError("a trace is of output up to an end token: record without stop strings")


def record_prompt(
    target: CachedModel,
    drafter: Drafter,
    prompt: Prompt,
    prompt_tokens: list[int],
    plan: RecordingPlan,
    generator: Generator | None = None,
) -> PromptRecord:
    """Record one prompt densely.

    At a temperature above 0 the output is drawn once, and the record holds chances of acceptance in place of outcomes
    (:mod:`draftgauge.traces.sampled`).

    Passes over many positions round differently from a live drafter's single steps. In float32 the record is what a
    live run shows up to the last digits. In lower precision a drafted near-tie may fall the other way.

    Args:
        drafter: what drafts, from all positions together where it can
            (:class:`~draftgauge.drafters.dense.DraftsEverywhere`). Sampled decoding is recorded only with one whose
            draft from one position tells of the next ones (:class:`~draftgauge.drafters.dense.DraftsRefused`).
        generator: on the target's device, needed at a temperature above 0.
    """
    settings, gamma_max = plan.settings, plan.gamma_max
    greedy = settings.sampling.greedy
    if not greedy and (generator is None or not isinstance(drafter, DraftsRefused)):
        raise DraftgaugeError(
            "recording at a temperature above 0 needs a draft model (drafter language_model) and a random generator"
        )
    kept: list[Tensor] = []  # of each output token the entropy [1], or the logits [1, V]
    keep = (lambda logits: kept.append(entropy_bits(logits))) if greedy else kept.append
    output = plain_decode(target, prompt_tokens, settings, generator, on_logits=keep)
    behind, chances = torch.cat(kept), None
    if isinstance(drafter, DraftsRefused) and generator is not None and not greedy:
        drafts, *chances = drafter.draft_refused(
            prompt_tokens, output.tokens, behind, settings.sampling, gamma_max, generator
        )
        behind = entropy_bits(behind)
    else:
        drafts = draft_everywhere(drafter, prompt_tokens, output.tokens, gamma_max, target.spec.vocabulary)
    answer = Answer(output.tokens, output.finish)
    return _record((prompt, prompt_tokens), answer, behind.cpu().numpy(), drafts, chances)


@torch.inference_mode()
def record_answer(
    target: CachedModel, drafter: Drafter, prompt: tuple[Prompt, list[int]], answer: Answer, plan: RecordingPlan
) -> tuple[PromptRecord, tuple[int, ...]]:
    """Record one prompt densely, with an output that is known: the target takes it in in one teacher-forced pass.

    It runs no pass where the answer's entropy is known: for drafters that read nothing of the target. Where a token is
    not the target's most probable one, replay is not exact: a live step would commit another token there.

    Args:
        target, drafter: as of :func:`record_prompt`; greedy.

    Returns:
        The record, and the positions whose token is not the target's choice.
    """
    _, prompt_tokens = prompt
    entropy, differs = answer.entropy, tuple[int, ...]()
    if entropy is None:
        prefill(target, prompt_tokens)
        text = upload([prompt_tokens[-1], *answer.tokens], target.spec.device)
        entropies, best = [], []
        for chunk in text[:-1].split(CHUNK):  # no more logits exist at once
            logits = target.forward(chunk)
            entropies.append(entropy_bits(logits))
            best += best_tokens(logits).tolist()
        check_finite(best, f"target ({target.spec.dtype})", len(prompt_tokens))
        differs = tuple(n for n, (own, token) in enumerate(zip(best, answer.tokens, strict=True)) if own != token)
        entropy = torch.cat(entropies).cpu().numpy()
    drafts = draft_everywhere(drafter, prompt_tokens, answer.tokens, plan.gamma_max, target.spec.vocabulary)
    return _record(prompt, answer, entropy, drafts, None), differs


def _record(
    source: tuple[Prompt, list[int]],
    output: Answer,
    target_entropy: NDArray[np.float32],
    drafts: DenseDrafts,
    chances: Sequence[Chances] | None,
) -> PromptRecord:
    prompt, prompt_tokens = source
    if np.isnan(drafts.shown[0][drafts.tokens >= 0]).any():
        check_finite((NOT_FINITE,), "draft model", len(prompt_tokens))
    acceptance, survival = chances or (None, None)
    info = PromptInfo(
        index=prompt.index,
        identifier=prompt.identifier,
        task=prompt.task,
        split=prompt.split,
        prompt_tokens=len(prompt_tokens),
        output_tokens=len(output.tokens),
        finish=output.finish,
        prompt_token=tuple(prompt_tokens),
    )
    token = np.asarray(output.tokens, np.int32)
    return PromptRecord(
        info=info,
        token=token,
        target_entropy=target_entropy,
        draft_token=drafts.tokens,
        confidence=drafts.shown[0],
        entropy=drafts.shown[1],
        margin=drafts.shown[2],
        accepted=accepted_lengths(token, drafts.tokens),
        acceptance=acceptance,
        survival=survival,
    )
