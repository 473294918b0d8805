"""What a drafter is, by its name, configuration and files: applied, or refused in words, and never ignored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.test_checkpoints import FIXTURES, TARGET, build, drafter_of, target_module
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.base import choose_drafter, drafter_kind, drafter_kinds, register_drafter
from draftgauge.drafters.dense import DraftsEverywhere, DraftsRefused
from draftgauge.drafters.formats.building import read_layout
from draftgauge.drafters.formats.files import read_config
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.models.loading import load_model, wrap
from tiny import edit, save_tiny, tiny_model, tokens


def layout_of(fixture: str, drop: tuple[str, ...] = (), **changes: Any) -> Any:
    config = read_config(FIXTURES / fixture)
    nested = config.get("dflash_config", {}) | changes.pop("nested", {})
    kept = {name: value for name, value in config.items() if name not in drop}
    return read_layout(kept | ({"dflash_config": nested} if nested else {}) | changes, "it")


def proposing(count: Any) -> dict[str, Any]:
    return {"speculators_config": {"proposal_methods": [{"speculative_tokens": count}]}}


@pytest.mark.parametrize(
    ("fixture", "changes", "anchor"),
    [
        ("dflash-flat", {}, False),
        ("dflash-flat", {"nested": {"query_zero_predicts_next": True}}, True),
        ("dflash-flat", {"shift_label": True}, True),
        ("dflash-flat", {"nested": {"projector_type": "dspark"}}, True),
        ("dspark-specforge", {}, True),
        ("dspark-specforge", {"sample_from_anchor": False}, False),
        ("dspark-speculators", {"drop": ("sample_from_anchor",)}, True),
        ("dspark-speculators", {"drop": ("sample_from_anchor",), **proposing(3)}, False),
        ("dflash-speculators", {"drop": ("sample_from_anchor",), **proposing(4)}, True),
        ("dflash-speculators", proposing(4), "speculative_tokens 4 contradicts block_size 4"),
        ("dflash-speculators", proposing("4"), "proposal_methods must give"),
        ("dflash-flat", {"sample_from_anchor": True, "shift_label": False}, "contradict each other"),
        ("dflash-flat", {"nested": {"block_size": 8}}, "block_size is given twice"),
        ("dflash2-flat", {}, False),
        ("dflash2-speculators", {"sample_from_anchor": True, **proposing(4)}, True),
        ("dflash2-speculators", proposing(4), "speculative_tokens 4 contradicts block_size 4"),
        ("peagle-flat", {"sample_from_anchor": False}, "whose first place predicts"),
        ("peagle-speculators", {"block_size": 3}, "speculative_tokens 4 contradicts block_size 3"),
        ("peagle-flat", {"pard_token": 3}, "ptd_token_id and pard_token contradict"),
        ("dflash2-flat", {"nested": {"conv_group_size": 5}}, "conv_group_size 5 does not divide hidden_size 16"),
        ("dflash2-flat", {"nested": {"selector_top_k": 49}}, "selector takes 2 to 48 tokens .selector_top_k 49"),
        ("dflash2-flat", {"nested": {"conv_dilation": 2, "beam_width": 3}}, "beam_width, conv_dilation are not run"),
        ("dflash-flat", {"nested": {"conv_kernel_size": 2}}, "drafters with conv_kernel_size are not run"),
    ],
)
def test_one_resolver_says_which_place_predicts_first(fixture: str, changes: dict[str, Any], anchor: Any) -> None:
    if isinstance(anchor, bool):
        assert layout_of(fixture, **changes).from_anchor is anchor
    else:
        with pytest.raises(ModelError, match=anchor):
            layout_of(fixture, **changes)


@pytest.mark.parametrize("fixture", ["dflash-flat", "eagle3-sglang"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partial_rotary_factor": 0.5}, "drafters with partial_rotary_factor are not run"),
        ({"rope_is_neox_style": False, "rope_interleaved": True}, "rope_interleaved, rope_is_neox_style"),
        ({"attention_multiplier": 2.0, "projector_type": "domino"}, "attention_multiplier, projector_type"),
        ({"layer_types": None, "sliding_window": 4, "use_sliding_window": True}, "sliding_window needs layer_types"),
        ({"rope_theta": 7.0}, "rotary embedding's theta is given as 7.0 and 5000.0"),
        ({"rope_parameters": {"rope_theta": True}}, "theta of the rotary embedding must be a number"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 2.0}}, "rope_type. is missing"),
    ],
)
def test_settings_that_change_results_are_named(fixture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        layout_of(fixture, **changes)


@pytest.mark.parametrize(
    "change", [{"layer_types": [{}]}, {"architectures": 3}, {"text_config": []}, {"model_type": 1}]
)
def test_types_of_a_configuration_are_checked_of_drafter_and_target(tmp_path: Path, change: dict[str, Any]) -> None:
    shutil.copytree(FIXTURES / "eagle3-sglang", tmp_path / "drafter")
    for folder in (tmp_path / "drafter", save_tiny(tmp_path / "target", **TARGET)):
        edit(folder, **change)
        with pytest.raises(ModelError, match=f"{next(iter(change))} must be (a list of names|an object|a name)"):
            read_config(folder) if folder.name == "drafter" else load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: {"fc.weight": held["fc.weight"].to(torch.int8)}, "fc.weight holds torch.int8 numbers"),
        (lambda held: {"d2t": held["d2t"].float()}, "d2t holds torch.float32"),
        (lambda held: {"norm.weight": held["norm.weight"] / 0}, "norm.weight holds numbers that are NaN or infinite"),
        (lambda held: {"model.norm.weight": held["norm.weight"] + 0}, "norm.weight is there twice"),
        (lambda held: {"config": {"attention_bias": True}}, "lacks layers.0.self_attn.k_proj.bias"),
        (lambda held: {"index": {name: "model.safetensors" for name in held if name != "d2t"}}, "disagree on d2t"),
        (lambda held: {"mask": True}, "mask_embedding.pt is pickled and not read"),
    ],
)
def test_weights_that_are_not_what_is_announced_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    folder = Path(shutil.copytree(FIXTURES / "eagle3-sglang", tmp_path / "drafter"))
    held = load_file(folder / "model.safetensors")
    changed = change(held)
    edit(folder, **changed.pop("config", {}))
    if index := changed.pop("index", None):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    if changed.pop("mask", False):
        torch.save(torch.zeros(16), folder / "mask_embedding.pt")
    save_file(held | changed, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        build(folder, wrap(target_module()))


@torch.no_grad()
def test_a_block_drafter_without_embeddings_reads_the_targets_layer(tmp_path: Path) -> None:
    gemma = {**TARGET, "layer_types": ["full_attention"] * 6, "query_pre_attn_scalar": 16}
    module = tiny_model("gemma3_text", **gemma)
    net = build(FIXTURES / "dflash-flat", wrap(module))
    assert torch.equal(net._embed(torch.arange(9)), module.get_input_embeddings()(torch.arange(9)))
    assert not torch.equal(net._embed(torch.arange(9)), module.get_input_embeddings().weight[:9])


@torch.no_grad()
@pytest.mark.parametrize("fixture", ["eagle3-sglang", "dflash-flat", "dspark-speculators"])
def test_heads_that_overflow_are_told(fixture: str) -> None:
    """Finite weights; of DSpark the confidence head alone."""
    drafter = drafter_of(FIXTURES / fixture, wrap(target_module()))
    drafter.target.forward(tokens(9, vocabulary=48))
    if fixture.startswith("dspark"):
        drafter.net.weights["confidence_head.proj.weight"].fill_(float("nan"))
    else:
        drafter.net._head = torch.full_like(drafter.net._head, float("nan"))  # not the target's own
    drafter.prefill(tokens(10, vocabulary=48).tolist())
    with pytest.raises(ModelError, match="NaN or infinite"):
        drafter.propose(3, lambda signal: True)


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(AssertionError, match="registered twice"):
        register_drafter(drafter_kind("prompt_lookup"))


def test_what_a_class_can_do_decides_how_it_is_recorded() -> None:
    assert set(drafter_kinds()) == {
        "checkpoint",
        "gemma4_assistant",
        "language_model",
        "mtp",
        "pard",
        "prompt_lookup",
        "reuse",
    }
    dense = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsEverywhere)}
    sampled = {name for name, kind in drafter_kinds().items() if issubclass(kind.drafter_type, DraftsRefused)}
    assert dense == set(drafter_kinds()) - {"prompt_lookup"}
    assert sampled == {"language_model"}
    assert drafter_kind("language_model").drafter_type is LanguageModelDrafter


def test_a_choice_names_a_kind_or_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = "draftgauge.drafters.formats.files"
    monkeypatch.setattr(f"{files}.cached_file", lambda *_, **__: pytest.fail("asked the hub for a bundled model"))
    assert choose_drafter("prompt_lookup") == choose_drafter("lookup") == ("prompt_lookup", None)
    for bundled in (None, "reference", "language_model"):
        assert choose_drafter(bundled) == ("language_model", "reference/draft")
    assert choose_drafter("reference/draft-small") == ("language_model", "reference/draft-small")
    model = save_tiny(tmp_path / "model")
    assert choose_drafter(model) == ("language_model", model)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").touch()
    for drafter, message in [
        ("reuse", "drafter reuse needs the folder of a trained drafter"),
        ("oracle", "unknown drafter 'oracle': choose lookup, or give an EAGLE-3 .* or a draft model .* or mtp"),
        (tmp_path / "run", "is a recorded run"),
        (tmp_path / "none", "there is no model folder"),
    ]:
        with pytest.raises(DraftgaugeError, match=message):
            choose_drafter(drafter)
    with pytest.raises(DraftgaugeError, match="unknown drafter 'oracle'"):
        drafter_kind("oracle")
