"""Every fault that ``doctor`` looks for is planted and named, alone; a healthy pair has none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import draftgauge as dg
from command_line import draftgauge, rows_of
from draftgauge.checkup.checks import SUSPECT, UNKNOWN, Evidence, examine
from draftgauge.checkup.files import layout_rates, of_files
from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.formats.building import build_net, read_layout
from draftgauge.drafters.formats.live import CheckpointSource
from draftgauge.drafters.mtp.checking import HeadFaults, head_faults
from draftgauge.drafters.mtp.live import build_mtp
from draftgauge.models.loading import load_model
from draftgauge.models.spec import read_configuration
from draftgauge.models.taps import TapPlan, attach_taps
from draftgauge.requests import PairSpec
from draftgauge.serving.counters import SpeculationCounts, read_counts
from draftgauge.traces.costs import Measurement
from draftgauge.traces.run import read_trace
from engine_server import serving, vllm_metrics
from linear_costs import curve
from mtp_heads import save_with_heads
from small_profiles import SMALL, save_models
from synthetic import sampled_trace, synthetic_trace
from tiny import save_tiny, tiny_tokenizer

FIXTURE = Path(__file__).parents[1] / "drafters" / "checkpoints" / "eagle3-sglang"
PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "real" / "runs" / "bf16"
BUNDLED: dict[str, Any] = {"per_task": 1, "max_new_tokens": 32, "gamma_max": 4, "cost_seconds": 0}
COSTLY = {"busy-machine", "draft-cost", "verify-cost", "rollback-cost"}  # the machine's, which tests share
TRACE, COSTS = synthetic_trace(1, 24, 60, 6), curve(0.1)


def faults(rows: list[dict[str, Any]]) -> list[str]:
    return [row["check"] for row in rows if row["status"] in ("wrong", "suspect")]


def tokens(trace: Any, draft: Any) -> Any:
    """The trace with these first drafted tokens, from every position."""
    drafted = np.broadcast_to(np.asarray(draft)[:, None], trace.draft_token.shape).astype(np.int32)
    return replace(
        trace, draft_token=drafted, drafted=np.full(trace.positions, 6, np.int16), accepted=0 * trace.accepted
    )


def thought(trace: Any, *thoughts: tuple[float, float]) -> Any:
    """Outputs with thoughts, in which nearly nothing is accepted and outside of which all is; one opens in the prompt,
    or before what is recorded, if it begins at 0, and does not end in the output if it ends at 1."""
    token, inside = trace.token.copy() % 40, np.zeros(trace.positions, bool)
    for start, stop in zip(trace.offsets[:-1], trace.offsets[1:], strict=True):
        for begin, end in thoughts:
            first, last = (start + int(share * (stop - start)) for share in (begin, end))
            token[first if begin else start] = 48 if begin else token[start]
            token[last : last + (end < 1)], inside[first : last + 1] = 49, True
    wrong = inside & (np.arange(trace.positions) % 4 > 0)
    return tokens(replace(trace, token=token), np.where(wrong, 0, token))


def seldom(trace: Any) -> Any:
    """With a first token that is right at every fourth position, and the second at some of these."""
    at = np.arange(trace.positions)
    trace = tokens(trace, np.where(at % 4 == 0, trace.token, (trace.token + 1 + at % 7) % 50))
    return replace(trace, accepted=(at % 4 == 0) + (at % 16 == 0).astype(np.int16))


class Words(SimpleNamespace):
    """A tokenizer as far as the checks ask it."""

    bos_token: Any = "<s>"
    eos_token: Any = "</s>"
    chat_template = None

    def get_vocab(self) -> dict[str, int]:
        return {"<think>": 48, "</think>": 49, **{f"t{n}": n for n in range(48)}} | getattr(self, "other", {})


UNSURE = Measurement(1.0, (9,) * 7, half_width=0.5)
CONSTANT = tokens(TRACE, 0 * TRACE.token)
ROWS = np.arange(TRACE.positions)
MIXED = replace(
    TRACE, token=np.where(np.random.default_rng(0).random(TRACE.positions) < 0.35, 0, 100 + ROWS).astype(np.int32)
)
FEW = replace(synthetic_trace(1, 1, 16, 6), token=np.arange(16, dtype=np.int32) // 2 % 4)
UNDECIDED = replace(sampled_trace(3, 12, 40, 6), target_entropy=np.full(sampled_trace(3, 12, 40, 6).positions, 2.0))
PLANTED: dict[str, tuple[str, Evidence]] = {
    "another tokenizer": ("tokenizer", Evidence(tokenizer=Words(), draft_tokenizer=Words(other={"t1": 2, "t2": 1}))),
    "special tokens": ("tokenizer", Evidence(tokenizer=Words(), draft_tokenizer=Words(eos_token="<|im_end|>"))),
    "another target": ("made-for", Evidence(made_for="org/other", trace=TRACE)),
    "damaged map": ("vocabulary-map", Evidence(map_error="d2t and t2d name different tokens", trace=TRACE)),
    "exchanged map": ("vocabulary-map", Evidence(trace=tokens(TRACE, (7 * TRACE.token + 3) % 50))),
    "wrong layers": ("layout", Evidence(layout_rates={"its own settings": 0.05, "layers [1]": 0.7}, trace=CONSTANT)),
    "no MTP head": ("mtp-tensors", Evidence(mtp_missing="mtp.fc.weight is missing")),
    "a quantised MTP head": ("mtp-quantised", Evidence(mtp_quantised="mtp.fc.weight is quantised")),
    "shifted norms": ("mtp-norms", Evidence(mtp_shifted="weights of its norms lie at 1.02, the target's at 0.01")),
    "exchanged inputs": ("mtp-layout", Evidence(mtp_rates={"as it is": 0.05, "exchanged": 0.7}, trace=CONSTANT)),
    "thinking": ("thinking", Evidence(tokenizer=Words(), trace=thought(TRACE, (0, 0.5)))),
    "thinking twice": ("thinking", Evidence(tokenizer=Words(), trace=thought(TRACE, (0.25, 0.5), (0.75, 0.98)))),
    "an open thought": ("thinking", Evidence(tokenizer=Words(), trace=thought(TRACE, (0.5, 1)))),
    "quantised drafter": ("compression", Evidence(compression=("bf16", "awq"), trace=TRACE)),
    "long texts": ("context", Evidence(longest=100, trace=TRACE)),
    "temperature": ("temperature", Evidence(trace=UNDECIDED)),
    "busy machine": ("busy-machine", Evidence(trace=TRACE, costs=replace(COSTS, measured=UNSURE))),
    "expensive drafting": ("draft-cost", Evidence(trace=TRACE, costs=curve(2.5))),
    "expensive rollback": ("rollback-cost", Evidence(trace=TRACE, costs=replace(COSTS, rollback=(3.0,)))),
    "expensive verifying": ("verify-cost", Evidence(trace=TRACE, costs=curve(0.01, 2.5))),
    "shallow drafter": ("depth", Evidence(counts=SpeculationCounts(900, 2700, 660, (600, 50, 10)))),
    "no drafts": ("acceptance", Evidence(trace=replace(TRACE, drafted=0 * TRACE.drafted, accepted=0 * TRACE.accepted))),
    "chance": ("acceptance", Evidence(trace=CONSTANT)),
    "a stuck drafter": ("acceptance", Evidence(trace=tokens(MIXED, 0 * MIXED.token + 7))),
    "too little to tell": ("acceptance", Evidence(trace=tokens(FEW, (7 * FEW.token + 3) % 50))),
    "a weak drafter": ("acceptance", Evidence(trace=seldom(TRACE), costs=curve(0.3, 0.3))),
    "a drafter that hardly pays": ("acceptance", Evidence(trace=seldom(TRACE), costs=curve(0.15, 0.1))),
    "chance in an engine": ("acceptance", Evidence(counts=SpeculationCounts(900, 2700, 50, (40, 8, 2)))),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_named_alone(fault: str) -> None:
    check, evidence = PLANTED[fault]
    rows = examine(evidence)
    assert faults(rows) == [check], rows
    assert all(rows[0][key] for key in ("what", "evidence", "remedy"))
    assert rows[0]["status"] == ("suspect" if check in SUSPECT or "hardly pays" in fault else "wrong")
    weak = "least that pays at these costs" in rows[0]["evidence"]
    assert (fault in ("a weak drafter", "a drafter that hardly pays")) == weak == ("as too little" in str(rows))


def test_nothing_is_wrong_with_a_healthy_trace_or_engine() -> None:
    healthy = Evidence(
        "t",
        "checkpoint",
        Words(),
        Words(),
        "",
        "",
        {"its own settings": 0.7},
        ("uncompressed", "bf16"),
        4096,
        TRACE,
        COSTS,
    )
    assert {row["status"] for row in examine(healthy)} == {"well"} | {"unknown"}
    assert faults(examine(Evidence(counts=SpeculationCounts(259, 1025, 357, (170, 100, 60, 27))))) == []
    short = Evidence(trace=synthetic_trace(1, 24, 1, 6), costs=replace(COSTS, plain=(0.9,) * len(COSTS.contexts)))
    assert short.best[0] < 1, "plain decoding saves what the loop of drafting takes besides"
    assert faults(examine(short)) == [], "and no cost of drafting or verifying is to blame"
    for unlike in (SpeculationCounts(900, 1200, 660, (600, 50, 10)), SpeculationCounts(900, 2700, 660)):
        depth = [row["status"] for row in examine(Evidence(counts=unlike)) if row["check"] == "depth"]
        assert depth == ["unknown"]  # drafts that ended earlier did not fail there, or no position is counted


@pytest.mark.slow
def test_the_bundled_pair_is_healthy_but_for_prompts_without_its_template(tmp_path: Path) -> None:
    assert set(faults(dg.doctor(**BUNDLED, out=tmp_path / "run"))) <= COSTLY
    assert "chat-template" not in faults(dg.doctor(tmp_path / "run"))
    prompts, file = tmp_path / "texts.jsonl", tmp_path / "raw.json"
    prompts.write_text(json.dumps({"prompt": "Say in one sentence what a drafter is."}))
    options = f"--raw --max-new-tokens 16 --gamma-max 2 --cost-seconds 0 --prompts {prompts} --json {file}"
    shown = draftgauge(["doctor", *options.split()])
    assert shown.exit_code == 1
    assert "chat-template: prompts do not go through" in shown.stdout
    assert "chat-template" in faults(rows_of(file))


def test_a_checkpoint_whose_settings_were_changed(tmp_path: Path) -> None:
    """Its head is fitted to the outputs of layers 1 to 3, and its configuration says otherwise."""
    models = save_models(tmp_path)
    target = save_tiny(tmp_path / "deep", num_hidden_layers=6)
    options = SMALL | {"target": str(target), "prompts": str(models["prompts"]), "limit": 7}
    options |= {"max_new_tokens": 24, "gamma_max": 1}
    dg.profile(**options, drafter="prompt_lookup", out=tmp_path / "plain")
    config = json.loads((FIXTURE / "config.json").read_text())
    config |= {"draft_vocab_size": 96, "vocab_size": 96, "hidden_size": 64}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) for name, shape in read_layout(config, "it").shapes((), 64)[0].items()}
    weights |= {name: 0 * each for name, each in weights.items() if "o_proj" in name or "down_proj" in name}
    weights["lm_head.weight"] = torch.zeros(96, 64)
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    save_file(weights, drafter / "model.safetensors")
    (drafter / "config.json").write_text(json.dumps(config))
    model, states, wanted = load_model(target), [], []
    net = build_net(drafter, read_layout(config, "it"), model)
    taps, trace = attach_taps(model, TapPlan(net.layout.taps)), read_trace(tmp_path / "plain")
    for prompt, start, stop in zip(trace.prompts, trace.offsets, trace.offsets[1:], strict=False):
        text = torch.tensor([*prompt.prompt_token, *trace.token[start:stop].tolist()])
        model.reset()
        model.forward(text)
        states.append(net.weights.norm("norm", net.take_in(net.begin(), text[1:], taps.hidden(0, len(text) - 1)))[:-1])
        wanted.append(torch.nn.functional.one_hot(text[2:], 96).float())
    fitted = torch.linalg.lstsq(torch.cat(states), torch.cat(wanted)).solution.T.contiguous()
    save_file(weights | {"lm_head.weight": fitted}, drafter / "model.safetensors")
    assert set(faults(dg.doctor(**options, drafter=str(drafter)))) <= COSTLY
    right = dict(config)
    for change, named in (
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}}, "target_layer_ids [1, 2, 3]"),
        ({"norm_before_residual": True}, "norm_before_residual false"),
    ):
        (drafter / "config.json").write_text(json.dumps(right | change))
        rows = dg.doctor(**options, drafter=str(drafter))
        assert set(faults(rows)) - COSTLY == {"layout"}
        assert any(named in (row["evidence"] or "") for row in rows)
    (drafter / "config.json").write_text(json.dumps(right | {"rope_parameters": {"rope_theta": 77.0}}))
    dg.doctor(**options, drafter=str(drafter), out=tmp_path / "based")
    rates = layout_rates(dg.Run.load(tmp_path / "based").manifest, PairSpec(), trace)
    assert any(name.startswith("rope_theta") and name.endswith("the target's") for name in rates)


@pytest.mark.parametrize(
    ("target", "made_for"),
    [
        ("org/Other-8B", "org/Model-8B"),
        ("elsewhere/model-8b", ""),
        ("elsewhere/model-8b-AWQ", UNKNOWN),  # a copy, or another one as -Base
        ("FOLDER/models--org--Model-8B/snapshots/0a1b", UNKNOWN),
        ("FOLDER/target", UNKNOWN),  # a folder's name need not say what is in it
    ],
)
def test_a_checkpoint_is_told_to_be_made_for_another_target_by_names_that_say_so(
    target: str, made_for: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target.replace("FOLDER", str(tmp_path))
    if target.startswith("/"):
        Path(target).mkdir(parents=True)
    monkeypatch.setattr("draftgauge.checkup.files.load_tokenizer", lambda *_, **__: None)
    monkeypatch.setattr(CheckpointSource, "trained_for", lambda source: "org/Model-8B")
    assert of_files(PairSpec(target=target), target, "checkpoint", FIXTURE).made_for == made_for


def test_weights_that_cannot_be_read_are_no_wrong_token_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(DraftgaugeError, match="allow-pickle"):
        dg.doctor(drafter=str(tmp_path), target="reference")
    with pytest.raises(DraftgaugeError, match="runs: name one of them"):
        dg.doctor(PUBLISHED.parent)


def test_what_files_do_not_tell_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is not downloaded yet has no fingerprint, and a GGUF file's compression is its own."""
    monkeypatch.setattr("draftgauge.checkup.files.load_tokenizer", lambda *_, **__: None)
    monkeypatch.setattr("draftgauge.checkup.files.quantisation_method", lambda *_: None)
    drafter = Path(__file__).parents[2] / "drafters" / "smollm2-135m" / "hidden"
    evidence = of_files(PairSpec(target="org/not-here"), "org/not-here", "reuse", drafter)
    assert evidence.made_for == UNKNOWN
    pair = PairSpec(target=str(tmp_path / "target.gguf"))
    assert of_files(pair, str(pair.target), "language_model", tmp_path).compression == UNKNOWN
    assert of_files(PairSpec(target="org/it"), "org/it", "language_model", tmp_path).compression != UNKNOWN


def test_a_run_of_models_that_are_elsewhere_is_judged_without_fetching_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.checkup.files.load_tokenizer", lambda *_, **__: pytest.fail("asked the hub"))
    rows = dg.doctor(PUBLISHED)
    assert faults(rows) == []
    assert {"tokenizer", "made-for"} <= {row["check"] for row in rows if row["status"] == "unknown"}


def test_an_engine_is_judged_by_its_page_its_saved_page_or_its_answers(tmp_path: Path) -> None:
    counts, page = (900, 2700, 50, (40, 8, 2)), tmp_path / "metrics.txt"
    page.write_text(vllm_metrics(*counts))
    with serving({"/metrics": (200, page.read_text())}) as url:
        assert faults(dg.doctor(url=url)) == faults(dg.doctor(url=str(page))) == ["acceptance"]
    with pytest.raises(DraftgaugeError, match="leave out the run, or it"):
        dg.doctor(tmp_path, url=str(page))
    with pytest.raises(DraftgaugeError, match="is looked at as it is: leave out --drafter, --temperature, or it"):
        dg.doctor(PUBLISHED, drafter="lookup", temperature=0.5, allow_pickle=True)
    numbers = {"num_spec_steps": 10, "num_draft_tokens": 40, "num_accepted_draft_tokens": 20}
    sglang = "sglang:generation_tokens_total 300\nsglang:spec_accept_length 3\nsglang:spec_accept_rate 0.5\n"
    for engine, text in {
        "vllm": json.dumps({"metrics": {"speculative_decoding": numbers}}),
        "llama-server": '{"timings": {"predicted_n": 1}}\n'  # and nothing of drafts, as there were none
        + json.dumps({"timings": {"predicted_n": 31, "draft_n": 40, "draft_n_accepted": 20}}),
        "sglang": json.dumps(
            {"meta_info": {"spec_verify_ct": 10, "spec_draft_token_num": 40, "spec_accept_token_num": 20}}
        ),
    }.items():
        page.write_text(f"{text}\n{text}\n")
        assert read_counts(engine, str(page)) == SpeculationCounts(20, 80, 40)
    page.write_text(sglang)
    assert read_counts("sglang", str(page)) == SpeculationCounts(100, 400, 200)
    page.write_text('{"usage": {}}')
    with pytest.raises(DraftgaugeError, match=r"line 1 has no counters of vllm \(metrics.speculative_decoding"):
        read_counts("vllm", str(page))


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
WEIGHTS = "model.safetensors"


def changed(part: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda held: {name: change(each) if part in name else each for name, each in held.items()}


def without(part: str) -> Change:
    return lambda held: {name: each for name, each in held.items() if part not in name}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_5")
    save_with_heads(folder, "qwen3_5_text", vocab_size=96)
    return folder


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        (without("mtp."), "missing", "and holds 0: mtp.fc.weight, .* are missing"),
        (without("mtp.fc"), "missing", "mtp.fc.weight are missing"),
        (changed("mtp.fc", lambda each: each.to(torch.int8)), "quantised", "mtp.fc.weight are quantised"),
        (changed("mtp.", lambda each: each + 1 if each.ndim == 1 else each), "shifted", "1 was added twice"),
        (changed("mtp.", lambda each: each - 1 if each.ndim == 1 else each), "shifted", "1 was never added"),
        (changed("mtp.fc", lambda each: each[:, :8]), "made_for", "another width than 64"),
        (dict, "", None),
    ],
)
def test_faults_of_heads_show_in_headers_and_norms(
    folder: Path, tmp_path: Path, change: Change, field: str, said: str | None
) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    held = change(load_file(folder / WEIGHTS))
    save_file({name: each.contiguous() for name, each in held.items()}, tmp_path / WEIGHTS)
    faults = head_faults(tmp_path, read_configuration(tmp_path, False).get_text_config(), tmp_path)
    if said is None:
        assert faults == HeadFaults("", "", "", "")
        return
    assert re.search(said, getattr(faults, field))


def test_the_doctor_tries_other_layouts(tmp_path: Path) -> None:
    """A head whose inputs were exchanged computes what it did once they are read the other way."""
    save_with_heads(tmp_path, "qwen2", vocab_size=96)
    tiny_tokenizer(96).save_pretrained(tmp_path)
    target, states = load_model(tmp_path, "fp32", "cpu"), torch.randn(5, 1, 64)

    def given(exchanged: bool) -> Tensor:
        net = build_mtp(tmp_path, target)
        if exchanged:
            net = net.read_as(replace(net.family, hidden_first=False), target.module)
        return net.take_in(net.begin(), torch.arange(5), states)

    before, held = given(False), load_file(tmp_path / WEIGHTS)
    held["mtp_layers.0.input_proj.weight"] = torch.cat(held["mtp_layers.0.input_proj.weight"].chunk(2, 1)[::-1], 1)
    save_file(held, tmp_path / WEIGHTS, metadata={"format": "pt"})
    torch.testing.assert_close(given(True), before)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt number {n}", "task": "a"}) for n in range(3)))
    asked = {"target": tmp_path, "drafter": "mtp", "prompts": prompts, "device": "cpu"}
    rows = dg.doctor(**asked, max_new_tokens=12, gamma_max=1, cost_seconds=0)
    seen = {row["check"]: row for row in rows}
    assert seen["mtp-tensors"]["status"] == seen["mtp-quantised"]["status"] == "well"
    assert "with state, then embedding, before the final norm" in seen["mtp-layout"]["evidence"]
