"""Transformers' own ``generate()`` as an outside baseline, timed like our loops: decoding only, prefill apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from draftgauge.api.pair import Pair
from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.clock import seconds
from draftgauge.models.quiet import no_hints

GENERATE, ASSISTED, ASSISTED_CONSTANT = (
    "transformers-generate",
    "transformers-assisted",
    "transformers-assisted-constant",
)
_OF_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


@dataclass
class BaselineRun:
    """One output of ``generate()``: its tokens, how many came first, and the seconds before and after those came."""

    tokens: list[int]
    first_tokens: int
    prefill_seconds: float
    decode_seconds: float


@dataclass
class _Clock(BaseStreamer):
    """A streamer that notes when the first tokens came; ``generate`` hands it the prompt first."""

    device: torch.device
    puts: int = 0
    first_at: float = 0.0
    first_tokens: int = 0
    tokens: list[int] = field(default_factory=list)

    def put(self, value: Tensor) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first_at, self.first_tokens = seconds(self.device), value.numel()

    def end(self) -> None:
        """Nothing is buffered."""


@contextmanager
def _configured(
    model: PreTrainedModel | None, settings: GenerationConfig | None
) -> Iterator[Callable[[], GenerationConfig | None]]:
    """Generate with these settings and none of the checkpoint's own: penalties in them would make another baseline.

    Gives a function that tells the settings as generation has left them.
    """
    if model is None:
        yield lambda: None
        return
    original = model.generation_config
    model.generation_config = settings
    try:
        yield lambda: model.generation_config
    finally:
        model.generation_config = original


class TransformersBaseline:
    """``generate()`` of transformers, plain, assisted at its defaults, or assisted with a constant draft length.

    Assisted generation keeps what it adapts in the draft's generation configuration, which lasts across prompts as it
    would in a server; each baseline has its own, and puts it in place only while it runs.
    """

    def __init__(self, pair: Pair, name: str, gamma: int | None = None) -> None:
        """A baseline on the models of a pair.

        Args:
            pair: with a draft model, unless the baseline is plain ``generate()``.
            name: one of ``transformers-generate``, ``transformers-assisted`` and ``transformers-assisted-constant``.
            gamma: the constant length.
        """
        self.pair, self.name = pair, name
        self.assistant: PreTrainedModel | None = None
        self.settings: GenerationConfig | None = None
        if name != GENERATE:
            if pair.draft is None:
                raise DraftgaugeError(f"{name} needs a draft model, and this pair drafts with {pair.draft_source.name}")
            self.assistant = pair.draft.module
            own = self.assistant.generation_config
            settings = GenerationConfig(**{name: getattr(own, name) for name in _OF_ASSISTANTS if hasattr(own, name)})
            if name == ASSISTED_CONSTANT:
                settings.num_assistant_tokens = gamma
                settings.num_assistant_tokens_schedule = "constant"
                settings.assistant_confidence_threshold = 0.0
            self.settings = settings

    @torch.inference_mode()
    def run(self, prompt_tokens: list[int], max_new_tokens: int) -> BaselineRun:
        """Decode one prompt greedily."""
        target = self.pair.target.module
        device = self.pair.target.spec.device
        ids = torch.tensor([prompt_tokens], device=device)
        clock = _Clock(device)
        ends = sorted(self.pair.end_tokens)
        arguments = {"assistant_model": self.assistant} if self.assistant is not None else {}
        plain = GenerationConfig(eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0)
        started = seconds(device)
        with no_hints(), _configured(target, plain), _configured(self.assistant, self.settings) as used:
            output = target.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                streamer=clock,
                **arguments,
            )
            self.settings = used()
        ended = seconds(device)
        first_at = clock.first_at or ended
        return BaselineRun(
            output[0, len(prompt_tokens) :].tolist(), clock.first_tokens, first_at - started, ended - first_at
        )
