"""Drafters as they are published, in every layout: logits of speculators' forward, drafts from all positions at once,
and output as without them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from draftgauge.api.export import export
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.drafters.anchors import DEEPEST
from draftgauge.drafters.base import choose_drafter
from draftgauge.drafters.dense import DraftsEverywhere, draft_everywhere, draft_position_by_position
from draftgauge.drafters.formats.building import build_net, read_layout
from draftgauge.drafters.formats.decoder import DrafterNet
from draftgauge.drafters.formats.dflash import DFlashLayout
from draftgauge.drafters.formats.files import checkpoint_fingerprint, read_config
from draftgauge.drafters.formats.live import CheckpointDrafter
from draftgauge.drafters.reuse.blockwise import block_states
from draftgauge.integrations.transformers import speculative
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, attach_taps, batch_features
from lossless import MakeDrafter, assert_greedy_is_plain, assert_sampling_keeps_the_law
from reuse_nets import saved_drafter
from tiny import edit, save_tiny, tiny_model, tokens

FIXTURES = Path(__file__).parent / "checkpoints"
LAYOUTS = sorted(path.name for path in FIXTURES.iterdir())
EXPORTED = "dflash-draftgauge"  # written by `draftgauge export`
TARGET = {"hidden_size": 16, "num_hidden_layers": 6, "vocab_size": 48}


@functools.cache
def target_module(**changes: Any) -> PreTrainedModel:
    return tiny_model("qwen3", **TARGET | changes)


def build(folder: Path, target: CachedModel) -> DrafterNet:
    return build_net(folder, read_layout(read_config(folder), str(folder)), target)


def drafter_of(folder: Path, target: CachedModel, **options: Any) -> CheckpointDrafter:
    net = build(folder, target)
    return CheckpointDrafter(net, target, attach_taps(target, TapPlan(net.layout.taps)), **options)


def maker(folder: Path, target: CachedModel) -> MakeDrafter:
    net = build(folder, target)
    taps = attach_taps(target, TapPlan(net.layout.taps))
    return lambda how: CheckpointDrafter(net, target, taps, *how)


def check_against_speculators(folder: Path) -> None:
    """Compare the logits of a checkpoint, and its chances of acceptance, with those stored beside it."""
    expected = load_file(folder / "expected.safetensors")
    module = tiny_model("qwen3", **TARGET)
    for name, module_part in (
        ("embed_tokens.weight", "get_input_embeddings"),
        ("lm_head.weight", "get_output_embeddings"),
    ):
        if name in expected:  # what the checkpoint borrows of its target
            getattr(module, module_part)().weight.data.copy_(expected[name])
    net = build(folder, wrap(module))
    assert net.layout.taps == (1, 3, 4)
    text, logits = expected["tokens"], expected["logits"]
    cache = net.begin()
    if isinstance(net.layout, DFlashLayout):  # tokens of the text; the token after anchor ``a`` is number ``a + 1``
        begin = net.take_in(cache, text[1:], expected["hidden"][:-1])
        first, start = 2, 0 if net.layout.from_anchor else 1
        blocks = len(logits)
        branches = net.branches(cache, first, begin[first : first + blocks])
        for place in range(net.layout.longest):
            torch.testing.assert_close(branches.logits, logits[:, start + place], rtol=1e-4, atol=1e-4)
            if "confidence" in expected:
                wanted = expected["confidence"][:, start + place]
                torch.testing.assert_close(branches.confidence, wanted, rtol=1e-4, atol=1e-4)
            if place + 1 < net.layout.longest:
                branches.advance(text[first + 2 + place :][:blocks])
        return
    begin = net.take_in(cache, text, expected["hidden"])  # tokens after each anchor
    anchors = len(text) - len(logits)
    branches = net.branches(cache, 0, begin[:anchors])
    for depth, wanted in enumerate(logits):
        torch.testing.assert_close(branches.logits, wanted[:anchors], rtol=1e-4, atol=1e-4)
        if depth + 1 < (net.layout.longest or DEEPEST):
            branches.advance(text[depth + 1 :][:anchors])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_speculators(layout: str) -> None:
    check_against_speculators(FIXTURES / layout)


def test_logits_are_those_of_speculators_on_other_weights(tmp_path: Path) -> None:
    run_speculators(str(tmp_path), "7")
    assert sorted(path.name for path in tmp_path.iterdir()) == [name for name in LAYOUTS if name != EXPORTED]
    for layout in tmp_path.iterdir():
        check_against_speculators(layout)


def run_speculators(*arguments: str) -> None:
    python = os.environ.get("DRAFTGAUGE_SPECULATORS_PYTHON")
    if python is None:
        pytest.skip("needs speculators, in an environment that `make test-speculators` sets up")
    subprocess.run([python, str(Path(__file__).parents[1] / "speculators_reference.py"), *arguments], check=True)


@pytest.mark.parametrize("drafted", [0, 24])
def test_speculators_computes_the_same_from_what_is_exported(tmp_path: Path, drafted: int) -> None:
    """It takes the embedding, and without a draft vocabulary the head, of the target that the checkpoint names."""
    target = save_tiny(tmp_path / "target", **TARGET)
    block = {"taps": (4, 1, 3), "block": 5, "layers": 2, "intermediate_size": 24, "mask_token": 47}
    block |= {"target_source": str(target), "draft_tokens": torch.arange(0, 2 * drafted, 2) if drafted else None}
    net = saved_drafter(tmp_path / "drafter", tiny_model("qwen3", **TARGET), **block)
    export(tmp_path / "drafter", out=tmp_path / "out")
    ours, model = build(tmp_path / "out", wrap(tiny_model("qwen3", **TARGET))), tiny_model("qwen3", **TARGET)
    text = tokens(18, vocabulary=48)
    features = batch_features(model, text[None], net.config.tap_plan)
    logits = net.logits(block_states(net, text[None], features, torch.arange(2, 12)[None]))[0]
    cache = ours.begin()
    hidden = batch_features(model, text[None], TapPlan(ours.layout.taps)).hidden[0]
    branches = ours.branches(cache, 2, ours.take_in(cache, text[1:], hidden[:-1])[2:12])
    for place in range(ours.layout.longest):
        torch.testing.assert_close(branches.logits, logits[:, place], rtol=1e-4, atol=1e-4)
        if place + 1 < ours.layout.longest:
            branches.advance(text[:10])
    run_speculators("--exported", str(tmp_path / "out"))
    check_against_speculators(tmp_path / "out")


@pytest.mark.parametrize(
    ("layout", "engine"),
    [*((layout, "lean") for layout in LAYOUTS), *itertools.product(LAYOUTS[::4], ("static", "modules"))],
)
def test_greedy_output_is_the_plain_one_with_every_kind_of_policy(layout: str, engine: str) -> None:
    target = wrap(target_module(), engine)
    assert_greedy_is_plain(target, maker(FIXTURES / layout, target), tokens(6, vocabulary=48).tolist() * 2, 10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_from_all_positions_are_those_of_each(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.drafters.formats.decoder.AT_ONCE", 3)  # a long prompt in pieces
    target = wrap(target_module(max_position_embeddings=32))
    end_tokens = frozenset({7, 11})
    drafter = drafter_of(FIXTURES / layout, target, end_tokens=end_tokens)
    assert isinstance(drafter, DraftsEverywhere)
    for prompt in (tokens(9, vocabulary=48).tolist(), [12]):  # without near-ties, which rounding would decide
        output = plain_decode(target, prompt, DecodingSettings(32 - len(prompt))).tokens
        together = draft_everywhere(drafter, prompt, output, 6, 48)
        singly = draft_position_by_position(drafter, prompt, output, 6)
        assert (together.tokens >= 0).any()
        assert together.tokens.tolist() == singly.tokens.tolist()
        torch.testing.assert_close(
            torch.tensor(together.shown), torch.tensor(singly.shown), rtol=1e-4, atol=1e-4, equal_nan=True
        )


@torch.no_grad()
@pytest.mark.parametrize(
    "layout", ["eagle3-sglang", "dspark-speculators", "dflash-flat", "dflash2-flat", "peagle-flat"]
)
def test_sampled_output_has_the_targets_law(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    target = wrap(module := target_module())
    assert_sampling_keeps_the_law(monkeypatch, target, module, maker(FIXTURES / layout, target), [1, 0, 1])


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "eagle3-sglang", tmp_path / "drafter"))


def rewrite(folder: Path, drop: tuple[str, ...] = (), **added: torch.Tensor) -> None:
    tensors = {name: t for name, t in load_file(folder / "model.safetensors").items() if name not in drop}
    save_file(tensors | added, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        ({}, {"num_hidden_layers": 4}, "made for a target of at least 5 layers and width 16, this one has 4 and 16"),
        ({}, {"hidden_size": 32}, "made for a target of at least 5 layers and width 16, this one has 6 and 32"),
        ({"num_target_layers": 36}, {}, "made for a target of 36 layers and width 16, this one has 6 and 16"),
        ({}, {"vocab_size": 52}, "made for a target of 48 tokens, this one has 52"),
        ({}, {"num_hidden_layers": 5}, "reads the target's last layer"),
    ],
)
def test_another_target_is_refused_in_words(copied: Path, changes, target, message) -> None:
    edit(copied, **changes)
    with pytest.raises(ModelError, match=message):
        build(copied, wrap(target_module(**target)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "mtp"}, "format that is not read here.*These are: EAGLE-3"),
        ({"architectures": ["EagleForCausalLM"], "auto_map": {}}, "own Python code .auto_map. is not run"),
        ({"architectures": ["DFlash2BeamDraftModel"]}, "format that is not read here"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"num_attention_heads": "4"}, "num_attention_heads must be a whole number"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "change with the text"),
        ({"rope_parameters": {"rope_type": "unheard"}}, "cannot load"),
        ({"fc_norm": "yes"}, "fc_norm must be true or false"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 3, 5]}, "token embedding, which is not tapped"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2, 5]}, "each once"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 5]}, "made for a target of at least 5 layers and width 12"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5]}, "do not share evenly"),
        ({"draft_vocab_size": 23}, "d2t is .24., and by its config.json .23."),
        ({"norm_before_fc": True}, "lacks input_norm.weight"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 4}, "sliding-window"),
        ({"num_key_value_heads": 3}, "4 attention heads do not share 3 key and value heads evenly"),
    ],
)
def test_settings_that_cannot_be_are_refused(copied: Path, changes, message) -> None:
    edit(copied, **changes)
    with pytest.raises(ModelError, match=message):
        build(copied, wrap(target_module()))


WINDOWS = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}


@torch.no_grad()
@pytest.mark.parametrize(
    ("changes", "causal"),
    [({}, False), (WINDOWS, True), (WINDOWS | {"is_causal": False}, False), ({"is_causal": True}, True)],
)
def test_places_of_a_causal_block_do_not_see_those_behind_them(tmp_path: Path, changes, causal) -> None:
    """As vLLM and SGLang read flat configurations: layers with a window are causal unless it is said otherwise."""
    shutil.copytree(FIXTURES / "dflash-flat", tmp_path, dirs_exist_ok=True)
    target, text, hidden = wrap(target_module()), tokens(9, vocabulary=48), torch.randn(8, 3, 16)
    first = []
    for block in (2, 4):
        edit(tmp_path, block_size=block, **changes)
        net = build(tmp_path, target)
        cache = net.begin()
        first.append(net.branches(cache, 4, net.take_in(cache, text[1:], hidden)[4:]).logits)
    assert torch.allclose(*first, atol=1e-5) is causal


@torch.no_grad()
def test_scales_and_soft_caps_of_a_flat_configuration_are_applied(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "dflash-flat", tmp_path, dirs_exist_ok=True)
    module, text, hidden = tiny_model("qwen3", **TARGET), tokens(9, vocabulary=48), torch.randn(8, 3, 16)

    def logits(**settings: float) -> torch.Tensor:
        nested = read_config(FIXTURES / "dflash-flat")["dflash_config"]
        edit(tmp_path, dflash_config=nested | settings)
        net = build(tmp_path, wrap(module))
        cache = net.begin()
        return net.branches(cache, 4, net.take_in(cache, text[1:], hidden)[4:]).logits

    plain, scaled = logits(), logits(input_embedding_scale=4.0)
    torch.testing.assert_close(logits(output_multiplier=0.25), 0.25 * plain)
    torch.testing.assert_close(logits(final_logit_softcapping=2), 2 * torch.tanh(plain / 2))
    with pytest.raises(ModelError, match="output_multiplier must be a number of at least 0, not 'x'"):
        logits(output_multiplier="x")
    with pytest.raises(ModelError, match="block drafters with use_swa are not run here"):
        logits(use_swa=True)
    module.get_input_embeddings().weight.mul_(4)
    torch.testing.assert_close(logits(), scaled)


def test_weights_of_no_known_layout_are_named(copied: Path) -> None:
    rewrite(copied, drop=("midlayer.hidden_norm.weight", "norm.weight"), extra=torch.zeros(1))
    with pytest.raises(ModelError, match=r"lacks layers.0.hidden_norm.weight, norm.weight and has extra beside"):
        build(copied, wrap(target_module()))


def test_an_exchanged_vocabulary_map_is_found(copied: Path) -> None:
    offsets = load_file(copied / "model.safetensors")["d2t"]
    rewrite(copied, d2t=offsets + torch.arange(len(offsets)))  # ids in place of offsets
    with pytest.raises(ModelError, match="must hold offsets"):
        build(copied, wrap(target_module()))
    rewrite(copied, d2t=torch.zeros_like(offsets))
    with pytest.raises(ModelError, match="d2t and t2d name different tokens"):
        build(copied, wrap(target_module()))


def test_half_a_download_and_pickled_weights_are_refused(copied: Path) -> None:
    target, weights = wrap(target_module()), copied / "model.safetensors"
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part-2.safetensors"}}))
    with pytest.raises(ModelError, match=r"lacks part-2.safetensors, which model.safetensors.index.json names"):
        build(copied, target)
    (copied / "model.safetensors.index.json").unlink()
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="damaged or half downloaded"):
        build(copied, target)
    weights.write_bytes(whole)
    torch.save(load_file(weights), copied / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelError, match=r"pickled weights .*--allow-pickle"):
        build(copied, target)
    layout = read_layout(read_config(copied), "it")
    assert build_net(copied, layout, target, allow_pickle=True).layout.taps == (1, 3, 4)
    before = checkpoint_fingerprint(copied)
    edit(copied, norm_eps=1)
    assert checkpoint_fingerprint(copied) != before
    decode = speculative(copied, "fixed:2", allow_pickle=True)
    target.module.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=6, custom_generate=decode)
    assert decode.generations[0].steps[0].drafted == 2
    torch.save({"a": Path("code")}, copied / "pytorch_model.bin")  # more than tensors is not unpickled
    with pytest.raises(ModelError, match="damaged"):
        build_net(copied, layout, target, allow_pickle=True)
    (copied / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"lacks model\.safetensors: the download is not complete"):
        build(copied, target)


def test_a_checkpoint_says_itself_what_it_is(copied: Path) -> None:
    for layout in LAYOUTS:
        assert choose_drafter(FIXTURES / layout) == ("checkpoint", FIXTURES / layout)
    (copied / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        choose_drafter(copied)
    with pytest.raises(DraftgaugeError, match=r"unknown drafter 'checkpont'.*an EAGLE-3 or DFlash checkpoint"):
        choose_drafter("checkpont")
    with pytest.raises(DraftgaugeError, match="drafter checkpoint needs"):
        choose_drafter("checkpoint")
