"""MTP heads, Gemma 4's assistants and PARD: logits of transformers, lossless, drafts from all positions at once."""

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
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, Gemma4AssistantConfig, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel
from transformers.models.longcat_flash import modeling_longcat_flash as longcat
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5

from command_line import refusal
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.drafters import anchors
from draftgauge.drafters.base import Drafting, LoadOptions, choose_drafter
from draftgauge.drafters.gemma4_assistant import POSITIONS, AssistantDrafter, AssistantNet, AssistantSource
from draftgauge.drafters.mtp.live import MtpDrafter, MtpSource
from draftgauge.drafters.pard import PardDrafter, PardSource
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.taps import TapPlan, attach_taps, batch_features
from draftgauge.policies.fixed import FixedLength
from draftgauge.traces.run import Run
from lossless import assert_greedy_is_plain, assert_replay_is_live, assert_sampling_keeps_the_law
from mtp_heads import save_with_heads
from tiny import edit, noisy, one_pass, save_tiny, tiny_model, tiny_tokenizer, tokens

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
        outer = "model." if name == "longcat_flash" else ""  # as its files have them
        save_with_heads(folder, name, int(heads or 1), outer=outer)
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
    named = {name.removeprefix("model."): read for name, read in load_file(folder / "model.safetensors").items()}
    held = {name[4:]: read for name, read in named.items() if name[:4] == "mtp."}
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
    if kind in ("qwen2:2", "mellum"):  # several heads, and one that is used again
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
        ("glm4_moe", lambda held: {}, "holds no MTP head .its configuration announces 1, so a conversion dropped"),
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


def test_no_more_is_recorded_than_heads_draft(tmp_path: Path) -> None:
    save_with_heads(tmp_path, "deepseek_v3", 3, vocab_size=96)
    tiny_tokenizer().save_pretrained(tmp_path)
    asked = {"target": str(tmp_path), "drafter": "mtp", "prompts": ["t1 t2 t3", "t4 t5"], "cost_seconds": 0.1}
    with pytest.warns(UserWarning, match="mtp drafts at most 3 a step: --gamma-max is 3 here, not 8"):
        profile(**asked, gamma_max=8, max_new_tokens=6, out=tmp_path / "run")
    assert Run(tmp_path / "run").trace.gamma_max == 3
    with pytest.raises(DraftgaugeError, match="policy fixed:8: gamma must be 0 to 3"):
        replay(tmp_path / "run", ["fixed:8"])


TOKENS, WINDOW = 8, 4
KINDS = ["sliding_attention", "full_attention"] * 2
SIZES = {"layer_types": KINDS, "sliding_window": WINDOW, "global_head_dim": 32, "num_hidden_layers": 4}
SIZES |= {"hidden_size_per_layer_input": 0, "final_logit_softcapping": None}


def gemma(vocabulary: int = TOKENS, **changes: Any) -> PreTrainedModel:
    return tiny_model("gemma4_text", vocab_size=vocabulary, **SIZES | changes)


def assistant(target: PreTrainedModel, ordered: bool = False) -> PreTrainedModel:
    text = target.config.to_dict() | {"hidden_size": 32, "num_kv_shared_layers": 4, "vocab_size_per_layer_input": 0}
    config = Gemma4AssistantConfig(
        text_config=AutoConfig.for_model(**text),
        backbone_hidden_size=target.config.hidden_size,
        use_ordered_embeddings=ordered,
        num_centroids=4,
        centroid_intermediate_top_k=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).eval()
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(target.config.vocab_size))
    return model


def make(target: Any, model: PreTrainedModel, position: str = "bonus") -> Any:
    taps = attach_taps(target, TapPlan((3,)))
    return lambda how: AssistantDrafter(AssistantNet(model, target, position), target, taps, *how)


@torch.no_grad()
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
def test_logits_of_an_assistant_are_those_of_transformers(ordered: bool, position: str) -> None:
    module = gemma()
    model, target, text = assistant(module, ordered), wrap(module), tokens(9, vocabulary=TOKENS)
    drafter = make(target, model, position)(Drafting(frozenset()))
    target.forward(text[:-1])
    drafter.prefill(text.tolist())
    drafter._take_in()
    seen = module(text[None, :-1], return_shared_kv_states=True, output_hidden_states=True, use_cache=False)
    state, last = seen.hidden_states[-1][:, -1:], text[None, -1:]
    shared = {kind: tuple(seen.shared_kv_states[kind]) for kind in set(KINDS)}
    shared["sliding_attention"] = tuple(part[:, :, -WINDOW:] for part in shared["sliding_attention"])
    branches = drafter.net.branches(drafter._cache, 7, drafter._begun)
    for _ in range(3):
        entering = torch.cat((module.get_input_embeddings()(last), state), -1)
        at = torch.tensor([[7 + POSITIONS[position]]])
        out = model(inputs_embeds=entering, position_ids=at, shared_kv_states=shared, use_cache=False)
        drafted = branches.logits > -torch.inf
        assert int(drafted.sum()) == (TOKENS // 2 if ordered else TOKENS)
        torch.testing.assert_close(branches.logits[drafted], out.logits[0][drafted], rtol=1e-4, atol=1e-4)
        last, state = branches.logits.argmax(-1)[None], out.last_hidden_state
        branches.advance(last[0])


@pytest.mark.parametrize(("ordered", "position"), [*zip((False, True), POSITIONS, strict=True)])
def test_it_is_lossless_and_replayed_as_it_decodes(
    monkeypatch: pytest.MonkeyPatch, ordered: bool, position: str
) -> None:
    module = gemma()
    target, model, prompt = wrap(module), assistant(module, ordered), tokens(6, vocabulary=TOKENS).tolist()
    assert_greedy_is_plain(target, make(target, model, position), prompt)
    assert assert_replay_is_live(target, make(target, model, position), prompt, {7}) > 0
    if ordered:  # where most tokens are never drafted
        assert_sampling_keeps_the_law(monkeypatch, target, module, make(target, model, position), [1, 2, 3])


def test_the_position_is_a_setting_of_the_source(tmp_path: Path) -> None:
    module = gemma(96)
    assistant(module).save_pretrained(tmp_path)
    target, prints, drafts = wrap(module), set(), []
    for name in (str(tmp_path), f"{tmp_path}:position=processed"):
        assert choose_drafter(name) == ("gemma4_assistant", name)
        source = AssistantSource.load(name, target, LoadOptions())
        prints.add(source.fingerprint())
        drafter = source.drafter(target, attach_taps(target, source.tap_plan), Drafting(frozenset()))
        target.forward(tokens(40))
        drafter.prefill([*tokens(40).tolist(), 5])
        drafts.append([signal.confidence for signal in drafter.propose(6, lambda signal: True).signals])
    assert len(prints) == 2
    assert drafts[0] != drafts[1]
    with pytest.raises(DraftgaugeError, match="position must be one of bonus, processed, not 'next'"):
        AssistantSource.check(f"{tmp_path}:position=next", tiny_tokenizer(), LoadOptions())
    for other, message in [
        (tiny_model("llama"), "reads the keys and values of a Gemma 4 target, and this one is a llama"),
        (gemma(96, hidden_size=32), "width 64, not 32"),
        (gemma(96, global_head_dim=16), r"full_attention .heads, numbers of a key. .2, 32., not .2, 16."),
    ]:
        with pytest.raises(DraftgaugeError, match=message):
            AssistantSource.load(tmp_path, wrap(other), LoadOptions())


MASK = VOCABULARY  # the mask behind the target's tokens


def pard(target: Any, engine: str = "lean", **settings: Any) -> Any:
    draft = noisy(tiny_model("llama", vocab_size=VOCABULARY + 1, **settings), 0.1)
    return lambda how: PardDrafter(wrap(draft, engine), MASK, how, target.spec.vocabulary)


@pytest.mark.parametrize("engine", ["lean", "modules", "static"])
def test_pard_is_lossless_and_replayed_as_it_decodes(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    module = tiny_model("llama", vocab_size=VOCABULARY)
    target, prompt = wrap(module, engine), tokens(6, vocabulary=VOCABULARY).tolist()
    assert_greedy_is_plain(target, pard(target, engine), prompt)
    assert assert_replay_is_live(target, pard(target, engine), prompt, {7}) > 0
    assert assert_replay_is_live(target, pard(target, engine, max_position_embeddings=12), [5], set()) > 0
    if engine == "lean":
        assert_sampling_keeps_the_law(monkeypatch, target, module, pard(target, engine), [1, 2, 3])


@torch.no_grad()
def test_places_are_those_of_a_text_that_ends_in_masks_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    target, passes = wrap(tiny_model("llama", vocab_size=VOCABULARY)), []
    drafter, text = pard(target)(Drafting(frozenset())), tokens(6, vocabulary=VOCABULARY).tolist()
    forward = drafter.model.forward
    monkeypatch.setattr(drafter.model, "forward", lambda t, **how: passes.append(len(t)) or forward(t, **how))
    drafter.prefill(text)
    for committed in ([3, 1], [4]):
        drafter.commit(0, committed)
        text += committed
        logits = one_pass(drafter.model.module, torch.tensor([*text, MASK, MASK, MASK]))[-4:, :VOCABULARY]
        assert drafter.propose(4, None).tokens == logits.argmax(-1).tolist()
        assert drafter.propose(2, None).tokens == logits.argmax(-1).tolist()[:2]
        assert drafter.backlog() == 0
    assert passes == [5, 3 + 3, 1 + 1, 1 + 3, 1 + 1]  # what is missing, and the masks


def test_a_folder_says_itself_that_it_is_one(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "draft", "llama")
    with pytest.raises(DraftgaugeError, match=r"drafter pard needs a PARD model .*; .*draft is not one"):
        PardSource.resolve(folder)
    edit(folder, pard_token=95)
    assert choose_drafter(folder) == ("pard", folder)
    target, options = wrap(tiny_model("llama")), LoadOptions()
    source = PardSource.load(folder, target, options)
    assert (source.mask, source.fingerprint()) == (95, PardSource.load(folder, target, options).fingerprint())
    for change, message in [
        ({"ptd_token_id": 4}, "ptd_token_id and pard_token contradict each other"),
        ({"ptd_token_id": ..., "pard_token": 96}, "pard_token 96 is not among 96 tokens"),
        ({"pard_token": "95"}, "pard_token must be a whole number"),
    ]:
        edit(folder, **change)
        with pytest.raises(DraftgaugeError, match=message):
            PardSource.check(folder, tiny_tokenizer(), options)
