"""Which layers of a target are tapped, checked against its configuration before any weight is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedConfig

from draftgauge.core.errors import ModelError
from draftgauge.models.base import layer_count
from draftgauge.models.engines.lean_weights import LENGTH_DEPENDENT_ROPE
from draftgauge.models.spec import layer_config, rope_kinds
from draftgauge.models.tap_rules import TAP_RULES, TapRule

FULL_ATTENTION = ("full_attention", "attention", "hybrid")  # kinds of layers by transformers' names


@dataclass(frozen=True)
class TapPlan:
    """Decoder layers to tap, counted from 0.

    Attributes:
        hidden_layers: whose output, the residual stream, is kept. transformers calls it ``hidden_states[layer + 1]``.
            Of the last layer that one has gone through the final norm, and this one has not.
        kv_layers: whose cached keys and values are read.
    """

    hidden_layers: tuple[int, ...] = ()
    kv_layers: tuple[int, ...] = ()


def tap_plan(
    config: PreTrainedConfig, hidden: bool, kv: bool, layers: Sequence[int] | TapRule | None = None
) -> TapPlan:
    """Plan the taps of a target.

    Some targets alternate full and sliding-window attention. Where a rule chooses and not the caller, keys and values
    then come from the full-attention layers nearest to those of the rule.

    Args:
        layers: which decoder layers, counted from 0, or one of :data:`TAP_RULES`; "eagle3" if None.
    """
    config = config.get_text_config()  # of a model that sees images too, the part that decodes
    if kv:
        _check_keys(config)
    rule: Sequence[int] | TapRule = "eagle3" if layers is None else layers
    if isinstance(rule, str) and rule not in TAP_RULES:
        raise ModelError(f"unknown taps {rule!r}: name layers, or one of {', '.join(TAP_RULES)}")
    count = layer_count(config)
    chosen = TAP_RULES[rule](count) if isinstance(rule, str) else tuple(rule)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ModelError(
            f"name at least one layer to tap, and each once, not {', '.join(map(str, chosen)) or 'none at all'}"
        )
    if missing := [layer for layer in chosen if not 0 <= layer < count]:
        raise ModelError(
            f"there is no layer {', '.join(map(str, missing))} to tap: this {config.model_type} has {count}, counted "
            f"from 0 to {count - 1}"
        )
    if hidden and (absent := sorted({*chosen}.intersection(_of_images(config)))):
        raise ModelError(
            f"layer {absent[0]} of this {config.model_type} reads images and is left out of text: tap other layers"
        )
    kv_layers = chosen if kv else ()
    if kv and isinstance(rule, str):
        kv_layers = nearest_full(config, chosen)
    full = _full_attention(config)
    for layer in kv_layers:
        if layer not in full:
            advice = "choose a target with full attention, or a drafter that reuses hidden states"
            if full:
                advice = f"tap layers with full attention, {', '.join(map(str, full))}"
            raise ModelError(
                f"layer {layer} of this {config.model_type} {_without_keys(config, layer)}, so it has no keys and "
                f"values of its own for the whole text: {advice}"
            )
    return TapPlan(chosen if hidden else (), kv_layers)


def _check_keys(config: PreTrainedConfig) -> None:
    """Refuse a target whose cache does not hold keys that say what was read."""
    if getattr(layer_config(config, 0), "kv_lora_rank", None):
        raise ModelError(
            f"this {config.model_type} caches a latent (MLA) in place of keys and values: choose a drafter that reads "
            "hidden states"
        )
    check_rope(config)


def check_rope(config: PreTrainedConfig) -> None:
    """Refuse a target whose rotary embedding a drafter cannot share."""
    changing = [kind["rope_type"] for kind in rope_kinds(config) if kind["rope_type"] in LENGTH_DEPENDENT_ROPE]
    if changing:
        raise ModelError(
            f"this {config.model_type} has rotary embeddings ({changing[0]}) that change with the length of the text, "
            "so keys that were cached do not tell their position: choose a target with another kind of rotary embedding"
        )


def _of_images(config: PreTrainedConfig) -> Sequence[int]:
    return getattr(config, "cross_attention_layers", None) or ()


def _full_attention(config: PreTrainedConfig) -> list[int]:
    return [layer for layer in range(config.num_hidden_layers) if not _without_keys(config, layer)]


def _without_keys(config: PreTrainedConfig, layer: int) -> str:
    """Why a layer keeps no keys of the whole text; empty where it does."""
    if layer in _of_images(config):
        return "reads images"
    if layer >= config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0):
        return "reads the keys of another layer"
    kinds, length = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    kind = kinds[layer] if kinds is not None else "full_attention" if length is None else "sliding_attention"
    if kind == "sliding_attention":
        return f"attends within a window of {length} tokens"
    return "" if kind in FULL_ATTENTION else f"is one of {kind}"


def nearest_full(config: PreTrainedConfig, layers: tuple[int, ...]) -> tuple[int, ...]:
    """The nearest unused layer with full attention for each layer; the layers themselves if no layer has it."""
    left = _full_attention(config)
    if not left:
        return layers
    taken = []
    for layer in layers[: len(left)]:
        taken.append(min(left, key=lambda other: abs(other - layer)))
        left.remove(taken[-1])
    return tuple(sorted(taken))
