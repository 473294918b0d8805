"""How a checkpoint itself samples: its ``generation_config.json``."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig

from draftgauge.core.errors import ModelError
from draftgauge.models.gguf_library import is_gguf
from draftgauge.verification import Sampling

# What changes the distribution and is not to be had here, with the values at which it changes nothing.
_NEUTRAL = {
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "min_p": (None, 0.0),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "penalty_alpha": (None, 0.0),
    "num_beams": (None, 1),
}


def own_sampling(source: str | Path) -> Sampling:
    """Temperature, top-k and top-p of a checkpoint; greedy where it does not ask for sampling.

    A ``top_k`` or ``top_p`` that the file leaves out is off, as serving engines take it.

    Raises:
        ModelError: if it comes without ``generation_config.json``, or asks for what would change the distribution
            otherwise.
    """
    if is_gguf(source):
        raise ModelError(f"{source} is a GGUF file and says nothing of sampling: give temperature, top_k and top_p")
    try:
        own = GenerationConfig.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{source} comes without sampling defaults (generation_config.json): give temperature, top_k and top_p"
        ) from error
    off = [name for name, neutral in _NEUTRAL.items() if getattr(own, name, None) not in neutral]
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
