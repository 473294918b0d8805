"""A drafter that reads its target while the target decodes, and its kind: a folder that says itself what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator, Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.drafters.base import Draft, KeepDrafting, UnreadDraft
from draftgauge.drafters.draft_builder import DraftBuilder
from draftgauge.drafters.reuse.drafting import begin, step, take_in
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import drafter_fingerprint, is_drafter, load_drafter, read_description
from draftgauge.drafters.source import DraftSource, LoadOptions, Source, register_drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.models.taps import Taps
from draftgauge.verification import Sampling


class ReuseDrafter:
    """Drafts with a :class:`~draftgauge.drafters.reuse.net.ReuseNet` from what the target's passes leave behind.

    With ``n`` committed tokens the target's cache holds ``n - 1``, so its states are known up to position ``n - 2``,
    the *anchor* of the next draft; the last committed token is the drafter's first input. Only anchors of committed
    text enter the drafter's own cache, hence nothing of it is ever rolled back. The target may hold more than the
    committed text: what is at a position does not depend on what follows.
    """

    def __init__(
        self,
        net: ReuseNet,
        target: CachedModel,
        taps: Taps,
        end_tokens: frozenset[int] = frozenset(),
        sampling: Sampling | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Follow a target, which the drafter never runs.

        Args:
            net: on the target's device and in its dtype.
            taps: of the target, with the layers of ``net.config``.
            end_tokens, sampling, generator: see :class:`DraftBuilder`.
        """
        self.net = net
        self.target = target
        self.taps = taps
        self.sampling = sampling or Sampling()
        self._builder = DraftBuilder(
            target.spec.device, end_tokens, sampling, generator, net.d2t, target.spec.vocabulary
        )
        self._text: list[int] = []
        self._taken = 0  # anchors that the network has taken in
        self._chain = begin(net)  # after depth 0 of the last of them
        self._first: Tensor | None = None  # [V] logits of the first drafted token

    def keeps_drafted(self) -> bool:
        """No: what the target leaves behind of them takes the place of the drafter's own chain."""
        return False

    def backlog(self) -> int:
        return len(self._text) - 1 - self._taken

    @torch.inference_mode()
    def prefill(self, context: list[int]) -> None:
        """Start a new sequence, whose tokens but the last the target has taken in."""
        self._text = list(context)
        self._taken = 0
        self._chain = begin(self.net)
        self._first = None
        self._take_in()

    @torch.inference_mode()
    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        limit = self._within_context(limit)
        self._take_in()
        if limit <= 0 or self._first is None:
            return Draft([])
        return self._builder.build(self._first[None], self._chained(), limit, keep_drafting, reads)

    @torch.inference_mode()
    def propose_unread(self, limit: int) -> UnreadDraft | None:
        limit = self._within_context(limit)
        if not self.target.spec.keeps_on_device:
            return None
        self._take_in()
        if limit <= 0 or self._first is None:
            return None
        return self._builder.build_unread(self._first[None], self._chained(), limit)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._text += tokens

    def _within_context(self, limit: int) -> int:
        return min(limit, self.target.spec.context - len(self._text) + 1)

    def _chained(self) -> Callable[[Tensor], Tensor]:
        """Takes in one drafted token after the other, from the last anchor on, and gives the logits ``[1, V]``."""
        chain = self._chain

        def advance(token: Tensor) -> Tensor:
            nonlocal chain
            logits, chain = step(self.net, chain, token)
            return logits[None]

        return advance

    def _take_in(self) -> None:
        """Take in the anchors that are new since the last time, with the token after each."""
        start, end = self._taken, len(self._text) - 1
        if start >= end:
            return
        assert self.target.length >= end, "the target has not taken in the committed text"
        config, taps = self.net.config, self.taps
        tokens = upload(self._text[start + 1 :], self.target.spec.device)
        hidden = taps.hidden(start, end) if config.hidden_layers else None
        slots = range(len(config.kv_layers))
        keys = [taps.keys(slot, start, end) for slot in slots] or None
        values = [taps.values(slot, start, end) for slot in slots] or None
        self._first, self._chain = take_in(self.net, self._chain, tokens, hidden, keys, values)
        self._taken = end


@register_drafter
class ReuseSource(DraftSource):
    """A network trained on what one target's layers compute, and the layers it reads."""

    name = "reuse"
    takes = "the folder of a trained drafter (as `draftgauge train` writes it)"
    self_describing = True
    drafter_type = ReuseDrafter

    def __init__(self, folder: Path, net: ReuseNet) -> None:
        self.folder = folder
        self.net = net
        self.family, self.engine = f"reuse-{net.config.design}", "modules"
        self.tap_plan = net.config.tap_plan

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        return is_drafter(drafter)

    @classmethod
    def resolve(cls, source: Source) -> Source:
        if source is None or not is_drafter(source):
            raise DraftgaugeError(
                f"drafter reuse needs {cls.takes}{'' if source is None else f'; {source} is not one'}"
            )
        return source

    @classmethod
    def trained_for(cls, source: Source) -> str | None:
        assert source is not None
        return str(read_description(Path(source))["config"]["target_source"]) or None

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> ReuseSource:
        assert source is not None
        return cls(Path(source), load_drafter(source, target))

    def drafter(
        self,
        target: CachedModel,
        taps: Taps | None,
        end_tokens: frozenset[int],
        sampling: Sampling | None,
        generator: Generator | None,
    ) -> ReuseDrafter:
        assert taps is not None
        return ReuseDrafter(self.net, target, taps, end_tokens, sampling, generator)

    def fingerprint(self) -> str:
        return drafter_fingerprint(self.folder)
