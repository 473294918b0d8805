"""EAGLE-3 (Li et al. 2025, arXiv 2503.01840): checkpoints as published, read and run, and trained drafters written.

Its first layer takes in a token's embedding beside a state. That is the target's fused hidden states at the first token
of a draft, its own output after that. Letters in shapes as in :mod:`draftgauge.drafters.formats.decoder`.

It reads SafeAILab's and SGLang's flat configuration (https://github.com/SafeAILab/EAGLE, ``sgl-project/SpecForge``,
``deepseek-ai/DeepSpec``) and that of speculators. What is written loads in vLLM, SGLang, speculators and (trained for
it) llama.cpp: a ``hidden`` drafter's weights, renamed and unchanged. Queries, keys and values read
``[embedding; state]`` side by side, which are two linears there whose outputs are added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.anchors import DEEPEST, AnchorCache, KeysValues, Places
from draftgauge.drafters.formats import writing
from draftgauge.drafters.formats.decoder import ChainBranches, DrafterNet
from draftgauge.drafters.formats.layout import HEAD, Layout, Shapes, read_windows, shared
from draftgauge.drafters.formats.settings import Settings
from draftgauge.drafters.reuse.attention import Heads, joint_attention
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.rotary import Tables, window

Attend = Callable[[int, Heads], Tensor]
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
DESIGN = "hidden"
LLAMA_CPP_TAPS = 3

_BLOCK, _LAYER = "blocks.0.", "midlayer."
_ATTENTION = f"{_BLOCK}self_attention."
_RENAMED = {
    f"{_BLOCK}token_norm.weight": f"{_LAYER}input_layernorm.weight",
    f"{_BLOCK}state_norm.weight": f"{_LAYER}hidden_norm.weight",
    f"{_ATTENTION}output.weight": f"{_LAYER}self_attn.o_proj.weight",
    f"{_BLOCK}mlp_norm.weight": f"{_LAYER}post_attention_layernorm.weight",
    f"{_BLOCK}mlp.down.weight": f"{_LAYER}mlp.down_proj.weight",
    "norm.weight": "norm.weight",
    "head.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class Eagle3Layout(Layout):
    """The norms in which EAGLE-3 checkpoints differ; see ``speculators.models.eagle3``."""

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def read(cls, reader: Settings) -> Eagle3Layout:
        return cls(**cls.fields_of(reader, "eagle3"))

    @classmethod
    def fields_of(cls, reader: Settings, family: str) -> dict[str, Any]:
        reader.check_known("EAGLE-3", ())
        fields = shared(reader, family, plain="speculators_model_type" not in reader.config)
        if any(read_windows(reader, fields["decoder"].layers)):
            reader.refuse("EAGLE-3 drafters with sliding-window attention are not run here")
        fields["taps"] = tuple(sorted(fields["taps"]))  # engines hand them over in ascending order, whatever is listed
        return fields | {norm: reader.flag(norm) for norm in _NORMS}

    def takes_token(self, layer: int, found: Collection[str]) -> bool:
        return layer == 0 or f"layers.{layer}.hidden_norm.weight" in found

    def shapes(self, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
        wanted, optional = super().shapes(found, target_width)
        wanted[HEAD] = optional.pop(HEAD)
        if self.norm_before_fc:
            wanted["input_norm.weight"] = (len(self.taps) * target_width,)
        if self.fc_norm:
            wanted |= {f"fc_norm.{tap}.weight": (target_width,) for tap in range(len(self.taps))}
        return wanted, optional


class Eagle3Chain(NamedTuple):
    """Chains of drafted tokens from consecutive anchors; never changed.

    Attributes:
        states: the last ones ``[R, H]``.
        own: keys and values of each layer, by depth.
        unseen: ``[C]`` true for places of the cache that a chain does not see, where it is the only one.
        seen: how many places the last of several chains sees, each one less than the next; 0 for a single one.
        ahead: rotary tables from the position of the first anchor on.
    """

    depth: int
    states: Tensor
    own: tuple[tuple[KeysValues, ...], ...]
    unseen: Tensor | None
    seen: int
    ahead: Tables


class Eagle3Net(DrafterNet):
    layout: Eagle3Layout

    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The states ``[n, H]`` after the first depth of each anchor."""
        many = len(tokens) > DEEPEST  # through the flash kernels, where there are any; else in shapes that are recorded
        unseen = None if many else torch.arange(cache.capacity, device=tokens.device) > places.at[:, None]

        def attend(layer: int, heads: Heads) -> Tensor:
            cache.write(layer, places.at, (heads.keys[None], heads.values[None]))
            shared = cache.view(layer, cache.length if many else cache.capacity)
            return joint_attention(heads.queries[None], shared, (), many, unseen)[0]

        return self._run(tokens, self._fuse(hidden), window(places.tables, 0, len(tokens)), attend)

    def _fuse(self, hidden: Tensor) -> Tensor:
        """``[n, S, H]`` to ``[n, H]``."""
        weights, hidden = self.weights, hidden.to(self._head.dtype)
        if self.layout.fc_norm:
            hidden = torch.stack([weights.norm(f"fc_norm.{tap}", part) for tap, part in enumerate(hidden.unbind(1))], 1)
        joined = hidden.flatten(1)
        return weights.linear("fc", weights.norm("input_norm", joined) if self.layout.norm_before_fc else joined)

    @torch.inference_mode()
    def run(self, cache: AnchorCache, chain: Eagle3Chain, tokens: Tensor) -> tuple[Tensor, Eagle3Chain]:
        """One more depth, for a token ``[R]`` of each chain: logits ``[R, V]`` and the longer chains."""
        own = list(chain.own)

        def attend(layer: int, heads: Heads) -> Tensor:
            own[layer] = (*own[layer], (heads.keys[None], heads.values[None]))
            shared = cache.view(layer, chain.seen or cache.capacity)
            return joint_attention(heads.queries[None], shared, own[layer], chain.seen > 0, chain.unseen)[0]

        depth = chain.depth + 1
        passed_on = self.weights.norm("norm", chain.states) if self.layout.norm_output else chain.states
        states = self._run(tokens, passed_on, window(chain.ahead, depth, depth + len(tokens)), attend)
        return self.logits(states), chain._replace(depth=depth, states=states, own=tuple(own))

    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> ChainBranches:
        own: tuple[tuple[KeysValues, ...], ...] = ((),) * len(self._layers)
        end, seen = first + len(begin) + DEEPEST, first + len(begin) if len(begin) > 1 else 0
        unseen = None if seen else torch.arange(cache.capacity, device=begin.device) > first
        chain = Eagle3Chain(0, begin, own, unseen, seen, window(self._tables(end, begin), first, end))
        return ChainBranches(self.logits(begin), chain, run or partial(self.run, cache))

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.weights.norm("norm", states), self._head).float()

    def _run(self, tokens: Tensor, states: Tensor, tables: Tables, attend: Attend) -> Tensor:
        """All layers over rows."""
        embedded = self._embed(tokens)
        for number, layer in enumerate(self._layers):
            residual = states
            if layer.has("hidden_norm.weight"):  # takes in the token
                normed = layer.norm("hidden_norm", states)
                residual = normed if self.layout.norm_before_residual else states
                entering = torch.cat((layer.norm("input_layernorm", embedded), normed), -1)
            else:
                entering = layer.norm("input_layernorm", states)
            heads = Heads(layer.queries(entering, tables), *layer.keys_values(entering, tables))
            mixed = attend(number, heads).transpose(0, 1).flatten(1)
            states = residual + layer.linear("self_attn.o_proj", mixed)
            states = states + layer.swiglu(layer.norm("post_attention_layernorm", states))
        return states


def check_exportable(config: ReuseConfig) -> None:
    """Refuse a drafter that has no place in the EAGLE-3 layout, saying why."""
    if config.block:
        raise DraftgaugeError(
            "an EAGLE-3 drafter goes token by token, and this one proposes whole blocks: export it as dflash, or train "
            f"with `--recipe ttt --reuse {DESIGN}`"
        )
    if config.design != DESIGN:
        reads = (
            "it reads the target's keys and values, as only the served assistants of the Gemma 4 family do"
            if config.traits.reads_kv
            else "an MTP head is written as mtp"
            if config.traits.own_layer
            else "it does not read the target's hidden states, which an EAGLE-3 drafter starts from"
        )
        raise DraftgaugeError(
            f"the {config.design} design has no EAGLE-3 layout, and no serving engine loads it: {reads}. "
            f"Train with `--reuse {DESIGN}` to export, or run this drafter with draftgauge itself"
        )
    writing.check_embedding(config, "EAGLE-3")


def llama_cpp_lacks(config: ReuseConfig) -> str | None:
    """What of a drafter llama.cpp does not compute (``src/models/eagle3.cpp``); None where it computes all of it.

    Its converter refuses norms of tapped layers and says nothing of ``norm_output``, which it then leaves out.
    """
    lacks = []
    if config.norm_before_fc:
        lacks.append("a norm for each tapped layer (train with --llama-cpp)")
    if config.norm_output:
        lacks.append("states normalised from depth to depth (train with --llama-cpp)")
    if len(config.hidden_layers) != LLAMA_CPP_TAPS:
        lacks.append(f"{len(config.hidden_layers)} tapped layers (it takes {LLAMA_CPP_TAPS})")
    return " and ".join(lacks) or None


def checkpoint_tensors(config: ReuseConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors of a drafter's weights."""
    left = dict(weights)
    tensors = {new: left.pop(old) for old, new in _RENAMED.items()}
    tensors["fc.weight"] = writing.ascending(config, left.pop("fuse.weight"))
    for place, layer in enumerate(sorted(config.hidden_layers) if config.norm_before_fc else ()):
        tensors[f"fc_norm.{place}.weight"] = left.pop(f"tap_norms.{config.hidden_layers.index(layer)}.weight")
    joined = torch.cat((left.pop(f"{_ATTENTION}from_token.weight"), left.pop(f"{_ATTENTION}from_state.weight")), 1)
    tensors |= writing.taken_apart(config, joined, left.pop(f"{_BLOCK}mlp.gate_up.weight"), _LAYER)
    tensors |= writing.vocabulary_map(config, left)
    assert not left, f"weights without a name in EAGLE-3: {sorted(left)}"
    return tensors


def checkpoint_config(config: ReuseConfig) -> dict[str, Any]:
    """``config.json`` of the checkpoint, but for the dtype.

    Layers are counted twice. In ``eagle_aux_hidden_state_layer_ids`` 0 is the embedding and ``i`` the output of layer
    ``i - 1`` (vLLM, speculators); SGLang reads ``eagle_config`` and adds the 1 itself. ``norm_before_fc``, a norm for
    each tapped layer, is ``fc_norm`` there; their ``norm_before_fc`` is one norm over all layers together.
    """
    rope = dict(config.rope)
    scaled = rope.get("rope_type", "default") != "default"
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **writing.decoder_settings(config),
        "draft_vocab_size": config.logits,
        "rope_theta": rope.get("rope_theta"),
        "rope_scaling": rope if scaled else None,
        "mlp_bias": False,
        "norm_before_fc": False,
        "fc_norm": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "num_aux_hidden_states": len(config.hidden_layers),
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in sorted(config.hidden_layers)],
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": sorted(config.hidden_layers),
        },
    }
