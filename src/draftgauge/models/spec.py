"""The facts of a transformers model that decoding needs, read off its configuration and weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.base import ModelSpec
from draftgauge.models.folder import explained, model_folder

UNLIMITED = 2**31 - 1  # context of models whose configuration names none (ALiBi and the like)


def read_configuration(source: str | Path, trust_remote_code: bool) -> PreTrainedConfig:
    path = model_folder(source)
    with explained(source):
        return AutoConfig.from_pretrained(str(path), trust_remote_code=trust_remote_code)


def model_spec(model: PreTrainedModel, engine: str) -> ModelSpec:
    """Describe a loaded model; its dtype is that of the embeddings, as quantised weights do not say it."""
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    context, reason = context_of(config)
    return ModelSpec(
        vocabulary=config.vocab_size,
        context=context,
        device=embedding.device,
        dtype=embedding.dtype,
        family=config.model_type,
        engine=engine,
        attention=getattr(config, "_attn_implementation", None) or "",
        context_reason=reason,
    )


def context_of(config: PreTrainedConfig) -> tuple[int, str]:
    """The longest sequence, and why it is not the one that the configuration names.

    Past a length, longrope rotates keys by other frequencies than it rotated those that are cached. What a pass
    computes would then depend on how many tokens it takes in: no output could be compared with another.
    """
    named = getattr(config, "max_position_embeddings", None) or UNLIMITED
    named = named if named > 0 else UNLIMITED  # xlnet says -1
    for rope in rope_kinds(config):
        if rope["rope_type"] == "longrope":
            first = rope.get("original_max_position_embeddings")
            first = int(first or getattr(config, "original_max_position_embeddings", None) or named)
            if first < named:
                why = "from there on its rotary embeddings (longrope) change, and with them keys that are cached"
                return first, why
    return named, ""


def layer_config(config: PreTrainedConfig, layer: int) -> PreTrainedConfig:
    """The configuration of one decoder layer, where the layers differ in more than their kind (Gemma 4)."""
    return config.per_layer_config[layer] if getattr(config, "is_heterogeneous", False) else config


def head_dim(config: PreTrainedConfig, layer: int = -1) -> int:
    own = layer_config(config, layer % config.num_hidden_layers)
    return int(getattr(own, "head_dim", None) or own.hidden_size // (getattr(own, "num_attention_heads", None) or 1))


def key_heads(config: PreTrainedConfig, layer: int = -1) -> int:
    own = layer_config(config, layer % config.num_hidden_layers)
    return int(getattr(own, "num_key_value_heads", None) or getattr(own, "num_attention_heads", None) or 1)


def cached_numbers(config: PreTrainedConfig) -> int:
    """How many numbers the keys and values of one token are, over all layers; MLA caches a latent and a rotary key."""
    numbers = 0
    for layer in range(config.num_hidden_layers):
        own = layer_config(config, layer)
        if latent := getattr(own, "kv_lora_rank", None):
            numbers += latent + own.qk_rope_head_dim
        else:
            numbers += 2 * key_heads(config, layer) * head_dim(config, layer)
    return numbers


def rope_kinds(config: PreTrainedConfig) -> list[dict[str, Any]]:
    rope = getattr(config, "rope_parameters", None) or {}
    return [kind for kind in (rope, *rope.values()) if isinstance(kind, dict) and "rope_type" in kind]


def rope_kind(config: PreTrainedConfig) -> str:
    """What the rotary embedding of full attention is called, in families with one for each kind of layer; else ""."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        ""
        if "rope_type" in rope or not rope_kinds(config)
        else next(kind for kind in ("full_attention", *rope) if kind in rope)
    )


def check_context(spec: ModelSpec, length: int) -> None:
    if length > spec.context:
        raise ModelError(
            f"a sequence of {length} tokens exceeds the {spec.context} that this {spec.family} model takes"
            f"{context_note(spec)}: shorten the prompt or ask for fewer new tokens"
        )


def check_tokens(spec: ModelSpec, tokens: Sequence[int]) -> None:
    if (highest := max(tokens)) >= spec.vocabulary:
        raise ModelError(
            f"the text holds token {highest}, and this {spec.family} model has {spec.vocabulary}, counted from 0: the "
            "tokenizer is of another model, or had tokens added that this model was not given"
        )


def context_note(spec: ModelSpec) -> str:
    return f" ({spec.context_reason})" if spec.context_reason else ""


def check_starts(lowest: int, highest: int, length: int) -> None:
    if lowest < 1 or highest > length:
        raise ModelError(f"branches must start after 1..{length} cached tokens, got {lowest}..{highest}")
