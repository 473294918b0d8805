"""How a checkpoint itself samples: its ``generation_config.json``."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig

from draftgauge.core.errors import ModelError
from draftgauge.models.folder import is_gguf, model_folder
from draftgauge.verification import Sampling

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
