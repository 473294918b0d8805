"""A published drafter while its target decodes, and its kind: a checkpoint that says itself what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, KeepDrafting, UnreadDraft
from draftgauge.drafters.checkpoints.building import build_net
from draftgauge.drafters.checkpoints.decoder import Branches, DrafterNet
from draftgauge.drafters.checkpoints.files import checkpoint_fingerprint, is_checkpoint, read_config, weight_files
from draftgauge.drafters.checkpoints.layouts import read_layout
from draftgauge.drafters.dense import CHUNK, DenseDrafts, cut_after_end, note
from draftgauge.drafters.draft_builder import DraftBuilder
from draftgauge.drafters.source import DraftSource, LoadOptions, Source, register_drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.models.tap_plan import TapPlan
from draftgauge.models.taps import Taps
from draftgauge.policies.base import Signal
from draftgauge.verification import Sampling


class CheckpointDrafter:
    """Drafts with an EAGLE-3 or DFlash network from the hidden states that the target's passes leave behind.

    With ``n`` committed tokens the target's cache holds ``n - 1``: the position ``n - 2`` is the *anchor* of the next
    draft, and the last committed token its first input. Only anchors of committed text enter the drafter's cache, so
    nothing is rolled back. Where the drafter has a head that predicts acceptance (DSpark), that is the confidence of
    its signals.
    """

    def __init__(
        self,
        net: DrafterNet,
        target: CachedModel,
        taps: Taps,
        end_tokens: frozenset[int] = frozenset(),
        sampling: Sampling | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Follow a target that never runs here; the other arguments are as of :class:`DraftBuilder`."""
        self.net, self.target, self.taps = net, target, taps
        self.end_tokens, self.sampling = end_tokens, sampling or Sampling()
        self._builder = DraftBuilder(
            target.spec.device, end_tokens, sampling, generator, net.to_target, target.spec.vocabulary
        )
        self._text: list[int] = []
        self._cache = net.begin()
        self._begin: Tensor | None = None  # of drafts from the last anchor

    def keeps_drafted(self) -> bool:
        """No: the states that the target leaves behind of accepted tokens are taken in anew."""
        return False

    def backlog(self) -> int:
        return len(self._text) - 1 - self._cache.length

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence, whose tokens but the last the target has taken in."""
        self._text = list(context)
        self._cache, self._begin = self.net.begin(), None
        self._take_in()

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Draft up to ``limit`` tokens, fewer where the block or the target's context ends."""
        branches, limit = self._branches(limit)
        if branches is None:
            return Draft([])
        if keep_drafting is None or branches.confidence is None or SignalName.CONFIDENCE not in reads:
            return self._builder.build(branches.logits, branches.advance, limit, keep_drafting, reads)
        shown: list[Signal] = []

        def keep(signal: Signal) -> bool:
            shown.append(_predicted(signal, branches))
            return keep_drafting(shown[-1])

        draft = self._builder.build(branches.logits, branches.advance, limit, keep, reads)
        if len(shown) < len(draft.signals):  # the builder does not ask about the last token that it may draft
            shown.append(_predicted(draft.signals[-1], branches))
        return draft._replace(signals=shown)

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        """See :class:`~draftgauge.drafters.base.DraftsUnread`."""
        if not self.target.spec.keeps_on_device:
            return None
        branches, limit = self._branches(limit)
        return None if branches is None else self._builder.build_unread(branches.logits, branches.advance, limit)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._text += tokens

    @torch.inference_mode()
    def draft_everywhere(
        self, prompt_tokens: list[int], output: list[int], gamma_max: int, vocabulary: int
    ) -> DenseDrafts:
        """See :class:`~draftgauge.drafters.dense.DraftsEverywhere`; positions are drafted from many at a time."""
        if not self.sampling.greedy:
            raise DraftgaugeError("a trace holds greedy drafts: record with a drafter at temperature 0")
        drafts = DenseDrafts.empty(len(output), gamma_max)
        text, cache = [*prompt_tokens, *output[:-1]], self.net.begin()
        anchors, first = len(text) - 1, len(prompt_tokens) - 2  # ``first`` is the anchor of row 0, -1 if there is none
        if anchors < 1:
            return drafts
        following = upload(text[1:], self.target.spec.device)
        begin = self.net.take_in(cache, following, self.taps.hidden(0, anchors))
        longest = min(gamma_max, self.net.longest or gamma_max)
        many = max(1, CHUNK // (self.net.longest or 1))
        for anchor in range(max(first, 0), anchors, many):
            until = min(anchor + many, anchors)
            branches, rows = self.net.branches(cache, anchor, begin[anchor:until], longest), np.arange(anchor, until)
            self._grow(branches, rows - first, longest, drafts)
        limits = self.target.spec.context - len(prompt_tokens) - np.arange(len(output)) + 1
        beyond = np.arange(gamma_max) >= limits[:, None]
        drafts.tokens[beyond] = -1
        drafts.shown[:, beyond] = np.nan
        cut_after_end(drafts, self.end_tokens)
        return drafts

    def _grow(self, branches: Branches, rows: np.ndarray, longest: int, drafts: DenseDrafts) -> None:
        logits = branches.logits
        for depth in range(longest):
            best = logits.argmax(-1)
            tokens = best if self.net.to_target is None else self.net.to_target[best]
            note(logits, tokens, drafts, rows, depth)
            if branches.confidence is not None:
                drafts.shown[0, rows, depth] = branches.confidence.cpu().numpy()
            if depth + 1 < longest:
                logits = branches.advance(tokens)

    def _branches(self, limit: int) -> tuple[Branches | None, int]:
        """The draft that begins now, and how long it may get; None where none can."""
        limit = min(limit, self.net.longest or limit, self.target.spec.context - len(self._text) + 1)
        self._take_in()
        if limit <= 0 or self._begin is None:
            return None, 0
        return self.net.branches(self._cache, self._cache.length - 1, self._begin, limit), limit

    def _take_in(self) -> None:
        """Take in the anchors that are new since the last time, with the token after each."""
        start, end = self._cache.length, len(self._text) - 1
        if start >= end:
            return
        assert self.target.length >= end, "the target has not taken in the committed text"
        following = upload(self._text[start + 1 :], self.target.spec.device)
        self._begin = self.net.take_in(self._cache, following, self.taps.hidden(start, end))[-1:]


def _predicted(signal: Signal, branches: Branches) -> Signal:
    assert branches.confidence is not None
    return signal._replace(confidence=float(branches.confidence[0]))


@register_drafter
class CheckpointSource(DraftSource):
    """An EAGLE-3 or DFlash checkpoint, and the layers of the target that it reads."""

    name = "checkpoint"
    takes = "an EAGLE-3 or DFlash checkpoint (a folder, or an id of the hub)"
    self_describing = True
    drafter_type = CheckpointDrafter

    def __init__(self, source: str | Path, net: DrafterNet) -> None:
        self.source, self.net = source, net
        self.family, self.engine = net.layout.family, "modules"
        self.tap_plan = TapPlan(net.layout.taps)

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        return is_checkpoint(drafter)

    @classmethod
    def resolve(cls, source: Source) -> Source:
        if source is None or not is_checkpoint(source):
            raise DraftgaugeError(
                f"drafter checkpoint needs {cls.takes}{'' if source is None else f'; {source} is not one'}"
            )
        return source

    @classmethod
    def trained_for(cls, source: Source) -> str | None:
        assert source is not None
        speculators = read_config(source).get("speculators_config")
        verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
        return str(verifier.get("name_or_path") or "") or None if isinstance(verifier, dict) else None

    @classmethod
    def check(cls, source: Source, tokenizer: PreTrainedTokenizerBase, options: LoadOptions) -> None:
        assert source is not None
        read_layout(read_config(source), str(source))
        weight_files(source, options.allow_pickle)

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> CheckpointSource:
        assert source is not None
        layout = read_layout(read_config(source), str(source))
        return cls(source, build_net(source, layout, target, options.allow_pickle))

    def drafter(
        self,
        target: CachedModel,
        taps: Taps | None,
        end_tokens: frozenset[int],
        sampling: Sampling | None,
        generator: Generator | None,
    ) -> CheckpointDrafter:
        assert taps is not None
        return CheckpointDrafter(self.net, target, taps, end_tokens, sampling, generator)

    def fingerprint(self) -> str:
        assert self.source is not None
        return checkpoint_fingerprint(self.source)
