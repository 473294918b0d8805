"""Models of transformers: what their files say, how they sample, and how they are called, without bars or hints."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, Cache, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from draftgauge.core.errors import ModelError
from draftgauge.models.base import ModelSpec
from draftgauge.models.folder import explained, is_gguf, model_folder
from draftgauge.verification import Sampling

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


def cache_argument(module: PreTrainedModel, cache: Cache | None) -> dict[str, Any]:
    """A cache as an argument of a module's ``forward``: ``cache`` from transformers 5.24 on, else ``past_key_values``.

    Later releases still take the old name, and warn.
    """
    return {_cache_name(type(module).forward): cache}


@functools.cache
def _cache_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU every kernel but cuDNN's, which plans anew for every exact shape: tens of milliseconds a length."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


@contextmanager
def no_bars() -> Iterator[None]:
    """No progress bars of transformers."""
    if not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


@contextmanager
def no_hints(*of: str) -> Iterator[None]:
    """Silence hints of these parts of transformers that the caller cannot act on; errors are logged."""
    levels = {(logger := logging.getLogger(f"transformers.{part}")): logger.level for part in of}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


LOADING = ("modeling_utils", "distributed")  # the first, when silenced, checks a plan whose faults the second tells


# Settings of a GenerationConfig that are honoured, or do not change what is decoded from the same limits.
_HARMLESS = (
    *("do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size"),
    *("compile_config", "disable_compile", "continuous_batching_config", "_from_model_config", "transformers_version"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind"),
    *("target_lookbehind", "assistant_ensemble_weight", "speculation_type", "use_mtp"),
    *("early_stopping", "length_penalty", "diversity_penalty", "num_beam_groups"),  # of beams, which are refused
)
# Values that change nothing, where they are not transformers' own defaults.
_NEUTRAL = {"guidance_scale": 1, "min_p": 0, "penalty_alpha": 0, "min_new_tokens": 0}
_NEUTRAL |= {"presence_penalty": 0, "frequency_penalty": 0}  # which transformers does not know, and serving engines do


def own_sampling(source: str | Path) -> Sampling:
    """Temperature, top-k and top-p of a checkpoint; greedy where it does not ask for sampling.

    A ``top_k`` or ``top_p`` that the file leaves out is off, as serving engines take it.
    """
    if is_gguf(source):
        raise ModelError(f"{source} is a GGUF file and says nothing of sampling: give temperature, top_k and top_p")
    try:
        own = GenerationConfig.from_pretrained(str(model_folder(source)))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{source} comes without sampling defaults (generation_config.json): give temperature, top_k and top_p"
        ) from error
    neutral = GenerationConfig._get_default_generation_params() | _NEUTRAL
    checked = [name for name in vars(GenerationConfig()) | _NEUTRAL if name not in _HARMLESS]
    off = [name for name in checked if getattr(own, name, None) not in (None, False, [], neutral.get(name))]
    if off:
        shown = ", ".join(f"{name} {getattr(own, name)}" for name in off)
        raise ModelError(
            f"the sampling defaults of {source} use {shown}, which is not supported here: give temperature, top_k "
            "and top_p instead"
        )
    if not own.do_sample:
        return Sampling()
    given = own.to_diff_dict()
    temperature, top_k, top_p = (given.get(name) for name in ("temperature", "top_k", "top_p"))
    return Sampling(1.0 if temperature is None else float(temperature), int(top_k or 0), float(top_p or 1.0))
