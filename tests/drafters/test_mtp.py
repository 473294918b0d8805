"""MTP heads out of a target's own folder: logits of transformers, drafts from all positions at once, and output as
without them, for every family."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel
from transformers.models.longcat_flash import modeling_longcat_flash as longcat
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5

from command_line import refusal
from draftgauge.core.errors import ModelError
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.drafters import anchors
from draftgauge.drafters.base import Drafting, LoadOptions, choose_drafter
from draftgauge.drafters.mtp.live import MtpDrafter, MtpSource
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import load_model
from draftgauge.models.taps import TapPlan, attach_taps, batch_features
from draftgauge.policies.fixed import FixedLength
from lossless import assert_greedy_is_plain, assert_replay_is_live, assert_sampling_keeps_the_law
from mtp_heads import save_with_heads
from tiny import tiny_model, tiny_tokenizer, tokens

VOCABULARY = 8
# Families, and how many heads; those of transformers' own MTP code first.
OF_TRANSFORMERS = ("deepseek_v3", "glm4_moe", "sarvam_moe", "deepseek_v3:3", "sarvam_mla", "mellum", "bailing_hybrid")
OTHERS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen2:2", "mimo_v2_flash:3", "step3p7:2", "nemotron_h")
OTHERS += ("ernie4_5", "hy_v3", "longcat_flash")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(kind: str) -> tuple[Path, CachedModel]:
        name, _, heads = kind.partition(":")
        folder = tmp_path_factory.mktemp(name)
        save_with_heads(folder, name, int(heads or 1))
        return folder, load_model(folder, "fp32", "cpu")

    return make


def drafter_of(target: CachedModel, source: Path | None = None, **how: Any) -> MtpDrafter:
    loaded = MtpSource.load(source, target, LoadOptions())
    how = {"end_tokens": frozenset()} | how
    return loaded.drafter(target, attach_taps(target, loaded.tap_plan), Drafting(**how))


def our_logits(target: CachedModel, text: Tensor, drafted: Tensor) -> Tensor:
    """``[depths, V]`` drafting these tokens after a text."""
    net = drafter_of(target).net
    hidden = batch_features(target.module, text[None], TapPlan(net.layout.taps)).hidden[0]
    cache = net.begin()
    begin = net.take_in(cache, text[1:], hidden[:-1])
    branches = net.branches(cache, len(text) - 2, begin[-1:])
    return torch.cat([branches.logits, *(branches.advance(token[None]) for token in drafted[:-1])])


@torch.no_grad()
@pytest.mark.parametrize("kind", OF_TRANSFORMERS)
def test_logits_are_those_of_transformers(made: Any, kind: str) -> None:
    folder, target = made(kind)
    model, text = AutoModelForCausalLM.from_pretrained(folder).eval(), tokens(14, vocabulary=VOCABULARY)
    if kind != "mellum":  # transformers finds the heads by names, as it ignores them otherwise: those of 61 layers
        model._keys_to_ignore_on_load_unexpected = [rf"layers\.{layer}\." for layer in (2, 3, 4)]
    if kind == "bailing_hybrid":  # whose configuration does not name the kind of these layers
        model.config.mtp_layer_types, model.config.mtp_mlp_layer_types = ["full_attention"], ["sparse"]
    heads, cache = MtpModel.from_pretrained(model).eval(), MtpCache(config=model.config.get_mtp_config())
    hidden = model.model(text[None, :-1]).last_hidden_state
    places = torch.arange(1, len(text))[None]
    drafted, logits, _ = heads(text[None, 1:], hidden, None, places, cache)
    assert logits.shape[1] == int(kind.partition(":")[2] or 1)
    torch.testing.assert_close(our_logits(target, text, drafted[0]), logits[0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen3_5_text", "longcat_flash"])
def test_logits_are_those_of_layers_of_the_family(made: Any, kind: str) -> None:
    folder, target = made(kind)
    held = {name[4:]: read for name, read in load_file(folder / "model.safetensors").items() if name[:4] == "mtp."}
    model, states, text = target.module, torch.empty(0), tokens(14, vocabulary=VOCABULARY)

    def norm(name: str, states: Tensor) -> Tensor:
        weight = held[f"{name}.weight"] + (kind == "qwen3_5_text")
        return F.rms_norm(states, weight.shape, weight, model.config.rms_norm_eps)

    def loaded(part: nn.Module, begins: str) -> nn.Module:
        begins = f"layers.0.{begins}"
        part.load_state_dict({n.removeprefix(begins): read for n, read in held.items() if n.startswith(begins)})
        return part

    if kind == "qwen3_5_text":
        before = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc")
        config = model.config.__class__(**model.config.to_dict() | {"layer_types": ["full_attention"] * 4})
        whole = loaded(qwen3_5.Qwen3_5DecoderLayer(config, 0), "")
    else:  # half of a layer of the target, without experts
        before = ("layers.0.enorm.m", "layers.0.hnorm.m", "layers.0.eh_proj")
        attention = loaded(longcat.LongcatFlashMLA(model.config, 0), "self_attn.")
        mlp = loaded(longcat.LongcatFlashMLP(model.config), "transformer_layer.mlp.")

    def layer(states: Tensor, *rest: Any) -> Tensor:
        if kind == "qwen3_5_text":
            return whole(states, *rest, cache=DynamicCache())
        states = states + attention(norm("layers.0.input_layernorm", states), *rest)[0]
        return states + mlp(norm("layers.0.post_attention_layernorm", states))

    hidden = model.model(text[None, :-1]).last_hidden_state
    following, logits, drafted = text[None, 1:], [], torch.tensor([3, 1, 2])
    for depth in range(3):  # without a cache: all pairs at every depth
        if depth:
            hidden = torch.cat((hidden, states[:, -1:]), 1)
            following = torch.cat((following, drafted[None, depth - 1 : depth]), 1)
        both = norm(before[0], model.model.embed_tokens(following)), norm(before[1], hidden)
        size = hidden.shape[1]
        mask = torch.full((size, size), -1e9).triu(1)[None, None]
        tables = model.model.rotary_emb(hidden, torch.arange(size)[None])
        states = norm("norm", layer(F.linear(torch.cat(both, -1), held[f"{before[2]}.weight"]), tables, mask))
        logits.append(model.lm_head(states[0, -1:]))
    torch.testing.assert_close(our_logits(target, text, drafted), torch.cat(logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [*OF_TRANSFORMERS[3:], *OTHERS])
def test_output_is_the_plain_one_and_replay_is_live(made: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.drafters.formats.decoder.AT_ONCE", 3)  # a long prompt in pieces
    monkeypatch.setattr(anchors, "FIRST_CAPACITY", 70)  # it grows while it decodes
    _, target = made(kind)
    source = MtpSource.load(None, target, LoadOptions())
    taps = attach_taps(target, source.tap_plan)

    def make(how: Drafting) -> MtpDrafter:
        return source.drafter(target, taps, how)

    assert_greedy_is_plain(target, make, tokens(9, vocabulary=VOCABULARY).tolist())
    assert_replay_is_live(target, make, [2], {7})  # later heads have nothing to begin with
    if kind in ("qwen2:2", "mellum", "longcat_flash"):
        assert_sampling_keeps_the_law(monkeypatch, target, target.module, make, [1, 0, 1])


def test_tensors_that_were_extracted_draft_the_same(made: Any, tmp_path: Path) -> None:
    folder, target = made("qwen3_5_text")
    own = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name.startswith("mtp.")}
    save_file(own, tmp_path / "mtp.safetensors")
    assert choose_drafter(tmp_path) == ("mtp", tmp_path)
    assert choose_drafter("mtp") == ("mtp", None)
    assert choose_drafter(folder)[0] == "language_model"
    prompt, settings, steps = tokens(9, vocabulary=VOCABULARY).tolist(), DecodingSettings(10), []
    for source in (None, tmp_path):
        drafter = drafter_of(target, source)
        steps.append(speculative_decode(target, drafter, FixedLength(3), prompt, settings).steps)
    assert [(step.drafted, step.accepted) for step in steps[0]] == [(step.drafted, step.accepted) for step in steps[1]]


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("deepseek_v3", lambda held: {}, "its configuration announces 1, so a conversion dropped them"),
        ("deepseek_v3:3", lambda held: {n: t for n, t in held.items() if ".4." not in n}, "holds 2 of the 3 MTP heads"),
        ("deepseek_v3", lambda held: {n: t.to(torch.int8) for n, t in held.items()}, "are quantised"),
        ("deepseek_v3", lambda held: {n: t[..., :8] for n, t in held.items()}, "is of another checkpoint"),
        ("qwen2", lambda held: {"mtp.fc.weight": torch.zeros(1)}, "wanted are .*input_proj.*, found mtp.fc"),
    ],
)
def test_heads_that_are_not_whole_or_of_another_target_are_refused(
    made: Any, tmp_path: Path, kind: str, change: Any, said: str
) -> None:
    folder, target = made(kind)
    own = {name: read for name, read in load_file(folder / "model.safetensors").items() if _is_of_head(kind, name)}
    save_file({name: tensor.contiguous() for name, tensor in change(own).items()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        drafter_of(target, tmp_path)


def _is_of_head(kind: str, name: str) -> bool:
    return "mtp" in name or any(f"layers.{layer}." in name for layer in (2, 3, 4))


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("deepseek_v3", lambda held: held, "policy fixed:8: gamma must be 0 to 3, the longest draft here"),
        ("deepseek_v3", lambda held: dict(list(held.items())[::2]), "its MTP head lacks .* half copied?"),
        ("qwen3_5_text", lambda held: {}, "holds no MTP head"),
        ("llama", lambda held: {"mtp.fc.weight": torch.zeros(1)}, "of llama .* holds mtp.fc.weight, and wanted are"),
    ],
)
def test_what_the_command_line_says_of_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: Any, said: str
) -> None:
    """More drafts than heads, half of their tensors, none, a family that is not known."""
    if kind == "llama":
        tiny_model(kind).save_pretrained(tmp_path)
    else:
        save_with_heads(tmp_path, kind, 3 if kind == "deepseek_v3" else 1, vocab_size=96)
    if kind != "deepseek_v3":  # headers show it
        monkeypatch.setattr("draftgauge.pair.loading.load_model", lambda *_: pytest.fail("it was loaded"))
    tiny_tokenizer().save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    own = {name: held.pop(name) for name in list(held) if _is_of_head(kind, name)}
    save_file(held | change(own), tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = refusal("generate", "--target", tmp_path, "--drafter", "mtp", "--policy", "fixed:8", "t1 t2 t3")
    assert re.search(said, message), message
