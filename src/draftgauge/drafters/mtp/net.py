"""MTP heads as a network: the decoder layers of the target's own family, run on pairs of embedding and hidden state.

An anchor is a position whose hidden state the target has computed; its pair holds that state and the embedding of the
token after it. A single head goes on from its own state. Of several heads each drafts one token. Head ``d`` reads the
state of head ``d - 1`` one place before it, so all heads have the same token at a place.

Letters in shapes: ``R`` drafts, ``n`` rows, ``D`` heads, ``H`` hidden size, ``V`` logits, ``C`` places of the cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.drafters.anchors import DEEPEST, AnchorCache, KeysValues, Places
from draftgauge.drafters.formats.decoder import ChainBranches, DrafterNet
from draftgauge.drafters.mtp.families import MtpFamily
from draftgauge.drafters.mtp.head import Head, Take
from draftgauge.models.base import final_norm


class MtpCache(AnchorCache):
    """The pairs of every layer of every head. Places behind the anchors are for the tokens of a draft.

    Attributes:
        last: ``[D, H]`` the states of every head at the last place.
    """

    def __init__(self, shapes: list[tuple[Tensor, Tensor]], like: Tensor, heads: int) -> None:
        nothing = like.new_empty(0)
        super().__init__((), 0, like, lambda length, like: (nothing, nothing), DEEPEST + 1)
        self._none = self.pairs = shapes
        self.last = like.new_zeros(heads, like.shape[0])

    def restart(self) -> None:
        super().restart()
        self.last.zero_()


@dataclass(frozen=True)
class MtpLayout:
    """``longest``: tokens of a draft at most, as many as there are heads; None where the head is used again."""

    family: str
    taps: tuple[int, ...]
    longest: int | None


class MtpChain(NamedTuple):
    """Drafts from consecutive anchors; never changed.

    Attributes:
        depth: tokens taken in.
        begin: ``[R, D, H]`` the states of each head at the anchor; None where one is used again.
        states: ``[R, rows, H]`` those of the last depth.
        drafted: ``[R, depth]`` tokens; None where one head is used again.
        anchors: ``[R]`` places.
        own: keys and values of a reused head, by depth, and their places ``[R]``, of drafts that grow together.
        together: whether drafts grow together; a single one is written behind the anchors instead.
    """

    depth: int
    begin: Tensor | None
    states: Tensor
    drafted: Tensor | None
    anchors: Tensor
    own: tuple[tuple[tuple[KeysValues, ...], Tensor], ...]
    together: bool


class MtpNet(DrafterNet):
    layout: MtpLayout  # type: ignore[assignment]

    def __init__(self, layout: MtpLayout, family: MtpFamily, heads: list[Head], target: PreTrainedModel) -> None:
        """``target`` lends its embedding, its head and, for states behind it, its final norm."""
        self.layout, self.family, self.heads, self.d2t = layout, family, heads, None
        self._target_norm = final_norm(target) if family.after_norm else None
        self._embed, self._logits = target.get_input_embeddings(), target.get_output_embeddings()
        self._pairs = self._probe()

    def read_as(self, family: MtpFamily, target: PreTrainedModel) -> MtpNet:
        """The same weights, run as another family's."""
        other = copy.copy(self)
        other.family, other._target_norm = family, final_norm(target) if family.after_norm else None
        return other

    @torch.inference_mode()
    def _probe(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Empty keys and values of each layer of a head that has them, in its shapes."""
        found: dict[int, tuple[Tensor, Tensor]] = {}

        def take(layer: int, keys: Tensor, values: Tensor) -> KeysValues:
            found[layer] = keys[:, :, :0].clone(), values[:, :, :0].clone()
            return keys, values

        like = self.heads[0].projection.weight
        place = torch.zeros(1, 1, dtype=torch.int64, device=like.device)
        self.heads[0].decoded(like.new_zeros(1, 1, like.shape[0]), place, place[None] == 0, place, take)
        return found

    def begin(self) -> MtpCache:
        shapes = [pair for _ in self.heads for pair in self._pairs.values()]
        return MtpCache(shapes, self.heads[0].projection.weight, len(self.heads))

    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The states ``[n, D, H]`` of every head at the new places."""
        assert isinstance(cache, MtpCache)
        states = hidden[:, 0].to(self.heads[0].projection.weight.dtype)
        if self._target_norm is not None:
            states = self._target_norm(states)
        found: list[Tensor] = []
        for number in range(len(self.heads)):
            if number:
                states = torch.cat((cache.last[number - 1 : number], found[-1][:-1]))
            found.append(self._at(cache, number, tokens, states, places.at))
        every = torch.stack(found, 1)
        cache.last.copy_(every[-1])
        return every

    @torch.inference_mode()
    def run(self, cache: AnchorCache, chain: MtpChain, tokens: Tensor) -> tuple[Tensor, MtpChain]:
        """One more depth, for a token ``[R]`` of each draft: logits ``[R, V]`` and the longer drafts."""
        depth, drafted, number, own = chain.depth + 1, None, 0, chain.own
        if chain.begin is None or chain.drafted is None:
            taken, states, places = tokens[:, None], chain.states, (chain.anchors + depth)[:, None]
        else:  # this depth's head takes in all drafted tokens
            taken = drafted = torch.cat((chain.drafted, tokens[:, None]), 1)
            number, own = depth, ()
            states = torch.cat((chain.begin[:, depth - 1 : depth], chain.states), 1)
            places = chain.anchors[:, None] + torch.arange(1, depth + 1, device=tokens.device)
        rows = taken.flatten(), states.flatten(0, 1), places.flatten()
        if chain.together:
            given, new = self._together(cache, number, rows, chain._replace(own=own))
            own = (*own, (new, rows[2]))
        else:
            given = self._at(cache, number, *rows)
        states = given.unflatten(0, taken.shape)
        longer = chain._replace(depth=depth, states=states, drafted=drafted, own=own)
        return self.logits(states[:, -1]), longer

    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> ChainBranches:
        anchors = torch.arange(first, first + len(begin), device=begin.device)
        if self.layout.longest is None:  # which goes on from its own state
            chain = MtpChain(0, None, begin, None, anchors, (), run is None)
        else:
            nothing = anchors.new_empty(len(begin), 0)
            chain = MtpChain(0, begin, begin[:, :0], nothing, anchors, (), run is None)
        return ChainBranches(self.logits(begin[:, 0]), chain, run or partial(self.run, cache))

    def logits(self, states: Tensor) -> Tensor:
        normed = states if self.family.passes_normed else self.heads[0].norm(states)
        logits: Tensor = self._logits(normed)
        return logits.float()

    def _at(self, cache: AnchorCache, number: int, tokens: Tensor, states: Tensor, places: Tensor) -> Tensor:
        """What a head passes on at places ``[n]``, whose keys and values are written there."""
        columns = torch.arange(cache.capacity, device=places.device)
        visible = columns <= places[:, None]
        if number:  # its first places have no states before them
            visible &= (columns >= number) | (columns == places[:, None])

        def take(layer: int, keys: Tensor, values: Tensor) -> KeysValues:
            pair = self._pair(number, layer)
            cache.write(pair, places, (keys, values))
            return cache.view(pair, cache.capacity)

        return self._given(number, (tokens, states, places), visible, columns, take)

    def _together(
        self, cache: AnchorCache, number: int, rows: tuple[Tensor, Tensor, Tensor], chain: MtpChain
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """The same for drafts that grow together: each sees the places up to its anchor, and its own tokens."""
        many = len(chain.anchors)
        new: list[KeysValues] = []
        draft = torch.arange(many, device=rows[2].device)
        own = draft.repeat_interleave(len(rows[2]) // many)
        columns = torch.arange(cache.capacity, device=draft.device)
        shared = (columns <= chain.anchors[own, None]) & (columns >= number)
        added = torch.cat([*(places for _, places in chain.own), rows[2]])
        of_draft = torch.cat([*(draft for _ in chain.own), own])
        mine = (of_draft == own[:, None]) & (added <= rows[2][:, None])
        mine &= (added >= number) | (added == rows[2][:, None])  # as in _at

        def take(layer: int, keys: Tensor, values: Tensor) -> KeysValues:
            index = len(new)
            new.append((keys, values))
            parts = [cache.view(self._pair(number, layer), cache.capacity), *(pairs[index] for pairs, _ in chain.own)]
            return (
                torch.cat([*(part[0] for part in parts), keys], 2),
                torch.cat([*(part[1] for part in parts), values], 2),
            )

        visible, columns = torch.cat((shared, mine), 1), torch.cat((columns, added))
        return self._given(number, rows, visible, columns, take), tuple(new)

    def _given(
        self, number: int, rows: tuple[Tensor, Tensor, Tensor], visible: Tensor, columns: Tensor, take: Take
    ) -> Tensor:
        tokens, states, places = (part[None] for part in rows)
        pairs = self._embed(tokens), states, places
        return self.heads[number].run(self.family, pairs, visible[None], columns[None], take)[0]

    def _pair(self, number: int, layer: int) -> int:
        return number * len(self._pairs) + list(self._pairs).index(layer)
