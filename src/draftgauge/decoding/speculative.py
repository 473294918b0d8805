"""The speculative loop: draft, verify, accept, commit."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Generator, Tensor

from draftgauge.core.signals import Reads, SignalName
from draftgauge.decoding.clock import PhaseClock, seconds
from draftgauge.decoding.plain import prefill
from draftgauge.decoding.results import Generation, OnCommit, origins_of
from draftgauge.decoding.settings import DecodingSettings, check_request
from draftgauge.decoding.stopping import Finish, Stopper
from draftgauge.drafters.base import Draft, Drafter, DraftsUnread, KeepDrafting, UnreadDraft, completed, device_of
from draftgauge.drafters.draft_builder import until_end
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.policies.base import Extends, Policy, Signal, Step, Trims, asks_after_each_token, begin, reads_of
from draftgauge.verification import Verdict, accept, accept_greedy, entropy_bits, probabilities

_NO_DRAFT = Draft([])


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

    Greedy output is the same token for token as far as the target's logits do not depend on how many tokens it takes in
    at once: exactly so in float32, up to near-ties in lower precision.

    Args:
        target: the model whose output is decoded; its cache is emptied first.
        drafter: proposes tokens. It ends its drafts with the settings' end tokens, and if it samples it must carry the
            distributions in its drafts.
        policy: how far to draft; reset first.
        prompt_tokens: at least one.
        settings: limit, sampling and what stops the output.
        generator: on the target's device, needed if the sampling is not greedy.
        on_commit: told the new tokens and how each came, once a step.

    Raises:
        DraftgaugeError: if the prompt is empty, does not fit the target's context, or something needed is missing.
    """
    check_request(target.spec, prompt_tokens, settings, generator)
    return _Loop(target, drafter, policy, settings, generator, on_commit).run(prompt_tokens)


class _Loop:
    """One output in the making. The target's cache holds prompt and output but for the last token, between steps."""

    def __init__(
        self,
        target: CachedModel,
        drafter: Drafter,
        policy: Policy,
        settings: DecodingSettings,
        generator: Generator | None,
        on_commit: OnCommit | None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.drafts_unread = isinstance(drafter, DraftsUnread)
        self.policy = policy
        self.sampling = settings.sampling
        self.greedy = settings.sampling.greedy
        self.end_tokens = settings.end_tokens
        self.generator = generator
        self.on_commit = on_commit
        self.stopper = Stopper(settings)
        self.device = target.spec.device
        self.devices = {self.device, device_of(drafter, self.device)}
        self.clock = PhaseClock(self.devices, settings.time_phases)
        self.completes = isinstance(policy, (Extends, Trims))
        self.look(reads_of(policy))
        self.result = Generation(phases=self.clock.phases)
        self.last_token = -1
        self.reads_rows = self.greedy and self.device.type == "cpu"  # logits are in reach without the device's help
        self.own: Tensor | None = None  # where the last verdict was read from, if a tensor, and the last token's place
        self.own_at = 0

    def run(self, prompt_tokens: list[int]) -> Generation:
        """Prefill, then step until the output ends."""
        started = seconds(*self.devices)
        prefill(self.target, prompt_tokens)
        self.drafter.prefill(prompt_tokens)
        self.last_token = prompt_tokens[-1]
        self.own = upload(prompt_tokens[-1:], self.device)
        prefilled = seconds(*self.devices)

        self.clock.start()
        begin(self.policy, prompt_tokens)  # reading the prompt is part of decoding, not of the models' prefill
        finish: Finish | None = None
        while finish is None:
            finish = self.step()
        self.result.finish = finish
        self.result.prefill_seconds = prefilled - started
        self.result.decode_seconds = seconds(*self.devices) - prefilled
        self.result.origins = [origin for step in self.result.steps for origin in origins_of(step)]
        return self.result

    def step(self) -> Finish | None:
        """One step; how the output finished, None if it goes on."""
        draft = self.draft()
        self.clock.end("draft")
        cached = self.target.length
        fed = self.fed(draft)
        logits = self.target.forward(fed)
        draft, verdict = self.judged(draft, fed, logits)
        if cached + 1 + verdict.accepted < self.target.length:
            self.target.truncate(cached + 1 + verdict.accepted)
        self.clock.end("verify")
        finish = self.commit(draft, verdict, logits)
        self.clock.end("other")
        return finish

    def look(self, reads: Reads) -> None:
        """Read these signals from now on."""
        self.reads = reads
        self.asks = asks_after_each_token(reads)
        self.reads_entropy, self.reads_text = SignalName.TARGET_ENTROPY in reads, SignalName.TEXT in reads

    def draft(self) -> Draft | UnreadDraft:
        """As many tokens as the policy wants, leaving room for the target's own."""
        limit = min(self.policy.limit(), self.stopper.remaining - 1)
        if self.policy.reads is not self.reads:  # the cost meter changes them from step to step
            self.look(self.policy.reads)
        keep_drafting = self.policy.keep_drafting if self.asks else None
        if self.completes:
            return self.completed(limit, keep_drafting)
        if limit <= 0:
            return _NO_DRAFT
        if keep_drafting is None and self.drafts_unread:
            unread = cast(DraftsUnread, self.drafter).propose_unread(limit)
            if unread is not None:
                return unread
        return self.drafter.propose(limit, keep_drafting, self.reads)

    def completed(self, limit: int, keep_drafting: KeepDrafting | None) -> Draft:
        """A draft that the policy has gone on with, or has left the last token out of."""
        asked = 0

        def counted(signal: Signal) -> bool:
            nonlocal asked
            asked += 1
            assert keep_drafting is not None
            return keep_drafting(signal)

        draft = _NO_DRAFT
        if limit > 0:
            draft = self.drafter.propose(limit, counted if keep_drafting is not None else None, self.reads)
        return completed(self.policy, draft, asked, self.stopper.remaining - 1)

    def fed(self, draft: Draft | UnreadDraft) -> Tensor:
        """What the target verifies in one pass: the last committed and the ``g`` drafted tokens, ``[g + 1]``."""
        if not isinstance(draft, Draft):
            return torch.cat((self.on_device(), draft.tokens.to(self.device)))
        if not draft.tokens:
            return self.on_device()
        return upload([self.last_token, *draft.tokens], self.device)

    def on_device(self) -> Tensor:
        """The last token, ``[1]``, as the target takes it in: where it is made, as steps that draft seldom need it."""
        if self.own is None:
            return upload([self.last_token], self.device)
        return self.own if self.own.size(0) == 1 else self.own[self.own_at : self.own_at + 1]

    def judged(self, draft: Draft | UnreadDraft, fed: Tensor, logits: Tensor) -> tuple[Draft, Verdict]:
        """How many drafted tokens stand, and the target's own token; reading them waits for the device."""
        if self.reads_rows and isinstance(draft, Draft) and draft.tokens:
            self.own = None  # argmax of several rows takes NumPy a sixth of PyTorch's time
            return draft, accept_greedy(draft.tokens, logits.numpy().argmax(-1).tolist())
        own = logits.argmax(-1) if self.greedy else self.drawn(draft.probabilities, fed[1:], logits)
        self.own = own
        if isinstance(draft, Draft):
            tokens, read = draft.tokens, own.tolist()
        else:
            together = torch.cat((own, fed[1:])).tolist()
            read, tokens = together[: len(own)], until_end(together[len(own) :], self.end_tokens)
            draft = Draft(tokens)
        if self.greedy:
            verdict = accept_greedy(tokens, read)
            self.own_at = verdict.accepted
        else:
            accepted, token = read
            verdict = Verdict(min(accepted, len(tokens)), token)
            self.own_at = 1
        return draft, verdict

    def drawn(self, draft_probabilities: Tensor | None, drafted: Tensor, logits: Tensor) -> Tensor:
        """The numbers of a :class:`Verdict` on sampled tokens: ``[2]``, unread."""
        if draft_probabilities is not None:
            draft_probabilities = draft_probabilities.to(self.device)
        return accept(drafted, draft_probabilities, probabilities(logits, self.sampling), self.generator)

    def commit(self, draft: Draft, verdict: Verdict, logits: Tensor) -> Finish | None:
        """Add the tokens to the output, roll the drafter back to it and tell the policy."""
        tokens, finish = self.stopper.cut([*draft.tokens[: verdict.accepted], verdict.token])
        committed = len(tokens)
        accepted = min(verdict.accepted, committed)  # what stands behind the end of the output is no part of it
        self.drafter.commit(min(accepted, draft.kept), tokens)
        self.last_token = tokens[-1]

        entropy = float(entropy_bits(logits[committed - 1])) if self.reads_entropy else math.nan
        text = tokens if self.reads_text else ()
        step = Step(draft.drafted, accepted, committed, draft.signals, entropy, text, draft.appended, draft.trimmed)
        self.policy.observe(step)

        self.result.tokens += tokens
        self.result.steps.append(step)
        if self.on_commit is not None:
            self.on_commit(tokens, origins_of(step))
        return finish
