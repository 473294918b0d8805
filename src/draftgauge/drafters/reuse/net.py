"""A reuse drafter as a network. :meth:`ReuseNet.unroll` trains it, :mod:`draftgauge.drafters.reuse.drafting` drafts.

Letters in shapes: ``B`` texts, ``T`` tokens, ``A`` anchors, ``K`` depths, ``S`` target layers that are read, ``N``
branches of a draft. ``H`` hidden size, ``KV`` key/value heads, ``D`` head dimension, ``V`` logits of the drafter.

An *anchor* ``t`` is a position whose hidden state, keys and values the target has computed. At depth ``k`` the drafter
processes token ``x[t + 1 + k]`` and predicts ``x[t + 2 + k]``; ``x[t + 1]`` is the last committed token, which the
target has not processed. Training and drafting run the same blocks: rows are anchors in one and branches in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.core.errors import ModelError
from draftgauge.drafters.reuse.blocks import Block, BlockHeads, Memory, TokenParts
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.rotary import RotaryTables, Tables, window
from draftgauge.models.taps import Features

Follow = Callable[[int, Tensor], Tensor]


class ReuseNet(nn.Module):
    """A drafter of any design (see :class:`ReuseConfig`).

    The token embedding is the target's, frozen: it is neither a parameter nor in the state dict. Everything else is
    trained.

    Attributes:
        d2t: ``[V]`` target id of every draft id, None without a draft vocabulary.
        t2d: ``[vocabulary]`` draft id of every target id, -1 where there is none; None without a draft vocabulary.
    """

    embedding: Tensor
    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(
        self, config: ReuseConfig, embedding: Tensor, rotary: nn.Module, draft_tokens: Tensor | None = None
    ) -> None:
        """A network with PyTorch's random weights; see :func:`~draftgauge.drafters.reuse.building.new_net`.

        Args:
            embedding: the target's token embeddings ``[vocabulary, H]``, shared.
            rotary: the target's rotary module, called for its tables and left as it is.
            draft_tokens: ``[V]`` target ids of the draft vocabulary, ascending, where the configuration has one.
        """
        super().__init__()
        self.config = config
        self.traits = config.traits
        self.rotary = RotaryTables(rotary, config.head_dim)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        to_target = to_draft = None
        if draft_tokens is not None:
            ids = draft_tokens.cpu()
            check_draft_tokens(config, ids)
            to_target, to_draft = ids, torch.full((config.vocabulary,), -1, device="cpu")
            to_draft[ids] = torch.arange(len(ids), device="cpu")
        elif config.draft_vocabulary:
            raise ModelError(
                f"this configuration has a draft vocabulary of {config.draft_vocabulary} tokens: say which they are"
            )
        for name, table in (("d2t", to_target), ("t2d", to_draft)):
            self.register_buffer(name, None if table is None else table.to(embedding.device), persistent=False)
        hidden = config.hidden_size
        taps = len(config.hidden_layers)  # 0 in designs that read none
        self.tap_norms = nn.ModuleList(
            nn.RMSNorm(hidden, config.rms_norm_eps) for _ in range(taps if config.norm_before_fc else 0)
        )
        self.fuse = nn.Linear(taps * hidden, hidden, bias=False) if taps else None
        stepwise = 0 if config.block else config.layers  # a BlockNet has layers of another kind
        self.blocks: Sequence[Block] = nn.ModuleList(Block(config, layer) for layer in range(stepwise))  # type: ignore[assignment]
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.head = nn.Linear(hidden, config.logits, bias=False)

    def logits(self, states: Tensor, before: Tensor | None = None) -> Tensor:
        """Logits ``[..., V]`` of states ``[..., H]``; only a Markov head reads the tokens ``[...]`` before them."""
        return self.head(self.norm(states))

    def target_ids(self, tokens: Tensor) -> Tensor:
        """Drafted tokens in the target's vocabulary."""
        return tokens if self.d2t is None else self.d2t[tokens]

    def entering(self, embedded: Tensor, hidden: Tensor | None, before: Tensor | None) -> Tensor:
        """What enters the first block at a depth, ``[B, R, H]``.

        The target's states ``[B, R, S, H]`` at depth 0, the drafter's own of the depth ``before`` at the others. In
        designs that read no states, the embedded tokens.
        """
        if not self.traits.reads_hidden:
            return embedded
        if hidden is not None:
            return self.fuse_hidden(hidden)
        assert before is not None, "this design reads hidden states"
        return self.cast(self.norm(before)) if self.config.norm_output else before

    def depth(
        self,
        parts: Sequence[TokenParts],
        stream: Tensor,
        tables: Tables,
        remember: Callable[[int, BlockHeads], Memory],
        skipped: int = 0,
        causal: bool = False,
    ) -> Tensor:
        """One depth through all blocks, which training and drafting have in common.

        Args:
            parts: for each block, its projections of the rows' tokens.
            stream: ``[B, R, H]``, see :meth:`entering`.
            tables: rotary tables of the rows' positions.
            remember: from a layer and the heads of all rows to what the layer attends to, these heads included.
            skipped: first rows that only leave their keys and values behind.
            causal: see :class:`Block`.

        Returns:
            The states ``[B, R - skipped, H]``.
        """
        for layer, block in enumerate(self.blocks):
            stream, heads = block.read(parts[layer], stream, tables)
            memory = remember(layer, heads)
            stream = block(stream[:, skipped:], heads.since(skipped), memory, causal)
        return stream

    def unroll(self, tokens: Tensor, features: Features, depths: int, first: int = 0) -> list[Tensor]:
        """States ``[B, A - first, H]`` of all ``K`` depths from the anchors ``first..A-1``, with ``A = T - 1 - K``.

        Training-time test (EAGLE-3, arXiv 2503.01840): teacher tokens in, own states passed on. Entry ``k`` predicts
        ``x[t + 2 + k]`` for the anchor ``t`` of tokens ``[B, T]`` and their features. The anchors before ``first``, a
        prompt's for instance, are context only: nothing is drafted from them.
        """
        anchors = tokens.shape[1] - 1 - depths
        if depths < 1 or anchors < 1:
            raise ModelError(
                f"texts of {tokens.shape[1]} tokens are too short to draft {depths}: they need at least {depths + 2}"
            )
        return self._unroll(tokens, features, depths, first, anchors)

    def _unroll(self, tokens: Tensor, features: Features, depths: int, first: int, anchors: int) -> list[Tensor]:
        return self.unroll_drafts(tokens, features, depths, first, anchors, None)

    def unroll_drafts(
        self, tokens: Tensor, features: Features, depths: int, first: int, anchors: int, follow: Follow | None
    ) -> list[Tensor]:
        """:meth:`unroll` on tokens that ``follow`` drafts, ``[B, A - first]`` from a depth and its states.

        ``tokens`` then end with the one after the last anchor. None takes the teacher's.
        """
        embedded = self.embed(tokens[:, 1 : anchors + depths])  # [B, A + K - 1, H]; [B, A, H] where drafts follow
        parts = [block.token_parts(embedded) for block in self.blocks]
        memories, tables = [Memory() for _ in self.blocks], self.tables(anchors + depths + 1, embedded)
        if self.traits.reads_kv:
            assert features.keys is not None, "this design reads keys"
            assert features.values is not None, "this design reads values"
            cached = self.cast(features.keys[..., :anchors, :]), self.cast(features.values[..., :anchors, :])
            places = window(self.tables(anchors, cached[0]), 0, anchors)
            memories = [Memory(injected=block.injection(*cached, places)) for block in self.blocks]
        # Self-attention sees depth 0 of every anchor; all else is made for the anchors that something is drafted from.
        start = 0 if self.traits.self_attends else first
        hidden = None if features.hidden is None else features.hidden[:, start:anchors]
        stream: Tensor | None = None
        states: list[Tensor] = []
        for depth in range(depths):
            begin, end = start + depth, anchors + depth
            if depth == 0 or follow is None:
                read, rows = embedded[:, begin:end], [part.window(begin, end) for part in parts]
            else:
                read = self.embed(follow(depth - 1, states[-1]))
                rows = [block.token_parts(read) for block in self.blocks]
            entering = self.entering(read, hidden if depth == 0 else None, stream)
            skipped = first - start  # rows of anchors that nothing is drafted from

            def remember(layer: int, heads: BlockHeads, depth: int = depth, skipped: int = skipped) -> Memory:
                memories[layer] = memories[layer].with_heads(heads, depth, skipped)
                return memories[layer]

            stream = self.depth(rows, entering, window(tables, begin + 1, end + 1), remember, skipped, causal=True)
            start = first
            states.append(stream)
        return states

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.cast(F.embedding(tokens, self.embedding))
        return embedded if self.config.embedding_scale == 1 else embedded * self.config.embedding_scale

    def fuse_hidden(self, hidden: Tensor) -> Tensor:
        """The hidden states of ``S`` layers ``[B, n, S, H]`` as one ``[B, n, H]``."""
        assert self.fuse is not None
        hidden = self.cast(hidden)
        if self.tap_norms:
            hidden = torch.stack([norm(hidden[..., tap, :]) for tap, norm in enumerate(self.tap_norms)], -2)
        return self.cast(self.fuse(hidden.flatten(2)))  # so that the stream stays float32 under autocast

    def tables(self, length: int, like: Tensor) -> Tables:
        return self.rotary(length, like, self.config.rope_kind)

    def cast(self, x: Tensor) -> Tensor:
        return x.to(self.head.weight.dtype)


def check_draft_tokens(config: ReuseConfig, ids: Tensor) -> None:
    if not config.draft_vocabulary:
        raise ModelError(
            "draft tokens were given, but this configuration has no draft vocabulary: set draft_vocabulary to their "
            "number"
        )
    in_range = int(ids.min()) >= 0 and int(ids.max()) < config.vocabulary
    if len(ids) != config.draft_vocabulary or not in_range or not bool((ids[1:] > ids[:-1]).all()):
        raise ModelError(
            f"the draft vocabulary must be {config.draft_vocabulary} different tokens of the target's "
            f"{config.vocabulary}, ascending"
        )
