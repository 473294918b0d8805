"""Drafters that read their target: configurations, matched widths, seeds and starts, back from disk as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig, Qwen3Config

from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters.base import Drafting
from draftgauge.drafters.reuse import building
from draftgauge.drafters.reuse.building import (
    count_parameters,
    frequent_tokens,
    matched_widths,
    new_net,
    start_norm,
    warm_start,
)
from draftgauge.drafters.reuse.config import INJECTIONS, reuse_config
from draftgauge.drafters.reuse.live import new_drafter
from draftgauge.drafters.reuse.persistence import DRAFTER, is_drafter, load_drafter, read_description
from draftgauge.models.folder import reference_path
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.taps import attach_taps, batch_features
from draftgauge.policies.fixed import FixedLength
from reuse_nets import DESIGNS, saved_drafter, unroll
from tiny import save_tiny, tiny_model, tokens
from tiny_families import tiny_family

ROWS: list[dict[str, Any]] = [  # of the paper's step-wise table
    {"design": "hidden"},
    *({"design": "kv", "injection": injection} for injection in INJECTIONS),
    *({"design": "kv", "layers": layers} for layers in (2, 3, 4)),
    *({"design": design} for design in ("hybrid", "cross", "control")),
]


def bundled() -> PreTrainedConfig:
    return AutoConfig.from_pretrained(str(reference_path()))


def eight_billion() -> PreTrainedConfig:
    shape = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    return Qwen3Config(hidden_size=4096, intermediate_size=12288, vocab_size=151936, **shape)


@pytest.mark.parametrize("target", [bundled, eight_billion])
@pytest.mark.parametrize("draft_vocabulary", [0, 2048])
def test_every_row_of_the_paper_within_two_percent(target, draft_vocabulary: int) -> None:
    config = target()
    matched = matched_widths(config, [row | {"draft_vocabulary": draft_vocabulary} for row in ROWS])
    counts = [count_parameters(found) for found in matched]
    assert max(counts) <= 1.02 * min(counts)
    wanted = [(row["design"], row.get("layers", 1)) for row in ROWS]
    assert [(found.design, found.layers) for found in matched] == wanted
    hybrid = matched[7]
    assert hybrid.intermediate_size == config.intermediate_size  # the largest of one layer keeps the target's width


@pytest.mark.parametrize("design", DESIGNS)
def test_the_count_is_that_of_the_network(design: str) -> None:
    target = tiny_model(num_hidden_layers=4)
    for kept in (None, torch.tensor([1, 5, 9])):
        config = reuse_config(target.config, design, draft_vocabulary=0 if kept is None else 3)
        net = new_net(config, target, 0, kept)
        assert count_parameters(config) == sum(weight.numel() for weight in net.parameters())


def test_designs_that_cannot_be_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="without its SwiGLU"):
        matched_widths(eight_billion(), [{"design": "control"}, {"design": "kv", "layers": 24}])
    monkeypatch.setattr(building, "TOLERANCE", 1e-5)
    with pytest.raises(ModelError, match="cannot be brought within"):
        matched_widths(tiny_model().config, ROWS[:5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"design": "both"}, "unknown design 'both'"),
        ({"design": "kv", "injection": "mix"}, "unknown injection 'mix'"),
        ({"design": "hybrid", "layers": 2}, "one layer, not 2"),
        ({"design": "kv", "layers": 0}, "at least one layer"),
        ({"design": "kv", "intermediate_size": 0}, "intermediate size"),
        ({"design": "kv", "draft_vocabulary": 97}, "draft vocabulary of 97"),
        ({"design": "kv", "taps": (0, 9)}, "no layer 9"),
    ],
)
def test_what_cannot_be_configured(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        reuse_config(tiny_model().config, **options)


def test_seeds() -> None:
    target = tiny_model(num_hidden_layers=4)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, same, other = (new_net(reuse_config(target.config, "hybrid"), target, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    hidden = dict(new_net(reuse_config(target.config, "hidden"), target, 1).named_parameters())
    changed = set()
    for (name, weight), again, different in zip(
        one.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, again)
        assert weight.dtype == torch.float32
        if not torch.equal(weight, different):
            changed.add(name)
        if name in hidden:
            # Designs differ in what they reuse, not in what they start from.
            assert torch.equal(weight, hidden[name]), name
    assert changed == {name for name, weight in one.named_parameters() if weight.ndim == 2} - {"head.weight"}
    assert torch.equal(one.head.weight, target.lm_head.weight)


@pytest.mark.parametrize("design", ["hybrid", "cross"])
def test_warm_start(design: str) -> None:
    target = tiny_model(num_hidden_layers=4)
    trained = new_net(reuse_config(target.config, "hidden"), target, 1)
    with torch.no_grad():
        for weight in trained.parameters():
            weight += 0.5
    net = new_net(reuse_config(target.config, design), target, 2)
    fresh = {name: weight.clone() for name, weight in net.named_parameters()}
    copied = warm_start(net, trained)
    theirs = dict(trained.named_parameters())
    for name, weight in net.named_parameters():
        assert torch.equal(weight, theirs[name] if name in copied else fresh[name]), name
    missing = set(theirs) - set(copied)
    assert missing == (set() if design == "hybrid" else {name for name in theirs if "self_attention" in name})
    shared = {"fuse.weight", "head.weight", "norm.weight", "blocks.0.mlp.down.weight", "blocks.0.token_norm.weight"}
    assert shared <= set(copied)


def test_a_warm_start_of_another_kind_changes_nothing() -> None:
    target = tiny_model(num_hidden_layers=4)
    config = reuse_config(target.config, "hybrid", target_fingerprint="this")
    hidden = reuse_config(target.config, "hidden", target_fingerprint="this")
    net = new_net(config, target, 0)
    fresh, small = [weight.clone() for weight in net.parameters()], replace(hidden, draft_vocabulary=2)
    cases = [
        (replace(hidden, intermediate_size=8), "intermediate_size of the hidden drafter is 8, and 128"),
        (replace(hidden, target_fingerprint="other"), "another target"),
        (replace(hidden, norm_output=False), "norm_output of the hidden"),
        (replace(hidden, hidden_layers=(0, 1, 2)), r"hidden_layers of the hidden drafter is \(0, 1, 2\)"),
        (reuse_config(target.config, "kv"), "not a hybrid one from a kv one"),
        (small, "draft_vocabulary of the hidden drafter is 2"),
    ]
    for other, message in cases:
        with pytest.raises(ModelError, match=message):
            warm_start(net, new_net(other, target, 0, torch.tensor([1, 2]) if other is small else None))
    with pytest.raises(ModelError, match="different draft vocabularies"):
        warm_start(
            new_net(replace(config, draft_vocabulary=2), target, 0, torch.tensor([1, 3])),
            new_net(small, target, 0, torch.tensor([1, 2])),
        )
    for weight, before in zip(net.parameters(), fresh, strict=True):
        assert torch.equal(weight, before)


@pytest.mark.parametrize(
    ("kept", "message"),
    [(None, "say which"), ([3, 2], "ascending"), ([2, 96], "of the target's 96"), ([1], "must be 2")],
)
def test_draft_tokens_that_do_not_fit(kept: list[int] | None, message: str) -> None:
    target = tiny_model(num_hidden_layers=4)
    config = reuse_config(target.config, "control", draft_vocabulary=2)
    with pytest.raises(ModelError, match=message):
        new_net(config, target, 0, None if kept is None else torch.tensor(kept))
    with pytest.raises(ModelError, match="no draft vocabulary"):
        new_net(reuse_config(target.config, "control"), target, 0, torch.tensor([1, 2]))
    with pytest.raises(ModelError, match="for a target of 96 tokens"):
        new_net(config, tiny_model(vocab_size=95), 0)


def test_frequent_tokens() -> None:
    assert frequent_tokens(torch.tensor([3, 0, 7, 3, 9, 3]), 4).tolist() == [0, 2, 3, 4]


KEPT = torch.tensor([1, 4, 7, 30])


@pytest.mark.parametrize("draft_tokens", [None, KEPT])
@pytest.mark.parametrize("design", ["kv", "hybrid"])
def test_there_and_back(tmp_path: Path, design: str, draft_tokens: torch.Tensor | None) -> None:
    target = wrap(tiny_model(num_hidden_layers=4))
    net = saved_drafter(tmp_path / "a" / "drafter", target.module, design, draft_tokens)
    loaded = load_drafter(tmp_path / "a" / "drafter", target)
    assert loaded.config == net.config
    assert read_description(tmp_path / "a" / "drafter")["extra"] == {"request": {"depths": 4}}
    assert loaded.embedding.data_ptr() == target.module.get_input_embeddings().weight.data_ptr()
    assert not any(weight.requires_grad for weight in loaded.parameters())
    text = tokens(12)[None]
    seen = batch_features(target.module, text, net.config.tap_plan)
    for ours, theirs in zip(unroll(net, text, seen, 3), unroll(loaded, text, seen, 3), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
    assert (loaded.d2t is None) == (draft_tokens is None)


def test_a_compressed_target_is_the_same_target(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", num_hidden_layers=4)
    net = saved_drafter(tmp_path / "drafter", load_model(folder).module)
    half = load_model(folder, compression="bf16")
    loaded = load_drafter(tmp_path / "drafter", half)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    exact = load_drafter(tmp_path / "drafter", half, torch.float32)
    assert torch.equal(exact.fuse.weight, net.fuse.weight)


def test_a_target_of_another_network_is_refused(tmp_path: Path) -> None:
    saved_drafter(tmp_path, tiny_model(num_hidden_layers=4))
    with pytest.raises(ModelError, match="another target, some/target: its vocabulary is 96, this one's 80"):
        load_drafter(tmp_path, wrap(tiny_model(num_hidden_layers=4, vocab_size=80)))


def test_weights_of_another_network_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model(num_hidden_layers=4)
    weights = dict(saved_drafter(tmp_path, target).state_dict())
    monkeypatch.setattr("draftgauge.drafters.reuse.persistence.read_weights", lambda _: weights)
    del weights["norm.weight"]
    with pytest.raises(ModelError, match="weight among them: another version of draftgauge trained it"):
        load_drafter(tmp_path, wrap(target))


def test_a_target_without_modules_is_refused(tmp_path: Path) -> None:
    """As the engine of GGUF files has it."""
    target = wrap(tiny_model(num_hidden_layers=4))
    saved_drafter(tmp_path, target.module)
    target.module = None
    with pytest.raises(ModelError, match="a GGUF or OpenVINO target hides it"):
        load_drafter(tmp_path, target)


def test_folders_that_hold_no_whole_drafter(tmp_path: Path) -> None:
    target = wrap(tiny_model(num_hidden_layers=4))
    assert not is_drafter(tmp_path)
    with pytest.raises(ModelError, match="holds no trained drafter"):
        load_drafter(tmp_path, target)
    saved_drafter(tmp_path, target.module)
    assert is_drafter(tmp_path)
    description = DRAFTER.read(tmp_path / "drafter.json")

    def write(changed: object) -> None:
        if isinstance(changed, str):
            (tmp_path / "drafter.json").write_text(changed)
        else:
            DRAFTER.write(tmp_path / "drafter.json", changed)

    for changed, message in [
        ("{", "not JSON"),
        ("[]", "is not a trained drafter"),
        ('{"format": "draftgauge-reuse-drafter", "version": 99}', "of version 99"),
        (description | {"weights_sha256": "0"}, "not the one that"),
        (description | {"config": description["config"] | {"design": "what"}}, "unknown design"),
        (description | {"config": description["config"] | {"wide": 1}}, "unknown key 'wide'"),
    ]:
        write(changed)
        with pytest.raises(ModelError, match=message):
            load_drafter(tmp_path, target)
    write(description)
    load_drafter(tmp_path, target)
    (tmp_path / "drafter.safetensors").unlink()
    with pytest.raises(ModelError, match="is missing"):
        load_drafter(tmp_path, target)


HIDDEN = "deepseek_v3 llama4_text gpt2 falcon nemotron mimo_v2_flash qwen2_5_vl"
KEYS = "gpt_oss glm4 glm4_moe cohere2 starcoder2 stablelm gemma4_text phi3 smollm3 ernie4_5"


@pytest.mark.parametrize(
    ("kind", "design"), [*((kind, "hidden") for kind in HIDDEN.split()), *((kind, "hybrid") for kind in KEYS.split())]
)
def test_a_drafter_is_taught_and_drafts_losslessly(kind: str, design: str) -> None:
    module, text = tiny_family(kind), tokens(20, seed=4)
    net = new_net(reuse_config(module.config, design, intermediate_size=96), module, seed=3)
    start_norm(net, module)
    assert net.norm.weight.isfinite().all()
    logits = unroll(net, text[None], batch_features(module, text[None], net.config.tap_plan), depths=2)
    sum(depth.square().mean() for depth in logits).backward()
    assert all(weight.grad.isfinite().all() for weight in net.parameters() if weight.grad is not None)
    target, settings = wrap(module), DecodingSettings(8)
    drafter = new_drafter(net.eval(), target, attach_taps(target, net.config.tap_plan), Drafting(settings.end_tokens))
    output = speculative_decode(target, drafter, FixedLength(3), text.tolist(), settings)
    assert output.tokens == plain_decode(target, text.tolist(), settings).tokens
    assert torch.stack(logits).isfinite().all()
