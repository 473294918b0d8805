"""Transformers' own ``generate()`` as an outside baseline, timed as our loops are: decoding only, prefill apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from draftgauge.api.arms import Arm, ArmRun
from draftgauge.api.pair import Pair
from draftgauge.decoding.clock import seconds
from draftgauge.models.transformers_calls import no_hints

GENERATE = "transformers-generate"
ASSISTED = "transformers-assisted"
ASSISTED_CONSTANT = "transformers-assisted-constant"
PROMPT_LOOKUP = "transformers-prompt-lookup"  # at transformers' defaults: 10 tokens, n-grams of up to 2
DEFAULT_CONSTANT = 5
_OF_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


@dataclass
class _Clock(BaseStreamer):
    """A streamer that notes when the first tokens came, and how many; ``generate`` hands it the prompt first."""

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


class TransformersBaseline:
    """``generate()`` of transformers: plain, assisted at its defaults or with a constant draft length, or with prompt
    lookup.

    Assisted generation keeps what it adapts in the draft's generation configuration, which lasts across prompts as it
    would in a server; each baseline has its own, and puts it in place only while it runs.
    """

    def __init__(self, pair: Pair, name: str, gamma: int | None = None) -> None:
        self.pair = pair
        self.assistant: PreTrainedModel | None = None
        self.settings: GenerationConfig | None = None
        self.options = {"prompt_lookup_num_tokens": 10} if name == PROMPT_LOOKUP else {}
        if name in (ASSISTED, ASSISTED_CONSTANT):
            assert pair.draft is not None
            self.assistant = pair.draft.module
            own = self.assistant.generation_config
            settings = GenerationConfig(**{key: getattr(own, key) for key in _OF_ASSISTANTS if hasattr(own, key)})
            if name == ASSISTED_CONSTANT:
                settings.num_assistant_tokens = gamma
                settings.num_assistant_tokens_schedule = "constant"
                settings.assistant_confidence_threshold = 0.0
            self.settings = settings

    @torch.inference_mode()
    def run(self, prompt: list[int], max_new_tokens: int) -> ArmRun:
        """Decode one prompt greedily. Timed are the tokens after those that came first."""
        target, assistant = self.pair.target.module, self.assistant
        device = self.pair.target.spec.device
        ids = torch.tensor([prompt], device=device)
        clock, ends = _Clock(device), sorted(self.pair.end_tokens)
        targets_own, assistants_own = target.generation_config, assistant and assistant.generation_config
        started = seconds(device)
        try:
            # None of the checkpoint's own settings: penalties in them would make another baseline.
            target.generation_config = GenerationConfig(eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0)
            if assistant is not None:
                assistant.generation_config = self.settings
            with no_hints():
                output = target.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    streamer=clock,
                    **({} if assistant is None else {"assistant_model": assistant}),
                    **self.options,
                )
            if assistant is not None:
                self.settings = assistant.generation_config  # as it has adapted it
        finally:
            target.generation_config = targets_own
            if assistant is not None:
                assistant.generation_config = assistants_own
        ended = seconds(device)
        first_at = clock.first_at or ended
        tokens = output[0, len(prompt) :].tolist()
        timed = max(len(tokens) - clock.first_tokens, 0)
        # Of an output that is over with its first pass nothing is known: it took no seconds, rather than brought 0.
        return ArmRun(tokens, 0, timed, ended - first_at if timed else 0.0, first_at - started)


def transformers_arms(pair: Pair, max_new_tokens: int, gamma: int = DEFAULT_CONSTANT) -> list[Arm]:
    """``generate()`` plain, with prompt lookup, assisted at its defaults and at a constant length, if it runs these."""
    if pair.target.module is None:
        return []
    baselines = {name: TransformersBaseline(pair, name) for name in (GENERATE, PROMPT_LOOKUP)}
    if pair.draft is not None and pair.draft.module is not None:
        baselines[ASSISTED] = TransformersBaseline(pair, ASSISTED)
        baselines[f"{ASSISTED_CONSTANT}:{gamma}"] = TransformersBaseline(pair, ASSISTED_CONSTANT, gamma)
    return [
        Arm(name, partial(baseline.run, max_new_tokens=max_new_tokens), outside=True)
        for name, baseline in baselines.items()
    ]
