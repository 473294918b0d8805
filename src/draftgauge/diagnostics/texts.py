"""Held-out texts: prompts with the target's own greedy outputs, with which a drafter is asked to agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftgauge.core.progress import Progress, silent
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.base import CachedModel


@dataclass(frozen=True)
class HeldOutText:
    """One prompt and the target's greedy output.

    Attributes:
        prompt: token ids, at least one.
        output: token ids; the last one is an end token where the output ended by itself.
        task: of the prompt.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    task: str = ""

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]


def greedy_texts(
    target: CachedModel,
    prompts: Sequence[tuple[str, list[int]]],
    settings: DecodingSettings,
    progress: Progress = silent,
) -> list[HeldOutText]:
    """Decode every prompt greedily, without speculation.

    Args:
        target: the model; its cache is overwritten.
        prompts: (task, token ids) of each.
        settings: limit and end tokens; greedy.
        progress: told (what, done, total).
    """
    assert settings.sampling.greedy
    texts = []
    for number, (task, prompt) in enumerate(prompts, start=1):
        output = plain_decode(target, prompt, settings).tokens
        texts.append(HeldOutText(tuple(prompt), tuple(output), task))
        progress("held-out texts", number, len(prompts))
    return texts
