"""A drafter that reads the states of its target while that decodes, loaded from the folder of a trained drafter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.drafters.anchors import DEEPEST, AnchorCache, Places
from draftgauge.drafters.base import (
    Draft,
    Drafting,
    DraftSource,
    KeepDrafting,
    LoadOptions,
    Source,
    UnreadDraft,
    register_drafter,
)
from draftgauge.drafters.dense import CHUNK, DenseDrafts, Rows, cut_after_end, cut_at_context, note
from draftgauge.drafters.language_model import DraftBuilder
from draftgauge.drafters.reuse.blockwise import CHUNK_BLOCKS, BlockNet, Seen
from draftgauge.drafters.reuse.drafting import absorb, begin, step
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import (
    drafter_fingerprint,
    is_drafter,
    is_mtp_head,
    load_drafter,
    read_description,
)
from draftgauge.drafters.reuse.rotary import Tables, window
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.models.graphs import Recorded, graph_pool
from draftgauge.models.taps import Features, Taps
from draftgauge.verification import Sampling

RECORDED_ANCHORS = 16  # taken in together, at most; more are rare, and their passes just run


class ReuseDrafter:
    """Drafts with a :class:`~draftgauge.drafters.reuse.net.ReuseNet` from the states that the target's passes compute.

    With ``n`` committed tokens the target's cache holds ``n - 1``, so its states are known up to position ``n - 2``,
    the *anchor* of the next draft. The last committed token is the drafter's first input. Only anchors of committed
    text enter the drafter's own cache, so it is never rolled back. The target's cache may be longer than the committed
    text: what it holds at a position does not depend on later tokens.
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
        self._cache = self._new_cache()
        # Bound to the network and the cache alone: a drafter in a cycle would keep its memory.
        cache = self._cache
        self._absorbing, self._running = (
            Recorded(run, graph_pool(cache.device), lambda: cache.capacity) for run in self._passes()
        )
        self._begun: Any = None  # what a draft from the last anchor begins with

    def keeps_drafted(self) -> bool:
        return False

    def backlog(self) -> int:
        return len(self._text) - 1 - self._cache.length

    @torch.inference_mode()
    def prefill(self, context: list[int]) -> None:
        self._text = list(context)
        self._cache.restart()
        self._take_in()

    @torch.inference_mode()
    def record_passes(self, most: int, longest: int) -> None:
        """See :class:`~draftgauge.drafters.base.Records`; on a CPU nothing is."""
        device = self.target.spec.device
        if device.type == "cpu":
            return
        token = torch.zeros(1, dtype=torch.int64, device=device)
        self.target.reset()
        self.target.forward(token.expand(RECORDED_ANCHORS))
        self._cache.extend(longest)
        for count in range(1, RECORDED_ANCHORS + 1):
            for _ in range(2):  # recorded when it comes again
                self._cache.restart()
                self._text = [0] * (count + 1)
                self._take_in()
                _, advance = self._drafting()
                for _ in range(self._within_context(most) - 1 if count == 1 else 0):
                    advance(token)
        self._cache.restart()
        self.target.reset()

    @torch.inference_mode()
    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        limit = self._within_context(limit)
        self._take_in()
        if limit <= 0 or not self._cache.length:
            return Draft([])
        return self._builder.build(*self._drafting(), limit, keep_drafting, reads, self._confidence_at())

    @torch.inference_mode()
    def propose_unread(self, limit: int) -> UnreadDraft | None:
        limit = self._within_context(limit)
        if not self.target.spec.keeps_on_device:
            return None
        self._take_in()
        if limit <= 0 or not self._cache.length:
            return None
        return self._builder.build_unread(*self._drafting(), limit)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._text += tokens

    @torch.inference_mode()
    def draft_everywhere(
        self, prompt_tokens: list[int], output: list[int], gamma_max: int, vocabulary: int
    ) -> DenseDrafts:
        """See :class:`~draftgauge.drafters.dense.DraftsEverywhere`: many positions are drafted from together."""
        drafts, begin = DenseDrafts.empty(len(output), gamma_max), len(prompt_tokens) - 2
        text = [*prompt_tokens, *output[:-1]]
        anchors = np.arange(max(0, begin), len(text) - 1)  # a text of one token has none
        if len(anchors):
            self._draft_from(anchors, anchors - begin, text, drafts)
            cut_at_context(drafts, self.target.spec.context - begin - 1)
            cut_after_end(drafts, self._builder.end_tokens)
        return drafts

    def _draft_from(self, anchors: Rows, rows: Rows, text: list[int], drafts: DenseDrafts) -> None:
        """Note the drafts from these anchors of a text, all up to its last, in these rows; unrolled as in training."""

        def follow(depth: int, states: Tensor) -> Tensor:
            drafted = []
            for start in range(0, len(rows), CHUNK):
                logits = self.net.logits(states[0, start : start + CHUNK]).float()
                drafted.append(self.net.target_ids(logits.argmax(-1)))
                note(logits, drafted[-1], drafts, rows[start : start + CHUNK], depth)
            return torch.cat(drafted)[None]

        tokens, count = upload(text, self.target.spec.device)[None], len(text) - 1
        hidden = self.taps.hidden(0, count)[None] if self.taps.plan.hidden_layers else None
        keys, values = (None if each is None else each[None] for each in self.taps.keys_values(0, count))
        seen, depths = Features(hidden, keys, values, tokens.new_empty(0)), min(drafts.tokens.shape[1], DEEPEST)
        follow(depths - 1, self.net.unroll_drafts(tokens, seen, depths, int(anchors[0]), count, follow)[-1])

    def _within_context(self, limit: int) -> int:
        return min(limit, self.target.spec.context - len(self._text) + 1, DEEPEST)

    def _confidence_at(self) -> Callable[[int], float] | None:
        return None

    def _drafting(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The logits ``[1, V]`` of the first drafted token, and a function from a drafted token to the next logits."""
        first, chain = self._begun

        def advance(token: Tensor) -> Tensor:
            nonlocal chain
            logits, chain = self._running(chain, token)
            return logits

        return first, advance

    def _take_in(self) -> None:
        """Process the anchors that are new since the last time, with the token after each."""
        start, end = self._cache.length, len(self._text) - 1
        if start >= end:
            return
        assert self.target.length >= end, "the target has not processed the committed text"
        tokens = upload(self._text[start + 1 :], self.target.spec.device)
        hidden = self.taps.hidden(start, end) if self.taps.plan.hidden_layers else None
        keys, values = self.taps.keys_values(start, end)
        self._begun = self._take(tokens, hidden, keys, values)

    def _take(self, tokens: Tensor, hidden: Tensor | None, keys: Tensor | None, values: Tensor | None) -> Any:
        run = self._absorbing if len(tokens) <= RECORDED_ANCHORS else self._absorbing.run
        return run(self._cache.extend(len(tokens)), tokens, hidden, keys, values)

    def _new_cache(self) -> AnchorCache:
        return begin(self.net)

    def _passes(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """From new anchors, as :func:`absorb` takes them, to what a draft begins with; and what a draft runs."""
        return partial(absorb, self.net, self._cache), partial(step, self.net, self._cache)


class BlockDrafter(ReuseDrafter):
    """Drafts with a :class:`~draftgauge.drafters.reuse.blockwise.BlockNet`: one pass for the whole draft, which is at
    most a block long.

    A shorter draft takes the same pass, as every slot attends to all others; its tokens are the same.
    """

    net: BlockNet
    _block: Tensor | None = None  # [b, H] states after the last committed token

    def _draft_from(self, anchors: Rows, rows: Rows, text: list[int], drafts: DenseDrafts) -> None:
        self.prefill(text)
        tokens = torch.tensor(text, device=self.target.spec.device)
        for start in range(0, len(rows), CHUNK_BLOCKS):
            part, at = rows[start : start + CHUNK_BLOCKS], torch.as_tensor(anchors[start : start + CHUNK_BLOCKS])[None]
            places = at.to(tokens.device)
            seen = _seen(self.net, self._cache, self._begun[0])
            states = self.net.run(tokens[places + 1], at, seen, places + 1)[0]
            estimated, before = self.net.confidences(states), tokens[places[0] + 1]
            for depth in range(min(drafts.tokens.shape[1], self.net.config.block)):
                logits = self.net.logits(states[:, depth], before)
                before = self.net.target_ids(logits.argmax(-1))
                note(logits, before, drafts, part, depth, None if estimated is None else estimated[:, depth])

    def _within_context(self, limit: int) -> int:
        return min(super()._within_context(limit), self.net.config.block)

    def _new_cache(self) -> AnchorCache:
        config = self.net.config
        sets = int(config.traits.reads_hidden) + int(config.traits.reads_kv)
        heads = [config.chain_kv_heads] * (sets * config.layers)
        return AnchorCache(heads, config.head_dim, self.net.head.weight, self.net.tables)

    def _passes(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return partial(_absorb_block, self.net, self._cache), partial(_run_block, self.net, self._cache)

    def _take(self, *given: Any) -> Any:
        self._block = None
        return super()._take(*given)

    def _slots(self) -> Tensor:
        if self._block is None:
            fused, *rest = self._begun
            last = upload(self._text[-1:], self.target.spec.device)
            self._block = self._running(last, None if fused is None else fused[:, -1:], *rest)
        return self._block

    def _confidence_at(self) -> Callable[[int], float] | None:
        estimated = self.net.confidences(self._slots())
        return None if estimated is None else estimated.tolist().__getitem__

    def _drafting(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        logits = iter(self.net.logits(self._slots()).split(1))
        markov = self.net.markov

        def after(token: Tensor) -> Tensor:
            row = next(logits)
            return (row if markov is None else row + markov(self.net.embed(token))).float()

        return after(upload(self._text[-1:], self.target.spec.device)), after


def _absorb_block(
    net: BlockNet, cache: AnchorCache, places: Places, tokens: Tensor, *states: Tensor | None
) -> tuple[Tensor | None, Tensor, Tables]:
    """The fused states ``[1, n, H]``, how many anchors are seen ``[1, 1]``, and the tables after the last."""
    hidden, keys, values = (None if part is None else part[None] for part in states)
    new = net.contexts(hidden, keys, values, window(places.tables, 0, len(tokens)))
    for number, pair in enumerate(chain.from_iterable(new.layers)):
        cache.write(number, places.at, pair)
    return new.fused, places.at[None, -1:] + 1, window(places.tables, len(tokens), len(places.tables[0]))


def _run_block(
    net: BlockNet, cache: AnchorCache, last: Tensor, fused: Tensor | None, visible: Tensor, tables: Tables
) -> Tensor:
    """The states ``[b, H]`` of the block after a token ``[1]``."""
    cos, sin = (table[None, None, : net.places] for table in tables)
    return net.run(last[None], torch.zeros_like(visible), _seen(net, cache, fused), visible, (cos, sin))[0, 0]


def _seen(net: BlockNet, cache: AnchorCache, fused: Tensor | None) -> Seen:
    count = len(cache.pairs) // net.config.layers
    return Seen([cache.pairs[n * count : (n + 1) * count] for n in range(net.config.layers)], fused)


def new_drafter(net: ReuseNet, target: CachedModel, taps: Taps, how: Drafting) -> ReuseDrafter:
    kind = BlockDrafter if isinstance(net, BlockNet) else ReuseDrafter
    return kind(net, target, taps, *how)


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
        return is_drafter(drafter) and not is_mtp_head(drafter)

    @classmethod
    def trained_for(cls, source: Source) -> str | None:
        assert source is not None
        return str(read_description(Path(source))["config"]["target_source"]) or None

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> ReuseSource:
        assert source is not None
        return cls(Path(source), load_drafter(source, target))

    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> ReuseDrafter:
        assert taps is not None
        return new_drafter(self.net, target, taps, how)

    def fingerprint(self) -> str:
        return drafter_fingerprint(self.folder)
