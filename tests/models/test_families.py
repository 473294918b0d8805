"""What runs which family: a type of each kind of the campaign (``tests/families.py``), and kinds of a type it lacks.

``make test-families`` tries every type. Llama's relatives are those of ``tiny.FAMILIES``.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, DynamicCache, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.dense import draft_densely, draft_position_by_position
from draftgauge.models.engines.lean_weights import why_not_lean
from draftgauge.models.loading import wrap
from draftgauge.models.spec import cache_argument, cached_numbers
from draftgauge.policies.fixed import FixedLength
from families import FIXTURES, OUTCOMES, PAGE, outcome, page_with, read_outcomes, wrong
from tiny import tiny_model, tiny_multimodal, tokens
from tiny_families import tiny_family

SETTINGS = DecodingSettings(6)
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
MULTIMODAL = "gemma3, multimodal"
TYPES = """qwen3 gemma4_text gemma3n_text cohere2 falcon gpt2 bloom gpt_oss deepseek_v3 llama4_text qwen3_5
    granitemoehybrid lfm2 jamba deepseek_v4 qwen2_5_vl bert roberta mllama dots3_note_text qwen4_exp_text blt"""

# Of a kind: its model_type, and its configuration.
MORE: dict[str, dict[str, Any]] = {
    MULTIMODAL: {},
    "phi3, longrope": {"model_type": "phi3", "rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    "falcon (ALiBi)": {"model_type": "falcon", "attention": "mha", "head_dim": ..., "alibi": True},
}


@pytest.mark.parametrize("kind", TYPES.split())
def test_a_type_does_what_the_campaign_found(kind: str) -> None:
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers does not have {kind}")
    row = outcome(kind, FIXTURES[-1:])  # the campaign itself tries one of each format
    assert not wrong(row), row
    if json.loads(OUTCOMES.read_text())["transformers"] == transformers.__version__:
        assert row == next(kept for kept in read_outcomes() if kept["type"] == kind)


def test_the_table_in_the_docs_is_what_the_campaign_found() -> None:
    page = PAGE.read_text()
    assert page == page_with(page, read_outcomes()), "python tests/families.py --write qwen3 writes it anew"


@pytest.mark.parametrize(
    ("kind", "layers"), [("gemma4_text", [2 * 2 * 16, 2 * 2 * 32] * 2), ("deepseek_v3", [32 + 8] * 4)]
)
def test_what_a_token_takes_in_the_cache_is_summed_over_layers_of_several_widths(kind: str, layers: list[int]) -> None:
    model = tiny_family(kind)
    cache = DynamicCache(config=model.config)
    model(torch.ones(1, 1, dtype=torch.long), use_cache=True, **cache_argument(model, cache))
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert cached_numbers(model.config) == sum(layers) == held


@functools.cache
def made(family: str) -> PreTrainedModel:
    options = {"model_type": family, "attention": "gqa"} | MORE.get(family, {})
    if family == MULTIMODAL:
        return tiny_multimodal(tiny_model("gemma3"))
    return tiny_model(options.pop("model_type"), options.pop("attention"), **options)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "qwen3_moe", *MORE])  # logits of the others: test_engines.py
def test_a_family_decodes_losslessly_on_every_engine(family: str) -> None:
    model, prompt = made(family), tokens(12, seed=3).tolist()
    expected = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=6, pad_token_id=0, eos_token_id=None
    )[0, len(prompt) :].tolist()
    other = LanguageModelDrafter(wrap(tiny_model("llama", seed=7, num_hidden_layers=1)))
    for engine in ("modules",) if why_not_lean(model) else ("lean", "static", "modules"):
        target, draft = wrap(model, engine), wrap(model, engine)
        assert plain_decode(target, prompt, SETTINGS).tokens == expected
        for drafter in (LanguageModelDrafter(draft), other):
            assert speculative_decode(target, drafter, FixedLength(3), prompt, SETTINGS).tokens == expected
        fast = draft_densely(draft, prompt, expected, 4)
        slow = draft_position_by_position(LanguageModelDrafter(draft), prompt, expected, 4)
        np.testing.assert_array_equal(fast.tokens, slow.tokens)
        np.testing.assert_allclose(fast.shown, slow.shown, atol=5e-5)


@pytest.mark.parametrize("family", ["openai-gpt", "rwkv", "bert", "bart", "xlstm", "xlm", "rembert"])
def test_a_family_that_does_not_decode_with_a_cache_is_refused(family: str) -> None:
    with pytest.raises(ModelError, match="does not decode with a cache of keys and values"):
        wrap(tiny_model(family))


def test_longrope_is_taken_up_to_the_length_where_it_changes() -> None:
    cached = wrap(made("phi3, longrope"))
    assert cached.spec.context == 64
    with pytest.raises(ModelError, match=r"65 tokens exceeds the 64 that this phi3 model takes \(.*longrope.* change"):
        cached.forward(tokens(65))
