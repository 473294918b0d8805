"""Hybrids: recurrent and convolution states that are rolled back, forked and recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, PreTrainedModel, dynamic_module_utils

from command_line import refusal
from draftgauge.core.config import to_mapping
from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.dense import draft_densely, draft_position_by_position
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.engines.delta_rule import advanced
from draftgauge.models.engines.recurrent import RecurrentModel
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from draftgauge.traces.costs import ARTEFACT, CostCurve
from tiny import noisy, one_pass, save_tiny, tiny_model, tokens

MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
EXPERTS = {"num_experts": 2, "num_local_experts": 2, "moe_intermediate_size": 16, "num_experts_per_tok": 1}
SHARED = {"shared_expert_intermediate_size": 16, "shared_intermediate_size": 16}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA2 = {"head_dim": 32, "state_size": 8, "n_groups": 2, "chunk_size": 16}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**DELTA, **MIXED},
    "qwen3_next": {**DELTA, **MIXED, **EXPERTS, **SHARED},
    "olmo_hybrid": {**DELTA, **MIXED},
    "granitemoehybrid": {**MAMBA, **EXPERTS, **SHARED, "layer_types": ["mamba", "attention"]},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "mamba2": {**MAMBA2, "num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "zaya": {},
}
APART = {  # transformers clamps their time steps in passes of several tokens only
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 16}
    | {"layers_block_type": ["mamba", "attention", "mlp"], "num_hidden_layers": 3},
}
IGNORED = "ignores its state where it takes in several tokens"
REFUSED = {
    "mamba": ({"state_size": 4, "expand": 2}, IGNORED),
    "jamba": ({"mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1}, IGNORED),
    "recurrent_gemma": ({"block_types": ["recurrent", "attention"], "lru_width": 64}, "outside of its cache"),
    "minimax": ({"num_local_experts": 2}, "MiniMax uses cache of its own"),
    "deepseek_v4": ({}, "DeepseekV4HCACache in layer 0, which is unknown here"),
}
SETTINGS = DecodingSettings(20)
PROMPT = tokens(9, seed=3).tolist()


def hybrid(family: str, seed: int = 0) -> PreTrainedModel:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers does not have {family}")
    return tiny_model(family, seed=seed, **HYBRIDS.get(family, APART.get(family)))


@pytest.mark.parametrize("family", [*HYBRIDS, *APART])
def test_a_hybrid_is_rolled_back_to_any_place_and_forked_from_it(family: str) -> None:
    module, text, other = hybrid(family), tokens(80), tokens(80, seed=9)
    model = wrap(module)
    assert isinstance(model, RecurrentModel)
    expected = one_pass(module, text)
    close = {"atol": 0.05 if family in APART else 2e-4, "rtol": 1e-3}

    def goes_on(count: int) -> None:
        begin = model.length
        torch.testing.assert_close(model.forward(text[begin : begin + count]), expected[begin : begin + count], **close)

    def drafts(*lengths: int) -> None:
        for length in lengths:
            model.forward(other[:length])

    goes_on(6)
    drafts(5)
    model.truncate(8)  # two of what was drafted; put right below
    model.truncate(4)  # inside of the first pass
    goes_on(4)
    for kept in (0, 1, 3):  # verified drafts
        begin = model.length
        model.forward(torch.cat((text[begin : begin + kept], other[: 4 - kept])))
        model.truncate(begin + kept)
        goes_on(1)
    begin = model.length
    goes_on(1), goes_on(1), drafts(1, 1)  # a draft model's passes
    model.truncate(begin + 2)
    goes_on(3)
    assert len(model._anchors) <= 2
    starts = torch.tensor([3, model.length - 1])
    session = model.branches(starts)
    first = session.step(text[starts])
    torch.testing.assert_close(first, expected[starts], **close)
    session.keep(torch.tensor([1]))
    torch.testing.assert_close(session.step(text[model.length, None]), expected[model.length, None], **close)
    while model.length < 70:
        goes_on(1)
    model.truncate(20)  # before all that is kept
    goes_on(5)


@pytest.mark.parametrize(("family", "calls"), [("qwen3_5_text", 1), ("olmo_hybrid", 1), ("granitemoehybrid", 4)])
def test_kept_tokens_of_the_gated_delta_rule_are_replayed_in_one_call(family: str, calls: int) -> None:
    model, text = wrap(hybrid(family)), tokens(20)
    assert isinstance(model, RecurrentModel)
    model.forward(text[:8])
    model.forward(text[8:14])
    (holder,), counted = model._holders, list[int]()
    with holder.register_forward_pre_hook(lambda *_: counted.append(1)):
        model.truncate(12)
    assert len(counted) == calls
    expected = one_pass(model.module, text)[12:]
    torch.testing.assert_close(model.forward(text[12:]), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("count", [1, 4, 40])
def test_the_gated_delta_rule_for_its_state_alone_gives_the_state_of_transformers(count: int) -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        query, key = torch.randn(2, 2, count, 2, 8).unbind()
        value, decay, rate = torch.randn(2, count, 4, 6), -3 * torch.rand(2, count, 4), torch.rand(2, count, 4)
        started = torch.randn(2, 4, 8, 6)
    for norm in (True, False):
        for state in (None, started):
            states = [
                rule(
                    query,
                    key / 4,
                    value,
                    g=decay,
                    beta=rate,
                    initial_state=None if state is None else state.clone(),
                    output_final_state=True,
                    use_qk_l2norm_in_kernel=norm,
                )[1]
                for rule in (advanced, qwen.torch_recurrent_gated_delta_rule)
            ]
            torch.testing.assert_close(*states, atol=1e-5, rtol=1e-4)


def test_speculation_equals_plain_decoding_whatever_is_rejected() -> None:
    module = hybrid("qwen3_5_text")
    target, expected = wrap(module), None
    llama = wrap(tiny_model("llama", seed=7, num_hidden_layers=1))
    for draft in (wrap(module), wrap(noisy(hybrid("qwen3_5_text"), 0.05)), llama):
        expected = expected or plain_decode(target, PROMPT, SETTINGS).tokens
        done = speculative_decode(target, LanguageModelDrafter(draft), FixedLength(4), PROMPT, SETTINGS)
        assert done.tokens == expected


def test_a_hybrid_draft_model_drafts_from_every_position() -> None:
    draft, output = wrap(hybrid("granitemoehybrid")), tokens(12, seed=5).tolist()
    output[:4] = plain_decode(draft, PROMPT, DecodingSettings(4)).tokens
    fast = draft_densely(draft, PROMPT, output, 4)
    slow = draft_position_by_position(LanguageModelDrafter(draft), PROMPT, output, 4)
    np.testing.assert_array_equal(fast.tokens, slow.tokens)
    np.testing.assert_allclose(fast.shown, slow.shown, atol=5e-5)


@pytest.mark.parametrize("recurrent", [True, False])
def test_what_rolling_back_takes_is_measured_and_replayed(recurrent: bool, tmp_path: Path) -> None:
    target = wrap(hybrid("qwen3_5_text") if recurrent else tiny_model())
    drafter = LanguageModelDrafter(wrap(tiny_model("llama", seed=7, num_hidden_layers=1)))
    plan = MeterPlan(PROMPT, (30,), gamma_max=2, seconds=0.2)
    curve = measure_costs(target, drafter, plan, np.random.default_rng(0))
    assert len(curve.rollback) == 2 * recurrent
    assert all(seconds > 0 for seconds in curve.rollback)
    first, last = curve.rollback or (0.0, 0.0)
    # Nothing is rolled back where nothing is proposed, or all of it is accepted.
    np.testing.assert_array_equal(
        curve.rollback_seconds(np.array([0, 2, 2, 2, 9]), np.array([0, 0, 1, 2, 5])), [0.0, first, last, 0.0, last]
    )
    older = {name: held for name, held in to_mapping(curve).items() if name != "rollback"}
    ARTEFACT.write(tmp_path / "costs.json", older)
    assert CostCurve.load(tmp_path / "costs.json").rollback == ()


OWN_CODE = """
from transformers import DynamicCache, LlamaForCausalLM


class OwnCache(DynamicCache):
    pass


class OwnModel(LlamaForCausalLM):
    def forward(self, input_ids, past_key_values=None, **options):
        {body}
"""
OWN_CACHES = {
    "asks for its own": (
        "assert past_key_values is None or isinstance(past_key_values, OwnCache), 'give an OwnCache'\n"
        "        return super().forward(input_ids, past_key_values=past_key_values, **options)",
        "ends in AssertionError: give an OwnCache",
    ),
    "keeps one of its own": (
        "self.held = OwnCache() if not past_key_values.get_seq_length() and len(input_ids[0]) > 1 else self.held\n"
        "        return super().forward(input_ids, past_key_values=self.held, **options)",
        "has cached 0 of",
    ),
}


@pytest.mark.parametrize("kind", OWN_CACHES)
def test_code_of_a_checkpoint_with_a_cache_of_its_own_is_refused_in_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    body, words = OWN_CACHES[kind]
    folder = save_tiny(tmp_path / "own", "llama")
    (folder / "own.py").write_text(OWN_CODE.format(body=body))
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnModel"], "auto_map": {"AutoModelForCausalLM": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    said = refusal("generate", "hello", "--target", folder, "--drafter", "lookup", "--trust-remote-code")
    assert words in " ".join(said.split())
    assert "OwnModel" in said


@pytest.mark.parametrize("family", REFUSED)
def test_a_state_that_cannot_be_rolled_back_is_refused_in_words(family: str) -> None:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers does not have {family}")
    settings, words = REFUSED[family]
    with pytest.raises(ModelError, match=words):
        wrap(tiny_model(family, **settings))
