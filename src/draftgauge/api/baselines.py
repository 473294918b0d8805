"""Transformers' own ``generate()`` as an outside baseline, timed as our loops are: decoding only, prefill apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from draftgauge.api.arms import Arm, ArmRun
from draftgauge.api.pair import Pair
from draftgauge.models.device import seconds
from draftgauge.models.transformers_calls import no_hints
from draftgauge.policies.registry import parse_spec

GENERATE = "transformers-generate"
ASSISTED = "transformers-assisted"
ASSISTED_CONSTANT = "transformers-assisted-constant"
PROMPT_LOOKUP = "transformers-prompt-lookup"  # 10 tokens, n-grams of up to 2, as transformers has it
DEFAULT_CONSTANT = 5
_OF_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


@dataclass
class _Clock(BaseStreamer):
    """A streamer that notes when the first tokens came, and how many; ``generate`` hands it the prompt first."""

    device: torch.device
    puts: int = 0
    first_at: float = 0.0
    first_tokens: int = 0

    def put(self, value: Tensor) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first_at, self.first_tokens = seconds(self.device), value.numel()

    def end(self) -> None:
        """Nothing is buffered."""


class TransformersBaseline:
    """``generate()`` of transformers: plain, with prompt lookup, or assisted, at its defaults or at ``settings``.

    Assisted generation keeps what it adapts in the draft's generation configuration, which lasts across prompts as it
    would in a server; each baseline has its own, and puts it in place only while it runs.
    """

    def __init__(self, pair: Pair, name: str, settings: Mapping[str, Any]) -> None:
        self.pair = pair
        self.assistant: PreTrainedModel | None = None
        self.settings: GenerationConfig | None = None
        self.options = dict(settings)
        if name.startswith(ASSISTED):
            assert pair.draft is not None
            self.assistant, self.options = pair.draft.module, {}
            own = self.assistant.generation_config
            known = {key: getattr(own, key) for key in _OF_ASSISTANTS if hasattr(own, key)}
            self.settings = GenerationConfig(**{**known, **settings})

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


def transformers_arms(
    pair: Pair, max_new_tokens: int, gamma: int = DEFAULT_CONSTANT, specs: Sequence[str] = ()
) -> list[Arm]:
    """``generate()`` plain, with prompt lookup, assisted at its defaults and at a constant length, if it runs these;
    and with the values of those of ``specs`` that are rules of transformers.
    """
    if pair.target.module is None:
        return []
    chosen: dict[str, dict[str, Any]] = {GENERATE: {}, PROMPT_LOOKUP: _looked_up(), ASSISTED: {}}
    chosen[f"{ASSISTED_CONSTANT}:{gamma}"] = _assisted(0.0, gamma)
    for spec in specs:
        rule, _, written = spec.partition(":")
        if written and rule in _RULES:
            name, settings = _RULES[rule]
            chosen[f"{name}:{written}"] = settings(**parse_spec(spec)[1])
    assists = pair.draft is not None and pair.draft.module is not None
    return [
        Arm(name, partial(TransformersBaseline(pair, name, settings).run, max_new_tokens=max_new_tokens), outside=True)
        for name, settings in chosen.items()
        if assists or not name.startswith(ASSISTED)
    ]


def _assisted(
    threshold: float = 0.4, tokens: int = 20, adaptive: bool = False, gamma_max: int | None = None
) -> dict[str, Any]:
    """Where scikit-learn is installed, transformers moves a ``threshold`` above 0 whether or not it is ``adaptive``."""
    return dict(zip(_OF_ASSISTANTS, (min(tokens, gamma_max or tokens), "constant", threshold), strict=True))


def _looked_up(ngram: int = 2, tokens: int = 10, gamma_max: int | None = None) -> dict[str, Any]:
    return {"prompt_lookup_num_tokens": min(tokens, gamma_max or tokens), "max_matching_ngram_size": ngram}


_RULES: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "hf-confidence": (ASSISTED, _assisted),
    "hf-prompt-lookup": (PROMPT_LOOKUP, _looked_up),
}
