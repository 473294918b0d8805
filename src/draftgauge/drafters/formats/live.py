"""A published drafter while its target decodes, and its kind: a checkpoint that says itself what it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from draftgauge.drafters.anchors import DEEPEST, AnchorCache
from draftgauge.drafters.base import Drafting, DraftSource, LoadOptions, Source, register_drafter
from draftgauge.drafters.dense import CHUNK, DenseDrafts, Rows, note
from draftgauge.drafters.formats.building import build_net, read_layout
from draftgauge.drafters.formats.decoder import Branches, DrafterNet
from draftgauge.drafters.formats.files import checkpoint_fingerprint, is_checkpoint, read_config, weight_files
from draftgauge.drafters.reuse.live import RECORDED_ANCHORS, ReuseDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.models.taps import TapPlan, Taps
from draftgauge.verification import NOT_FINITE, check_finite


class CheckpointDrafter(ReuseDrafter):
    """Drafts with an EAGLE-3 or DFlash network from the hidden states that the target's passes leave behind.

    Where it has a head that predicts acceptance (DSpark), that is the confidence of its signals.
    """

    net: DrafterNet  # type: ignore[assignment]
    _branches: Branches | None = None  # the draft that was begun last

    def _draft_from(self, anchors: Rows, rows: Rows, text: list[int], drafts: DenseDrafts) -> None:
        cache, following = self.net.begin(), upload(text[1:], self.target.spec.device)
        begin, of_block = (
            self.net.take_in(cache, following, self.taps.hidden(0, len(following))),
            self.net.layout.longest,
        )
        longest, many = min(drafts.tokens.shape[1], DEEPEST, of_block or DEEPEST), max(1, CHUNK // (of_block or 1))
        for start in range(0, len(anchors), many):
            at = anchors[start : start + many]
            branches = self.net.branches(cache, int(at[0]), begin[at[0] : at[-1] + 1])
            part, logits = rows[start : start + many], branches.logits
            for depth in range(longest):
                best = logits.argmax(-1)
                tokens = best if self.net.d2t is None else self.net.d2t[best]
                note(logits, tokens, drafts, part, depth, branches.confidence)
                if depth + 1 < longest:
                    logits = branches.advance(tokens)

    def _within_context(self, limit: int) -> int:
        return min(super()._within_context(limit), self.net.layout.longest or limit)

    def _new_cache(self) -> AnchorCache:
        return self.net.begin()

    def _drafting(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        self._branches = self.net.branches(self._cache, self._cache.length - 1, self._begun, self._running)
        return self._branches.logits, self._branches.advance

    def _confidence_at(self) -> Callable[[int], float] | None:
        branches = self._branches
        if branches is None or branches.confidence is None:
            return None

        def now(depth: int) -> float:  # the draft has come as far as this depth
            assert branches.confidence is not None
            confidence = float(branches.confidence[0])
            check_finite((NOT_FINITE if isnan(confidence) else 0,), "drafter's confidence head")
            return confidence

        return now

    def _take(self, tokens: Tensor, hidden: Tensor | None, *_: Tensor | None) -> Tensor:
        assert hidden is not None
        if len(tokens) > RECORDED_ANCHORS:
            return self.net.take_in(self._cache, tokens, hidden)[-1:]
        return self._absorbing(self._cache.extend(len(tokens)), tokens, hidden)

    def _passes(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        net, cache = self.net, self._cache  # the drafter itself would never be freed
        return lambda *given: net.absorb(cache, *given)[-1:], partial(net.run, cache)


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
        self.tap_plan, self.longest = TapPlan(net.layout.taps), net.layout.longest

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        return is_checkpoint(drafter)

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

    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> CheckpointDrafter:
        assert taps is not None
        return self.drafter_type(self.net, target, taps, *how)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        assert self.source is not None
        return checkpoint_fingerprint(self.source)
