"""DFlash (arXiv 2602.06036), which drafts a block in one pass: checkpoints read and run, trained drafters written.

Keys and values of the committed text come from the target's fused hidden states. Those of the block come from its
tokens: the last committed one and masks. Letters in shapes as in :mod:`draftgauge.drafters.formats.decoder`.

It reads the flat configurations of ``z-lab/dflash``, SpecForge and DeepSpec, and that of speculators, and writes the
last, as vLLM loads it. A block-wise ``hidden`` drafter trained with a mask token is this network, so weights are
renamed and none is changed. Embedding and head are the target's; of the head the rows of a draft vocabulary are
written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.anchors import AnchorCache, Places
from draftgauge.drafters.formats import writing
from draftgauge.drafters.formats.decoder import DrafterNet, Weights
from draftgauge.drafters.formats.layout import Layout, Shapes, read_windows, shared
from draftgauge.drafters.formats.settings import Settings
from draftgauge.drafters.reuse.blockwise import block_attention
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.rotary import Tables, window
from draftgauge.models.folder import resolve_source

SPECULATORS_VERSION = "0.9.0"  # whose configuration this is
_RENAMED = {"context_norm.weight": "hidden_norm.weight", "norm.weight": "norm.weight"}
_OF_LAYER = {
    "state_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.down": "mlp.down_proj",
}
_READ = ("causal", "is_causal", "input_embedding_scale", "output_multiplier", "final_logit_softcapping")


@dataclass(frozen=True)
class DFlashLayout(Layout):
    """A block drafter.

    Attributes:
        block: tokens of a block, the last committed one first.
        mask_token: fills the others.
        from_anchor: the first place of the block predicts the token after the committed one; else the second does.
        windows: of each layer, how many tokens it sees back; None for all.
        window_from_anchor: a window is counted back from the block's first place (speculators), not from each place.
        causal: of each layer, whether the places of a block see none behind them.
        embedding_scale: what the embeddings of a block are multiplied by, ``logit_scale`` its logits, before a soft cap
            at ``softcap``; 0 for none.
    """

    predicts_at_anchor: ClassVar[bool] = False  # where nothing is said
    read_too: ClassVar[tuple[str, ...]] = ()  # settings of a family's own
    free_windows: ClassVar[bool] = False  # layers with a window are not causal where nothing is said

    block: int = 0
    mask_token: int = 0
    from_anchor: bool = False
    windows: tuple[int | None, ...] = ()
    window_from_anchor: bool = False
    causal: tuple[bool, ...] = ()
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0

    @classmethod
    def read(cls, reader: Settings) -> DFlashLayout:
        return cls(**cls.fields_of(reader, "dflash"))

    @classmethod
    def fields_of(cls, reader: Settings, family: str) -> dict[str, Any]:
        reader.check_known("block", (*_READ, *cls.read_too))
        fields = shared(reader, family)
        if not fields["taps"]:
            raise ModelError(f"{reader.where} names no target layers (target_layer_ids, aux_hidden_state_layer_ids)")
        windows = read_windows(reader, fields["decoder"].layers)
        block, from_anchor = reader.block(cls.predicts_at_anchor)
        of_speculators = "speculators_model_type" in reader.config
        # as vLLM, SGLang and SpecForge decide: what is said holds for all layers, else those with a window are causal
        said = reader.spelled(("is_causal", "causal"))
        free = reader.flag("sliding_window_non_causal", cls.free_windows and of_speculators)
        return {
            **fields,
            "block": block,
            "mask_token": reader.mask_token(fields["decoder"].vocabulary),
            "from_anchor": from_anchor,
            "windows": windows,
            "window_from_anchor": of_speculators,
            "causal": tuple(window is not None and not free if said is None else said for window in windows),
            "embedding_scale": reader.number("input_embedding_scale", 1.0),
            "logit_scale": reader.number("output_multiplier", 1.0),
            "softcap": reader.number("final_logit_softcapping", 0.0),
        }

    @property
    def longest(self) -> int:
        return self.block if self.from_anchor else self.block - 1

    def shapes(self, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
        wanted, optional = super().shapes(found, target_width)
        wanted["hidden_norm.weight"] = (self.decoder.hidden_size,)
        return wanted, optional


class DFlashNet(DrafterNet):
    layout: DFlashLayout

    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The token ``[n]`` after each anchor."""
        fused = self.weights.norm("hidden_norm", self.weights.linear("fc", hidden.to(self._head.dtype).flatten(1)))
        for number, layer in enumerate(self._layers):
            keys, values = layer.keys_values(fused, window(places.tables, 0, len(tokens)))
            cache.write(number, places.at, (keys[None], values[None]))
        return tokens.clone()

    @torch.inference_mode()
    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> DFlashBranches:
        row, place = (torch.arange(count, device=begin.device) for count in (len(begin), self.layout.block))
        positions = first + 1 + row[:, None] + place  # [R, B]
        cos, sin = self._tables(first + len(begin) + self.layout.block, self._head)
        states = (run or partial(self.run, cache))(begin, positions, (cos[positions][:, None], sin[positions][:, None]))
        states = states[:, 0 if self.layout.from_anchor else 1 :]
        logits, cap = F.linear(states, self._head).float(), self.layout.softcap
        if self.layout.logit_scale != 1:
            logits = logits * self.layout.logit_scale
        return self.read_off(begin, states, (logits / cap).tanh() * cap if cap else logits)

    def run(self, cache: AnchorCache, tokens: Tensor, positions: Tensor, tables: Tables) -> Tensor:
        """States ``[R, B, H]`` of the blocks that begin with these tokens ``[R]``, at positions ``[R, B]``."""
        layout = self.layout
        masks = tokens.new_full((len(tokens), layout.block - 1), layout.mask_token)
        states = self._embed(torch.cat((tokens[:, None], masks), 1)) * layout.embedding_scale
        place = torch.arange(layout.block, device=tokens.device)
        for number, layer in enumerate(self._layers):
            entering, leave = self._around(layer, "attention", layer.norm("input_layernorm", states))
            queries, own = layer.queries(entering, tables), layer.keys_values(entering, tables)
            unseen = self._unseen(positions, cache.capacity, layout.windows[number])
            behind = place > place[:, None] if layout.causal[number] else None
            mixed = block_attention(queries, [cache.pairs[number]], own, unseen[:, None], layout.block, behind)
            states = states + leave(layer.linear("self_attn.o_proj", mixed.transpose(1, 2).flatten(2)))
            entering, leave = self._around(layer, "mlp", layer.norm("post_attention_layernorm", states))
            states = states + leave(layer.swiglu(entering))
        return self.weights.norm("norm", states)

    def _around(self, layer: Weights, part: str, normed: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """What a part of a layer takes in of its normed states ``[R, B, H]``, and what becomes of its output."""
        return normed, lambda output: output

    def _unseen(self, positions: Tensor, capacity: int, reach: int | None) -> Tensor:
        """``[R, B, C]`` true for places of the cache that one of a block does not see: of later rows or of none, or
        outside its window.
        """
        anchors = torch.arange(capacity, device=positions.device)
        unseen = (anchors >= positions[:, :1, None]).expand(-1, positions.shape[1], -1)
        if reach is None:
            return unseen
        if self.layout.window_from_anchor:
            return unseen | (anchors < positions[:, :1, None] - reach)
        return unseen | (anchors <= positions[:, :, None] - reach)

    def read_off(self, tokens: Tensor, states: Tensor, logits: Tensor) -> DFlashBranches:
        """Blocks of which places are read one by one, from their states ``[R, B, H]`` and logits ``[R, B, V]``."""
        return DFlashBranches(logits)


class DFlashBranches:
    """Blocks from consecutive anchors, read off place by place."""

    confidence: Tensor | None = None

    def __init__(self, logits: Tensor) -> None:
        self._block_logits, self._place = logits, 0
        self.logits: Tensor = logits[:, 0]

    def advance(self, tokens: Tensor) -> Tensor:
        self._place += 1
        self.logits = self._block_logits[:, self._place]
        return self.logits


def check_exportable(config: ReuseConfig) -> None:
    """Refuse a drafter that has no place in the DFlash layout, saying which setting stands against it."""
    if not config.block:
        raise DraftgaugeError("a DFlash drafter proposes whole blocks, and this one goes token by token: use eagle3")
    if config.design != "hidden":
        raise DraftgaugeError(
            f"the {config.design} design has no DFlash layout, which reads the target's hidden states and nothing else "
            "of it. Train with `--recipe block --reuse hidden` to export, or run this drafter with draftgauge itself"
        )
    if not config.dflash:
        raise DraftgaugeError(
            "this drafter was trained without --dflash: its mask is learned, its tapped layers are normalised, its "
            "queries and keys are not, and the place of the last token predicts. Train it with --dflash to export"
        )
    if config.markov_rank or config.confidence_head:
        what = "a Markov head (markov_rank)" if config.markov_rank else "a confidence head (confidence_head)"
        raise DraftgaugeError(f"this drafter has {what}, which DFlash lacks: train it without")
    writing.check_embedding(config, "DFlash")


def checkpoint_tensors(config: ReuseConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors of a drafter's weights."""
    left = dict(weights)
    tensors = {new: left.pop(old) for old, new in _RENAMED.items()}
    tensors["fc.weight"] = writing.ascending(config, left.pop("fuse.weight"))
    for number in range(config.layers):
        layer = f"layers.{number}."
        tensors |= {f"{layer}{new}.weight": left.pop(f"{layer}{old}.weight") for old, new in _OF_LAYER.items()}
        heads, gate_up = left.pop(f"{layer}attention.from_state.weight"), left.pop(f"{layer}mlp.gate_up.weight")
        tensors |= writing.taken_apart(config, heads, gate_up, layer)
    head, vocabulary = left.pop("head.weight"), writing.vocabulary_map(config, left)
    tensors |= {"lm_head.weight": head} | vocabulary if vocabulary else {}
    assert not left, f"weights without a name in DFlash: {sorted(left)}"
    return tensors


def checkpoint_config(config: ReuseConfig) -> dict[str, Any]:
    """``config.json`` of the checkpoint, but for the dtype: speculators' DFlash, whose layers are Qwen3's.

    The block has a place for the last token, which predicts nothing. Tapped layers are counted from the embedding on.
    """
    source = config.target_source
    proposal = {"proposal_type": "greedy", "speculative_tokens": config.block, "verifier_accept_k": 1}
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"accept_tolerance": 0.0}],
            "verifier": {"name_or_path": str(resolve_source(source)) if source else None, "architectures": []},
        },
        "aux_hidden_state_layer_ids": [layer + 1 for layer in sorted(config.hidden_layers)],
        "block_size": config.block + 1,
        "mask_token_id": config.mask_token,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,  # no layer has a window, but vLLM takes it for every layer
        "draft_vocab_size": config.logits,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **writing.decoder_settings(config),
            "model_type": "qwen3",
            "layer_types": ["full_attention"] * config.layers,
            "use_sliding_window": False,
        },
    }
