"""What runs which family, on tiny models of all of them; the table in ``docs/engines.md`` is what this finds.

``WRITE_FAMILIES=1 pytest tests/models/test_families.py`` writes the table.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.dense import draft_densely, draft_position_by_position
from draftgauge.models.engines.lean_families import why_not_lean
from draftgauge.models.engines.modules import takes_branch_masks
from draftgauge.models.loading import wrap
from draftgauge.models.tap_plan import check_family
from draftgauge.policies.fixed import FixedLength
from tiny import FAMILIES, WINDOW, tiny_model, tiny_multimodal, tokens

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
HEADING = "| family | engines | dense trace | taps |\n|---|---|---|---|\n"
SETTINGS = DecodingSettings(6)
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
MULTIMODAL = "gemma3, multimodal"
MPT = {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}

# Of a family: its model_type if it is another one, and its configuration.
MORE: dict[str, dict[str, Any]] = {
    MULTIMODAL: {},
    "phi3": {},
    "phi3, longrope": {"model_type": "phi3", "rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    "gpt2": {"attention": "mha", "intermediate_size": None},
    "gpt_neox": {"attention": "mha"},
    "opt": {"attention": "mha", "ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom (ALiBi)": {"model_type": "bloom", "attention": "mha", "intermediate_size": None},
    "mpt (ALiBi)": {"model_type": "mpt", "attention": "mha", **MPT},
    "falcon": {"attention": "mha", "head_dim": ...},
    "falcon (ALiBi)": {"model_type": "falcon", "attention": "mha", "head_dim": ..., "alibi": True},
    "stablelm": {},
    "olmo2": {},
    "granite": {},
    "cohere": {},
    "cohere2": {"sliding_window": WINDOW},
    "glm4": {},
    "smollm3": {},
    "starcoder2": {},
    "nemotron": {},
    "exaone4": {"sliding_window": WINDOW},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": WINDOW, "num_experts_per_tok": 2},
}


@functools.cache
def made(family: str) -> PreTrainedModel:
    options = {"model_type": family, "attention": "gqa"} | MORE.get(family, {})
    if family == MULTIMODAL:
        return tiny_multimodal(tiny_model("gemma3"))
    return tiny_model(options.pop("model_type"), options.pop("attention"), **options)


@functools.cache
def row(family: str) -> str:
    """A line of the table, from a model."""
    model = made(family)
    engines = "modules" if why_not_lean(model) else "lean, static, modules"
    dense = "one pass a depth" if takes_branch_masks(model) or engines != "modules" else "one by one"
    try:
        check_family(model.config)
        taps = "yes"
    except ModelError:
        taps = "no"
    return f"| {family} | {engines} | {dense} | {taps} |"


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_a_family_decodes_losslessly_and_its_dense_trace_is_right(family: str) -> None:
    model, prompt = made(family), tokens(12, seed=3).tolist()
    expected = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=6, pad_token_id=0, eos_token_id=None
    )[0, len(prompt) :].tolist()
    other = LanguageModelDrafter(wrap(tiny_model("llama", seed=7, num_hidden_layers=1)))
    for engine in row(family).split("|")[2].strip().split(", "):
        target, draft = wrap(model, engine), wrap(model, engine)
        assert plain_decode(target, prompt, SETTINGS).tokens == expected
        for drafter in (LanguageModelDrafter(draft), other):
            assert speculative_decode(target, drafter, FixedLength(3), prompt, SETTINGS).tokens == expected
        fast = draft_densely(draft, prompt, expected, 4)
        slow = draft_position_by_position(LanguageModelDrafter(draft), prompt, expected, 4)
        np.testing.assert_array_equal(fast.tokens, slow.tokens)
        np.testing.assert_allclose(fast.shown, slow.shown, atol=5e-5)


@pytest.mark.parametrize(("family", "together"), [("llama", True), ("opt", False), ("bloom (ALiBi)", False)])
def test_branches_that_each_have_a_cache_grow_one_at_a_time(family: str, together: bool) -> None:
    assert (wrap(made(family), "modules").spec.branches > 1) == together


@pytest.mark.parametrize("family", ["openai-gpt", "rwkv", "bert", "bart", "xlstm", "xlm", "rembert"])
def test_a_family_that_does_not_decode_with_a_cache_is_refused(family: str) -> None:
    with pytest.raises(ModelError, match="does not decode with a cache of keys and values"):
        wrap(tiny_model(family))


def test_longrope_is_taken_up_to_the_length_where_it_changes() -> None:
    cached = wrap(made("phi3, longrope"))
    assert cached.spec.context == 64
    with pytest.raises(ModelError, match=r"65 tokens exceeds the 64 that this phi3 model takes \(.*longrope.* change"):
        cached.forward(tokens(65))


def test_the_table_in_the_docs_is_what_runs() -> None:
    table = HEADING + "\n".join(row(family) for family in (*FAMILIES, *MORE)) + "\n"
    before, _, _ = PAGE.read_text().partition(HEADING)
    if os.environ.get("WRITE_FAMILIES"):
        PAGE.write_text(before + table)
    assert PAGE.read_text() == before + table
