"""Logits that are NaN or infinite are refused, naming the model and where, in every way of decoding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from draftgauge.core.errors import ModelError
from draftgauge.core.prompts import Prompt
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.decoding.recorder import Answer, RecordingPlan, record_answer, record_prompt
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.hf_confidence import ConfidenceThreshold
from draftgauge.verification import Sampling
from tiny import tiny_model, tokens
from wrapped_model import WrappedModel

PROMPT = tokens(10, seed=3).tolist()
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.0), "top-p": Sampling(0.8, top_k=20, top_p=0.9)}
SAID = r"the logits of the target \(torch.float32\) are NaN or infinite from token 13 of the text on: .*float16"


class Overflowing(WrappedModel):
    """Gives other logits of a token from a place in the text on."""

    token = 5

    def __init__(self, model: CachedModel, value: float, place: int = 12) -> None:
        super().__init__(model)
        self.value, self.place = value, place

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        start = self.length
        logits = self.model.forward(tokens, last_only).clone()
        logits[max(0, self.place - start) :, self.token] = self.value
        return logits


def target(value: float = math.nan) -> Overflowing:
    return Overflowing(wrap(tiny_model(seed=1)), value)


def drafter(sampling: Sampling, model: CachedModel | None = None) -> LanguageModelDrafter:
    model = model or wrap(tiny_model(seed=2))
    return LanguageModelDrafter(model, sampling=sampling, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_plain_and_speculative_decoding(sampling: Sampling, value: float) -> None:
    settings, generator = DecodingSettings(20, sampling), torch.Generator().manual_seed(0)
    with pytest.raises(ModelError, match=SAID):
        plain_decode(target(value), PROMPT, settings, generator)
    for policy in (FixedLength(3), ConfidenceThreshold(0.1, 4)):
        with pytest.raises(ModelError, match=r"logits of the target .* from token 1[0-3] of the text on"):
            speculative_decode(target(value), drafter(sampling), policy, PROMPT, settings, generator)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_drafter(sampling: Sampling) -> None:
    bad = Overflowing(wrap(tiny_model(seed=2)), math.nan)
    settings, generator = DecodingSettings(20, sampling), torch.Generator().manual_seed(0)
    with pytest.raises(ModelError, match="the logits of the draft model are NaN or infinite: "):
        speculative_decode(
            wrap(tiny_model(seed=1)), drafter(sampling, bad), FixedLength(3), PROMPT, settings, generator
        )


def test_masked_tokens_are_none_of_it() -> None:
    model = target(-math.inf)
    free = plain_decode(wrap(tiny_model(seed=1)), PROMPT, DecodingSettings(20)).tokens
    model.token = free[9]
    assert free[9] not in plain_decode(model, PROMPT, DecodingSettings(20)).tokens[3:]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampled"])
def test_recording(sampling: Sampling) -> None:
    plan = RecordingPlan(DecodingSettings(8, sampling), 3)
    generator, prompt = torch.Generator().manual_seed(0), Prompt(0, "p0", "chat", "test", text="x")
    with pytest.raises(ModelError, match=SAID):
        record_prompt(target(), drafter(sampling), prompt, PROMPT, plan, generator)
    bad = drafter(sampling, Overflowing(wrap(tiny_model(seed=2)), math.nan, 0))
    with pytest.raises(ModelError, match="the logits of the draft model are NaN or infinite from token 10"):
        record_prompt(wrap(tiny_model(seed=1)), bad, prompt, PROMPT, plan, generator)
    if sampling.greedy:
        with pytest.raises(ModelError, match=r"the logits of the target .* from token 10 of the text on"):
            record_answer(target(), drafter(sampling), (prompt, PROMPT), Answer([1, 2, 3, 4, 5, 6], "stop"), plan)
