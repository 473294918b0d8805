"""The speculative loop: draft, verify, accept, commit."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from draftgauge.core.signals import SignalName
from draftgauge.decoding.plain import prefill
from draftgauge.decoding.settings import DecodingSettings, Generation, OnCommit, Stopper, check_request, origins_of
from draftgauge.drafters.base import Draft, Drafter, DraftsUnread, UnreadDraft, completed, device_of
from draftgauge.drafters.language_model import until_end
from draftgauge.models.base import CachedModel
from draftgauge.models.device import seconds, upload
from draftgauge.policies.base import DropsLast, Extends, Policy, Signal, Step, asks_after_each_token, begin, reads_of
from draftgauge.verification import (
    Verdict,
    accept,
    accept_greedy,
    best_tokens,
    check_finite,
    entropy_bits,
    probabilities,
)


@torch.inference_mode()
def speculative_decode(
    target: CachedModel,
    drafter: Drafter,
    policy: Policy,
    prompt_tokens: list[int],
    settings: DecodingSettings,
    generator: Generator | None = None,
    on_commit: OnCommit | None = None,
) -> Generation:
    """Decode with speculation; the output has the distribution of :func:`~draftgauge.decoding.plain.plain_decode`.

    Greedy output is the same token for token as far as logits do not depend on how many tokens the target takes in at
    once. In float32 they do not; in lower precision near-ties may fall the other way.

    Args:
        drafter: proposes tokens. It ends its drafts with the settings' end tokens, and if it samples it must carry the
            distributions in its drafts.
        generator: on the target's device, needed if the sampling is not greedy.
        on_commit: told the new tokens and how each came, once a step.
    """
    check_request(target.spec, prompt_tokens, settings, generator)
    reads_of(policy)
    device = target.spec.device
    devices = {device, device_of(drafter, device)}
    stopper, result = Stopper(settings), Generation()

    started = seconds(*devices)
    prefill(target, prompt_tokens)
    drafter.prefill(prompt_tokens)
    prefilled = seconds(*devices)

    begin(policy, prompt_tokens)  # reading the prompt is part of decoding, not of the models' prefill
    last_token, finish = prompt_tokens[-1], None  # between steps the target holds the text but for its last token
    while finish is None:
        draft = _draft(drafter, policy, settings.gamma_max, stopper.remaining - 1)
        cached = target.length
        if isinstance(draft, Draft):
            fed = upload([last_token, *draft.tokens], device)  # [g + 1], verified in one pass
        else:
            fed = torch.cat((upload([last_token], device), draft.tokens.to(device)))
        logits = target.forward(fed)  # [g + 1, V]
        draft, verdict = _judge(draft, fed, logits, settings, generator, target, cached)
        if cached + 1 + verdict.accepted < target.length:
            target.truncate(cached + 1 + verdict.accepted)

        tokens, finish = stopper.cut([*draft.tokens[: verdict.accepted], verdict.token])
        accepted = min(verdict.accepted, len(tokens))  # what follows the end of the output is no part of it
        drafter.commit(min(accepted, draft.kept), tokens)
        last_token = tokens[-1]
        reads = policy.reads
        entropy = float(entropy_bits(logits[len(tokens) - 1, None])) if SignalName.TARGET_ENTROPY in reads else math.nan
        text = tokens if SignalName.TEXT in reads else ()
        step = Step(draft.drafted, accepted, len(tokens), draft.signals, entropy, text, draft.appended, draft.dropped)
        policy.observe(step)
        result.tokens += tokens
        result.steps.append(step)
        if on_commit is not None:
            on_commit(tokens, origins_of(step))
    result.finish = finish
    result.prefill_seconds = prefilled - started
    result.decode_seconds = seconds(*devices) - prefilled
    result.origins = [origin for step in result.steps for origin in origins_of(step)]
    return result


def _draft(drafter: Drafter, policy: Policy, most: int, room: int) -> Draft | UnreadDraft:
    """As many tokens as the policy wants, at most ``most`` and ``room``, and what it does to the draft's end."""
    limit = min(policy.limit(), most, room)
    reads, asked = policy.reads, 0

    def keep_drafting(signal: Signal) -> bool:
        nonlocal asked
        asked += 1
        return policy.keep_drafting(signal)

    asks, completes = asks_after_each_token(reads), isinstance(policy, DropsLast | Extends)
    draft = Draft([])
    if limit > 0:
        if not asks and not completes and isinstance(drafter, DraftsUnread):
            unread = drafter.propose_unread(limit)
            if unread is not None:
                return unread
        draft = drafter.propose(limit, keep_drafting if asks else None, reads)
    return completed(policy, draft, asked, room) if completes else draft


def _judge(
    draft: Draft | UnreadDraft,
    fed: Tensor,
    logits: Tensor,
    settings: DecodingSettings,
    generator: Generator | None,
    target: CachedModel,
    cached: int,
) -> tuple[Draft, Verdict]:
    """How many drafted tokens are accepted, and the target's own token: the step's one wait for the device."""
    if settings.sampling.greedy:
        own = best_tokens(logits)  # [g + 1]
    else:
        q = draft.probabilities
        p = probabilities(logits, settings.sampling)
        own = accept(fed[1:], None if q is None else q.to(p.device), p, generator)  # [2], as of a Verdict
    if isinstance(draft, Draft):
        tokens, read = draft.tokens, own.tolist()
    else:
        together = torch.cat((own, fed[1:])).tolist()
        read, tokens = together[: len(own)], until_end(together[len(own) :], settings.end_tokens)
        draft = Draft(tokens)
    check_finite(read, f"target ({target.spec.dtype})", cached + 1)
    if settings.sampling.greedy:
        return draft, accept_greedy(tokens, read)
    accepted, token = read
    return draft, Verdict(min(accepted, len(tokens)), token)
