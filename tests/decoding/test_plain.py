"""The reference loop against transformers' ``generate``."""

from __future__ import annotations

import pytest
import torch

from draftgauge.core.errors import DraftgaugeError, PromptError
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.models.loading import wrap
from draftgauge.verification import Sampling
from markov import MarkovModel
from tiny import tiny_model, tiny_tokenizer, tokens


def generate(model, prompt: list[int], **arguments) -> list[int]:
    output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24, pad_token_id=0, **arguments)
    return output[0, len(prompt) :].tolist()


def test_an_end_token_and_a_stop_string_end_the_output_where_generate_ends_it():
    model, tokenizer, prompt = tiny_model(), tiny_tokenizer(), tokens(10).tolist()
    cached = wrap(model, "lean")
    free = plain_decode(cached, prompt, DecodingSettings(24)).tokens
    first = free[5]
    ended = plain_decode(cached, prompt, DecodingSettings(24, end_tokens=frozenset({first})))
    assert repr(ended) == f"<Generation: {len(ended.tokens)} tokens, {len(ended.steps)} steps, stop>"
    assert ended.tokens == generate(model, prompt, eos_token_id=first) == free[: free.index(first) + 1]
    stop = tokenizer.decode(free[6:9])
    stopped = plain_decode(cached, prompt, DecodingSettings(24, stop_strings=(stop,), detokenize=tokenizer.decode))
    assert stopped.finish == "stop"
    assert stopped.tokens == generate(model, prompt, stop_strings=[stop], tokenizer=tokenizer, eos_token_id=None)
    assert tokenizer.decode(stopped.tokens).endswith(stop)


def test_requests_that_cannot_be_met():
    model = MarkovModel.random(5, seed=0, context=8)
    with pytest.raises(PromptError, match="empty"):
        plain_decode(model, [], DecodingSettings(4))
    with pytest.raises(DraftgaugeError, match="Shorten the prompt or lower max_new_tokens by 3"):
        plain_decode(model, [1] * 7, DecodingSettings(4))
    with pytest.raises(DraftgaugeError, match=r"Shorten the prompt by 4$"):
        plain_decode(model, [1] * 8, DecodingSettings(4))
    with pytest.raises(DraftgaugeError, match="generator"):
        plain_decode(model, [1], DecodingSettings(4, Sampling(0.5)))
