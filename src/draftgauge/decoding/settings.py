"""What to decode and when to stop: the settings that all loops share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Generator

from draftgauge.core.errors import DraftgaugeError, PromptError
from draftgauge.models.base import ModelSpec
from draftgauge.models.spec import check_tokens, context_note
from draftgauge.verification import Sampling

Detokenize = Callable[[list[int]], str]

StopWhen = Callable[[int], bool]
"""Told every token of one output, in order: does it end the output? It then is the last token."""


@dataclass(frozen=True)
class DecodingSettings:
    """How one output is decoded.

    Attributes:
        end_tokens: any of them ends the output and is its last token.
        stop_strings: any of them in the decoded output ends it, see :mod:`draftgauge.decoding.stopping`.
        gamma_max: the most tokens that a drafter is asked for, whatever the policy wants; looked-up ones come on top.
        stop_when: a further reason to stop. It may follow the text, and is then for one output only.
    """

    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    end_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    detokenize: Detokenize | None = None
    stop_when: StopWhen | None = None
    gamma_max: int = 1 << 30

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise DraftgaugeError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if "" in self.stop_strings:
            raise DraftgaugeError("a stop string is empty, which would stop every output at once: leave it out")


def check_request(
    spec: ModelSpec, prompt_tokens: list[int], settings: DecodingSettings, generator: Generator | None
) -> None:
    """Check that the target can decode this prompt at these settings."""
    if not prompt_tokens:
        raise PromptError("the prompt is empty: give it at least one token")
    check_tokens(spec, prompt_tokens)
    length = len(prompt_tokens) + settings.max_new_tokens
    if length > spec.context:
        excess = length - spec.context
        fewer = " or lower max_new_tokens" if excess < settings.max_new_tokens else ""
        raise DraftgaugeError(
            f"context longer than the model takes: {len(prompt_tokens)} prompt tokens and max_new_tokens "
            f"{settings.max_new_tokens} make {length}, the model takes {spec.context}{context_note(spec)}. "
            f"Shorten the prompt{fewer} by {excess}"
        )
    if generator is None and not settings.sampling.greedy:
        raise DraftgaugeError("sampling at a temperature above 0 needs a random generator on the model's device")
