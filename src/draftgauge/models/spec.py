"""The facts of a transformers model that decoding needs, read off its configuration and weights."""

from __future__ import annotations

from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.base import ModelSpec

UNLIMITED = 2**31 - 1  # context of models whose configuration names none (ALiBi and the like)


def model_spec(model: PreTrainedModel, engine: str) -> ModelSpec:
    """Describe a loaded model.

    The dtype is that of the embeddings: with quantised weights it is the only one that says what activations are.
    """
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    return ModelSpec(
        vocabulary=config.vocab_size,
        context=getattr(config, "max_position_embeddings", None) or UNLIMITED,
        device=embedding.device,
        dtype=embedding.dtype,
        family=config.model_type,
        engine=engine,
    )


def check_context(spec: ModelSpec, length: int) -> None:
    """Raise ``ModelError`` if a sequence of ``length`` tokens is more than the model takes."""
    if length > spec.context:
        raise ModelError(
            f"a sequence of {length} tokens exceeds the {spec.context} that this {spec.family} model takes: "
            "shorten the prompt or ask for fewer new tokens"
        )


def check_starts(lowest: int, highest: int, length: int) -> None:
    """Raise ``ModelError`` if branches do not start inside the cached sequence."""
    if lowest < 1 or highest > length:
        raise ModelError(f"branches must start after 1..{length} cached tokens, got {lowest}..{highest}")
