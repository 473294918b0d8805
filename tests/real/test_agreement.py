"""The lean engine, transformers' modules and transformers' ``generate`` on published weights: the same outputs in
float32, and in bfloat16 up to near-ties.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftgauge.core.prompts import read_prompts
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.models.loading import load_model, load_tokenizer, wrap
from draftgauge.models.tokenizer import encode_with

pytestmark = pytest.mark.slow
TOKENS = 32
NEAR_TIE = 0.75  # between the two best float32 logits, which are around 20: bfloat16 has steps of 0.125 there


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_engines_agree(model: Callable[[str], str], prompts: str, name: str) -> None:
    path = model(name)
    tokenizer = load_tokenizer(path)
    encoded = [encode_with(tokenizer, prompt) for prompt in read_prompts(Path(prompts))[::2]]
    lean = load_model(path, "fp32", engine="lean")
    modules = wrap(lean.module, "modules")
    settings, exact = DecodingSettings(max_new_tokens=TOKENS), []
    for prompt in encoded:
        outputs = [plain_decode(engine, prompt, settings).tokens for engine in (lean, modules)]
        generated = lean.module.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=None
        )
        assert outputs == [generated[0, len(prompt) :].tolist()] * 2
        lean.reset()
        exact.append((outputs[0], lean.forward(torch.tensor([*prompt, *outputs[0]]))[len(prompt) - 1 : -1]))
    del lean, modules
    for engine in ("lean", "modules"):
        half, differing = load_model(path, "bf16", engine=engine), 0
        for prompt, (output, logits) in zip(encoded, exact, strict=True):
            half.reset()
            half.forward(torch.tensor(prompt[:-1]))
            steps = torch.cat([half.forward(torch.tensor([token])) for token in [prompt[-1], *output[:-1]]])
            other = steps.argmax(-1) != torch.tensor(output)
            best = logits.topk(2).values
            assert ((best[:, 0] - best[:, 1])[other] < NEAR_TIE).all()
            differing += int(other.sum())
        print(f"{name}, {engine} in bfloat16: {differing} of {2 * TOKENS} tokens differ, all near-ties")
