"""What a reuse drafter is made of, and the designs: what it reads of its target, and by which attentions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedConfig

from draftgauge.core.errors import ModelError
from draftgauge.core.parts import TapRule
from draftgauge.models.spec import context_of, head_dim, key_heads, layer_config, rope_kind
from draftgauge.models.taps import TapPlan, check_rope, tap_plan

NORMS = ("norm_before_fc", "norm_before_residual", "norm_output")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")  # by family
INJECTIONS = ("concat", "project", "project-rope")


@dataclass(frozen=True)
class Design:
    """What sets a design apart; everything else is the same for all.

    Attributes:
        reads_hidden: it takes the target's hidden states at depth 0, and its own state at the others: recurrent, one
            layer.
        reads_kv: it attends to the target's keys and values.
        self_attends: it has an attention over depth 0 of all anchors and its own chain.
        chain_attends: it has an attention over the injected keys of the target, if any, and its own chain.
        warm_starts: it can start from a trained ``hidden`` drafter, all of whose parts it has.
        blockwise: it can propose a whole block at once, see :mod:`draftgauge.drafters.reuse.blockwise`.
        own_layer: it is an MTP head, see :mod:`draftgauge.drafters.reuse.own_layer`.
    """

    reads_hidden: bool = False
    reads_kv: bool = False
    self_attends: bool = False
    chain_attends: bool = False
    warm_starts: bool = False
    blockwise: bool = True
    own_layer: bool = False

    @property
    def gated(self) -> bool:
        return self.self_attends and self.chain_attends


DESIGNS: Mapping[str, Design] = MappingProxyType(
    {
        "hidden": Design(reads_hidden=True, self_attends=True),
        "kv": Design(reads_kv=True, chain_attends=True),
        "hybrid": Design(reads_hidden=True, reads_kv=True, self_attends=True, chain_attends=True, warm_starts=True),
        "cross": Design(reads_hidden=True, reads_kv=True, chain_attends=True, warm_starts=True, blockwise=False),
        "control": Design(chain_attends=True),  # reads nothing of the target
        "mtp": Design(reads_hidden=True, self_attends=True, blockwise=False, own_layer=True),
    }
)
BLOCK_SIZES, MOST_BLOCK_LAYERS = range(4, 17), 5
WARM_START = "hidden"  # the design that others start from


@dataclass(frozen=True, kw_only=True)
class ReuseConfig:
    """A drafter that reuses the target's hidden states, its KV cache, both or neither (KVShot, arXiv 2604.26412).

    Attributes:
        design: one of ``DESIGNS``.
        layers: drafter layers; token by token, more than one only for ``kv`` and ``control``.
        injection: how the keys and values of several target layers enter, one of ``INJECTIONS``.
        hidden_layers: target decoder layers whose hidden states are read, from 0; empty where none are.
        kv_layers: target decoder layers whose keys and values are read, likewise.
        vocabulary: the target's number of logits.
        draft_vocabulary: tokens that the drafter can propose; 0 for all.
        rope_kind: which of the target's rotary embeddings, in families that have one for each kind of layer; else
            empty.
        embedding_scale: what the family multiplies token embeddings by.
        target_fingerprint: which target it was trained for, see
            :func:`~draftgauge.drafters.reuse.persistence.target_fingerprint`.
        norm_before_fc: normalise the hidden states of every tapped layer before they are fused. Their scale grows from
            layer to layer, up to hundreds of times that of a token's embedding.
        norm_before_residual: normalise the fused states, and later the drafter's own, before they become the block's
            residual, not only before its attention.
        norm_output: pass the drafter's states on to the next depth normalised, as its head takes them in.
        block: tokens that one pass proposes; 0 in drafters that go token by token.
        markov_rank: rank of the bias that the token before a slot of a block gives to its logits; 0 for none.
        confidence_head: a head estimates each slot's chance of acceptance, and policies read it as confidence.
        mask_token: whose embedding fills a block, in a block-wise ``hidden`` drafter of DFlash's network as published;
            None in the others, whose mask is learned.

    The norms are those of ``speculators``; all three switched off is the original EAGLE-3. They concern the designs
    that read hidden states: the residual of the others starts from the token's embedding, which is small.
    """

    design: str
    layers: int = 1
    injection: str = "project-rope"
    hidden_layers: tuple[int, ...]
    kv_layers: tuple[int, ...]
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    draft_vocabulary: int = 0
    rms_norm_eps: float
    rope: Mapping[str, Any]
    rope_kind: str
    context: int
    embedding_scale: float
    target_family: str
    target_fingerprint: str = ""
    target_source: str = ""
    norm_before_fc: bool = True
    norm_before_residual: bool = True
    norm_output: bool = True
    block: int = 0
    markov_rank: int = 0
    confidence_head: bool = False
    mask_token: int | None = None

    def __post_init__(self) -> None:
        _check_choice("design", self.design, tuple(DESIGNS))
        _check_choice("injection", self.injection, INJECTIONS)
        if self.layers < 1:
            raise ModelError(f"a drafter has at least one layer, not {self.layers}")
        if self.block:
            if not self.traits.blockwise:
                able = ", ".join(name for name, design in DESIGNS.items() if design.blockwise)
                raise ModelError(f"the {self.design} design has no block-wise drafter: choose one of {able}")
            if self.block not in BLOCK_SIZES:
                raise ModelError(f"a block has {BLOCK_SIZES[0]} to {BLOCK_SIZES[-1]} tokens, not {self.block}")
            if self.block >= self.context:
                raise ModelError(f"a block of {self.block} tokens does not fit the target's context of {self.context}")
            if self.layers > MOST_BLOCK_LAYERS:
                raise ModelError(f"a block-wise drafter has at most {MOST_BLOCK_LAYERS} layers, not {self.layers}")
            if self.markov_rank < 0:
                raise ModelError(f"the rank of the Markov head is at least 0, not {self.markov_rank}")
            if self.dflash and self.design != "hidden":
                raise ModelError(f"DFlash reads hidden states alone, so the {self.design} design has no mask token")
        elif self.layers > 1 and self.traits.reads_hidden:
            raise ModelError(
                f"the {self.design} design has one layer, not {self.layers}: more layers are for kv and control, and "
                "for block-wise drafters"
            )
        if self.intermediate_size < 1:
            raise ModelError(f"the intermediate size must be at least 1, not {self.intermediate_size}")
        if not 0 <= self.draft_vocabulary <= self.vocabulary:
            raise ModelError(
                f"a draft vocabulary of {self.draft_vocabulary} tokens is not within the target's {self.vocabulary}"
            )

    @property
    def dflash(self) -> bool:
        return self.mask_token is not None

    @property
    def enters_with_state(self) -> bool:
        """Of a block-wise drafter: whether its slots enter with what it reads of the anchor."""
        return (self.traits.reads_hidden or self.traits.reads_kv) and not self.dflash

    @property
    def traits(self) -> Design:
        return DESIGNS[self.design]

    @property
    def tap_plan(self) -> TapPlan:
        return TapPlan(self.hidden_layers, self.kv_layers)

    @property
    def logits(self) -> int:
        return self.draft_vocabulary or self.vocabulary

    @property
    def chain_kv_heads(self) -> int:
        return self.kv_heads * (len(self.kv_layers) if self.traits.reads_kv and self.injection == "concat" else 1)

    @property
    def chain_query_heads(self) -> int:
        return -(-self.query_heads // self.chain_kv_heads) * self.chain_kv_heads


def reuse_config(
    target_config: PreTrainedConfig,
    design: str,
    *,
    taps: Sequence[int] | TapRule | None = None,
    intermediate_size: int | None = None,
    **choices: Any,
) -> ReuseConfig:
    """The configuration of a drafter for a target.

    Args:
        taps: target layers to read, from 0, or a rule, see :func:`~draftgauge.models.taps.tap_plan`.
        choices: fields of :class:`ReuseConfig` that the target does not decide.
    """
    _check_choice("design", design, tuple(DESIGNS))
    if choices.get("mask_token") is not None:  # DFlash fuses its taps without a norm of each
        choices["norm_before_fc"] = False
    text = target_config.get_text_config()
    if DESIGNS[design].own_layer:
        taps = (text.num_hidden_layers - 1,)
    plan = tap_plan(text, DESIGNS[design].reads_hidden, DESIGNS[design].reads_kv, taps)
    check_rope(text)
    tapped = plan.kv_layers or (text.num_hidden_layers - 1,)
    shapes = {(key_heads(text, layer), head_dim(text, layer)) for layer in tapped}
    one, width = layer_config(text, tapped[0]), head_dim(text, tapped[0])
    if plan.kv_layers and (len(shapes) > 1 or (getattr(one, "v_head_dim", None) or width) != width):
        raise ModelError(
            f"keys and values of this {text.model_type} have several widths: choose a drafter that reads hidden states"
        )
    rope = getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 1e4}
    own_width = getattr(one, "intermediate_size", None) or 4 * text.hidden_size  # as where experts have widths alone
    return ReuseConfig(
        design=design,
        hidden_layers=plan.hidden_layers,
        kv_layers=plan.kv_layers,
        hidden_size=text.hidden_size,
        query_heads=getattr(one, "num_attention_heads", None) or max(1, text.hidden_size // width),
        kv_heads=key_heads(text, tapped[0]),
        head_dim=width,
        intermediate_size=own_width if intermediate_size is None else intermediate_size,
        vocabulary=text.vocab_size,
        rms_norm_eps=next((getattr(text, name) for name in EPSILONS if hasattr(text, name)), 1e-6),
        rope=rope,
        rope_kind=rope_kind(text),  # of layers whose keys are tapped
        context=context_of(text)[0],
        embedding_scale=text.hidden_size**0.5 if text.model_type.startswith("gemma") else 1.0,
        target_family=text.model_type,
        **choices,
    )


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ModelError(f"unknown {what} {value!r}: choose one of {', '.join(choices)}")
