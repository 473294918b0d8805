"""Tiny targets and drafts that resemble them."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel

from tiny import noisy, tiny_model, tokens

VOCABULARY = 12  # so small that drafts are accepted in part


@functools.cache
def target_of(family: str) -> PreTrainedModel:
    """One tiny model a family."""
    return tiny_model(family, vocab_size=VOCABULARY, eos_token_id=None, pad_token_id=0)


@functools.cache
def draft_of(family: str, noise: float = 0.1) -> PreTrainedModel:
    """The target with noise in its weights."""
    return noisy(copy.deepcopy(target_of(family)), noise)


def plain_and_speculative(model: PreTrainedModel, speculation: Any, **arguments: Any) -> tuple[Any, Any]:
    """What generate returns without and with speculation."""
    plain = model.generate(**arguments)
    return plain, model.generate(**arguments, custom_generate=speculation)


def prompt(length: int = 9, seed: int = 0) -> torch.Tensor:
    """Random ids ``[1, length]``."""
    return tokens(length, seed, VOCABULARY)[None]


class Falling(LogitsProcessor):
    """Makes the token that came last less likely, so that scores depend on the text."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter_add(1, input_ids[:, -1:], torch.full((len(scores), 1), -2.0))
