"""A reuse drafter as a network: unrolled over whole texts for training, and step by step for drafting.

Letters in shapes: ``B`` texts, ``T`` tokens, ``A`` anchors, ``K`` depths, ``S`` target layers that are read, ``H`` hidden size,
``KV`` key/value heads, ``D`` head dimension, ``V`` logits of the drafter, ``N`` branches of a draft.

An *anchor* ``t`` is a position whose hidden state, keys and values the target has computed. At depth ``k`` the drafter takes in
token ``x[t + 1 + k]`` and predicts ``x[t + 2 + k]``; ``x[t + 1]`` is the last committed token, which the target has not taken in.
Training and drafting run the same blocks: rows are anchors in one and branches in the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.core.errors import ModelError
from draftgauge.drafters.reuse.blocks import SELF_ATTENDING, Block, BlockHeads, Memory
from draftgauge.drafters.reuse.chain import ChainState, Prefix
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.rotary import RotaryTables, Tables, window
from draftgauge.models.taps import Features


class ReuseNet(nn.Module):
    """A drafter of any design (see :class:`ReuseConfig`).

    The token embedding is the target's, frozen: it is neither a parameter nor in the state dict. Everything else is trained.

    Attributes:
        config: what it is made of.
        d2t: ``[V]`` target id of every draft id, None without a draft vocabulary.
        t2d: ``[vocabulary]`` draft id of every target id, -1 where there is none; None without a draft vocabulary.
    """

    embedding: Tensor
    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(
        self, config: ReuseConfig, embedding: Tensor, rotary: nn.Module, draft_tokens: Tensor | None = None
    ) -> None:
        """A network with PyTorch's random weights; :func:`~draftgauge.drafters.reuse.building.new_net` makes one to be trained.

        Args:
            config: what it is made of.
            embedding: the target's token embeddings ``[vocabulary, H]``, shared.
            rotary: the target's rotary module, called for its tables and left as it is.
            draft_tokens: ``[V]`` target ids of the draft vocabulary, ascending, where the configuration has one.

        Raises:
            ModelError: if the draft tokens are not those that the configuration asks for.
        """
        super().__init__()
        self.config = config
        self.rotary = RotaryTables(rotary)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        to_target, to_draft = _vocabulary_maps(config, draft_tokens, embedding.device)
        self.register_buffer("d2t", to_target, persistent=False)
        self.register_buffer("t2d", to_draft, persistent=False)
        hidden = config.hidden_size
        self.fuse = nn.Linear(len(config.hidden_layers) * hidden, hidden, bias=False) if config.reads_hidden else None
        self.blocks: Sequence[Block] = nn.ModuleList(Block(config, layer) for layer in range(config.layers))  # type: ignore[assignment]
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.head = nn.Linear(hidden, config.logits, bias=False)

    def unroll(self, tokens: Tensor, features: Features, depths: int) -> list[Tensor]:
        """Training-time test (EAGLE-3, arXiv 2503.01840): ``K`` steps from every anchor, teacher tokens in, own states passed on.

        Args:
            tokens: ``[B, T]``.
            features: of the same texts.
            depths: ``K``.

        Returns:
            ``K`` tensors ``[B, A, V]`` with ``A = T - 1 - K``: entry ``k`` predicts ``x[t + 2 + k]`` for the anchors ``t = 0..A-1``.

        Raises:
            ModelError: if the texts are too short for ``K`` steps.
        """
        return [self.logits(state) for state in self.unroll_states(tokens, features, depths)]

    def unroll_states(self, tokens: Tensor, features: Features, depths: int, first: int = 0) -> list[Tensor]:
        """:meth:`unroll` without the head: ``K`` states ``[B, A - first, H]``, whose :meth:`logits` may be computed piece by piece.

        The anchors before ``first``, a prompt's for instance, are context only: nothing is drafted from them.
        """
        anchors = tokens.shape[1] - 1 - depths
        if depths < 1 or anchors < 1:
            raise ModelError(
                f"texts of {tokens.shape[1]} tokens are too short to draft {depths}: they need at least {depths + 2}"
            )
        embedded = self.embed(tokens[:, 1 : anchors + depths])  # [B, A + K - 1, H]
        parts = [block.token_parts(embedded) for block in self.blocks]
        memories = self._injected(features, anchors)
        tables = self.rotary(tokens.shape[1], embedded, self.config.rope_kind)
        stream = embedded
        if self.config.reads_hidden:
            assert features.hidden is not None, "this design reads hidden states"
            stream = self.fuse_hidden(features.hidden[:, :anchors])
        # Self-attention sees depth 0 of every anchor; all else is made for the anchors that something is drafted from.
        start = 0 if self.config.design in SELF_ATTENDING else first
        stream = stream[:, start:]
        states = []
        for depth in range(depths):
            begin, end = start + depth, anchors + depth
            stream = stream if self.config.reads_hidden else embedded[:, begin:end]
            positions = window(tables, begin + 1, end + 1)
            for layer, block in enumerate(self.blocks):
                heads = block.heads(parts[layer].window(begin, end), stream, positions)
                memories[layer] = _remember(memories[layer], heads, depth, first - start)
                stream = block(stream[:, first - start :], heads.since(first - start), memories[layer], causal=True)
            start = first
            states.append(stream)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Logits ``[..., V]`` of states ``[..., H]``."""
        output: Tensor = self.head(self.norm(states))
        return output

    def begin(self) -> ChainState:
        """The state before anything was taken in."""
        return ChainState(Prefix(self.config, self.head.weight), 0, 0, (), self.head.weight.new_empty(0))

    @torch.inference_mode()
    def take_in(
        self,
        state: ChainState,
        tokens: Tensor,
        hidden: Tensor | None = None,
        keys: Sequence[Tensor] | Tensor | None = None,
        values: Sequence[Tensor] | Tensor | None = None,
    ) -> tuple[Tensor, ChainState]:
        """Add anchors and run depth 0 of the last one.

        Args:
            state: after the anchors so far; the chain that was drafted from them is forgotten.
            tokens: ``[n]``, the token *after* each new anchor; the last of them is the last committed token.
            hidden: ``[n, S, H]`` of the new anchors, for the designs that read hidden states.
            keys, values: ``S`` tensors ``[KV, n, D]`` of the new anchors, for the designs that read them.

        Returns:
            float32 logits ``[V]`` of the first drafted token, and the state of the chain.
        """
        prefix, begin, end = state.prefix, state.anchors, state.anchors + len(tokens)
        prefix.reserve(begin, end)
        if self.config.reads_kv:
            assert keys is not None, "this design reads keys"
            assert values is not None, "this design reads values"
            joined = self._cast(torch.stack(tuple(keys))[None]), self._cast(torch.stack(tuple(values))[None])
            for layer, block in enumerate(self.blocks):
                prefix.injected[layer].write(begin, block.inject(*joined, begin, self.rotary))
        first = (
            begin if prefix.anchors is not None else end - 1
        )  # only self-attention needs depth 0 of the anchors before the last
        embedded = self.embed(tokens[None, first - begin :])
        tables = window(self._tables(end + 1), first + 1, end + 1)
        stream = embedded
        if self.config.reads_hidden:
            assert hidden is not None, "this design reads hidden states"
            stream = self.fuse_hidden(hidden[None, first - begin :])
        memories = []
        for layer, block in enumerate(self.blocks):
            heads = block.heads(block.token_parts(embedded), stream, tables)
            memory = prefix.memory(layer, begin, end, heads.own)
            heads, stream = heads.since(-1), stream[:, -1:]
            memories.append(_remember(memory, heads._replace(own=None), 0))
            stream = block(stream, heads, memories[-1], causal=False)
        return self.logits(stream)[0, 0].float(), ChainState(prefix, end, 1, tuple(memories), stream)

    @torch.inference_mode()
    def step(self, state: ChainState, token: Tensor | int) -> tuple[Tensor, ChainState]:
        """One more depth of a chain of one branch: ``[V]`` float32 logits after a drafted token, and the longer chain."""
        logits, state = self._advance(state, torch.as_tensor(token, device=self.embedding.device).view(1))
        return logits[0], state

    @torch.inference_mode()
    def step_many(self, state: ChainState, parents: Tensor, tokens: Tensor) -> tuple[Tensor, ChainState]:
        """One more depth of several branches, which may share parents.

        Args:
            state: of ``N`` branches.
            parents: ``[M]`` rows of ``state``.
            tokens: ``[M]``, the token drafted after each.

        Returns:
            float32 logits ``[M, V]``, and the state of the ``M`` branches.
        """
        return self._advance(state.rows(parents), tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """Frozen embeddings ``[..., H]`` in the dtype of the weights."""
        embedded = self._cast(F.embedding(tokens, self.embedding))
        return embedded if self.config.embedding_scale == 1 else embedded * self.config.embedding_scale

    def fuse_hidden(self, hidden: Tensor) -> Tensor:
        """The hidden states of ``S`` layers ``[B, n, S, H]`` as one ``[B, n, H]``."""
        assert self.fuse is not None
        return self._cast(self.fuse(self._cast(hidden.flatten(2))))  # so that the stream stays float32 under autocast

    def _advance(self, state: ChainState, tokens: Tensor) -> tuple[Tensor, ChainState]:
        embedded = self.embed(tokens[None])
        place = state.anchors + state.depth  # of these tokens
        tables = window(self._tables(place + 1), place, place + 1)
        stream = state.stream if self.config.reads_hidden else embedded
        memories = []
        for layer, block in enumerate(self.blocks):
            heads = block.heads(block.token_parts(embedded), stream, tables)
            memories.append(_remember(state.memories[layer], heads, state.depth))
            stream = block(stream, heads, memories[-1], causal=False)
        return self.logits(stream)[0].float(), ChainState(
            state.prefix, state.anchors, state.depth + 1, tuple(memories), stream
        )

    def _injected(self, features: Features, anchors: int) -> list[Memory]:
        """Every layer's memory before depth 0."""
        if not self.config.reads_kv:
            return [Memory() for _ in self.blocks]
        assert features.keys is not None, "this design reads keys"
        assert features.values is not None, "this design reads values"
        keys, values = self._cast(features.keys[..., :anchors, :]), self._cast(features.values[..., :anchors, :])
        return [Memory(injected=block.inject(keys, values, 0, self.rotary)) for block in self.blocks]

    def _tables(self, length: int) -> Tables:
        return self.rotary(length, self.head.weight, self.config.rope_kind)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.head.weight.dtype)


def _remember(memory: Memory, heads: BlockHeads, depth: int, first: int = 0) -> Memory:
    """The memory with the rows' own keys of this depth; at depth 0 the self-attention's are those of the anchors themselves.

    Nothing is drafted from the rows before ``first``, so they have no chain.
    """
    if heads.own is not None:
        pair = heads.own.keys, heads.own.values
        memory = memory._replace(drafted=(*memory.drafted, pair)) if depth else memory._replace(anchors=pair)
    if heads.chain is not None:
        chain = heads.chain.since(first)
        memory = memory._replace(chain=(*memory.chain, (chain.keys, chain.values)))
    return memory


def _vocabulary_maps(
    config: ReuseConfig, draft_tokens: Tensor | None, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """``d2t`` and ``t2d``."""
    if not config.draft_vocabulary:
        if draft_tokens is not None:
            raise ModelError(
                "draft tokens were given, but this configuration has no draft vocabulary: set draft_vocabulary to their number"
            )
        return None, None
    if draft_tokens is None:
        raise ModelError(
            f"this configuration has a draft vocabulary of {config.draft_vocabulary} tokens: say which they are"
        )
    ids = draft_tokens.cpu()
    in_range = int(ids.min()) >= 0 and int(ids.max()) < config.vocabulary
    if len(ids) != config.draft_vocabulary or not in_range or not bool((ids[1:] > ids[:-1]).all()):
        raise ModelError(
            f"the draft vocabulary must be {config.draft_vocabulary} different tokens of the target's {config.vocabulary}, ascending"
        )
    to_draft = torch.full((config.vocabulary,), -1, device="cpu")
    to_draft[ids] = torch.arange(len(ids), device="cpu")
    return ids.to(device), to_draft.to(device)
