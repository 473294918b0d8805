"""Sampling in ``generate(custom_generate=speculative(...))`` has the law of ``generate``."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, set_seed
from transformers.generation import GenerateDecoderOnlyOutput

import draftgauge
from generating import Falling, prompt
from markov import Enumerator, assert_same_law
from tiny import tiny_model


def law_of_generate(model: PreTrainedModel, ids: torch.Tensor, count: int, processors: LogitsProcessorList) -> dict:
    """The law of ``count`` sampled tokens, by multiplying the chances along every sequence."""
    law = {}
    for output in itertools.product(range(model.config.vocab_size), repeat=count):
        text = torch.cat((ids, torch.tensor([output])), -1)
        with torch.no_grad():
            logits = model(text).logits[0, ids.shape[1] - 1 : -1]
        chance = 1.0
        for place, token in enumerate(output):
            seen = text[:, : ids.shape[1] + place]
            chance *= float(processors(seen, logits[place][None].clone()).softmax(-1)[0, token])
        if chance > 0:
            law[output] = chance
    return law


class Recorder(LogitsProcessor):
    """Changes nothing, at the end of the list; where it stands no sampling can be split off."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7, "top_k": 2},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.9, "min_p": 0.2},
        {"temperature": 0.9, "typical_p": 0.6},
        {"logits_processor": LogitsProcessorList([Falling()])},
        {"return_dict_in_generate": True, "top_k": 3, "temperature": 1.5},
    ],
)
@pytest.mark.parametrize("greedy_draft", [False, True])
def test_the_sampled_law_is_exactly_that_of_generate(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], greedy_draft: bool
) -> None:
    model, draft = (tiny_model(vocab_size=3, seed=seed, eos_token_id=None, num_hidden_layers=1) for seed in (1, 2))
    ids, count = torch.tensor([[1, 2, 1, 2]]), 3 if greedy_draft else 2
    speculation = draftgauge.speculative("prompt_lookup" if greedy_draft else draft, "fixed:2")
    enumerator = Enumerator(monkeypatch)
    settings = {"max_new_tokens": count, "do_sample": True, "top_k": 0} | options

    def program() -> tuple[int, ...]:
        output = model.generate(ids, **settings, custom_generate=speculation)
        sequences = output.sequences if isinstance(output, GenerateDecoderOnlyOutput) else output
        return tuple(sequences[0, 4:].tolist())

    seen = LogitsProcessorList()
    kept = model._get_logits_processor
    monkeypatch.setattr(model, "_get_logits_processor", lambda **given: seen.__init__(kept(**given)) or seen)
    program()
    monkeypatch.setattr(model, "_get_logits_processor", kept)
    assert_same_law(enumerator.law(program), law_of_generate(model, ids, count, seen), 1e-5)


def test_seeded_outputs_follow_the_law_of_plain_generate(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """The same through the real random draws, against the draws of generate itself."""
    runs, options = 200, {"max_new_tokens": 2, "do_sample": True, "top_k": 3, "temperature": 1.5}
    speculation = draftgauge.speculative(draft, "fixed:2")
    seeded = []
    for _ in range(2):
        set_seed(0)
        ours = target.generate(prompt(), **options, num_return_sequences=runs, custom_generate=speculation)
        seeded.append(ours[:, 9:].tolist())
    assert seeded[0] == seeded[1]
    counts = Counter(map(tuple, seeded[0]))
    many = target.generate(prompt(), **options, num_return_sequences=runs)[:, 9:]
    expected = Counter(map(tuple, many.tolist()))
    for output in counts | expected:
        chance = (counts[output] + expected[output]) / (2 * runs)
        assert abs(counts[output] - expected[output]) / runs < 4.5 * math.sqrt(2 * chance * (1 - chance) / runs)
