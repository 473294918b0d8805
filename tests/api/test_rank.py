"""Ranking drafters, and drafters times setups: one target's outputs for all, resumed, and failures named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import draftgauge as dg
from command_line import draftgauge, refusal, rows_of
from draftgauge.api import profile
from draftgauge.api import rank as module
from draftgauge.api.rank import _of_setup
from draftgauge.cli.rank import show_ranking
from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging import fitting
from draftgauge.judging.fitting import FITTED, fitted_to
from draftgauge.judging.ranking import on_one_target, rank_rows
from draftgauge.judging.replay import best_fixed_gamma, replay, replay_fixed_all
from draftgauge.models.folder import reference_path
from draftgauge.policies.base import Policy
from draftgauge.policies.spec import NO_DRAFT, make_policy
from draftgauge.requests import RankRequest
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import read_trace
from draftgauge.traces.trace import Trace, select
from linear_costs import curve
from mtp_heads import save_with_heads
from row_keys import check_keys
from small_profiles import SMALL, record, save_models
from synthetic import overconfident, repeating_trace, synthetic_trace
from tiny import tiny_tokenizer

CHECKPOINTS = Path(__file__).parents[1] / "drafters" / "checkpoints"


@pytest.fixture(scope="module")
def asked(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    given = {"target": str(models["target"]), "prompts": str(models["prompts"])}
    return SMALL | given | {"drafters": (str(models["drafter"]), "lookup"), "out": tmp_path_factory.mktemp("rank")}


@pytest.fixture(scope="module")
def words(asked: dict[str, Any]) -> list[str]:
    """Options of the command line."""
    names = ("target", "prompts", "gamma_max", "max_new_tokens", "cost_seconds")
    return [word for name in names for word in ("--" + name.replace("_", "-"), str(asked[name]))]


@pytest.fixture(scope="module")
def ranked(asked: dict[str, Any]) -> tuple[Path, list[dict[str, Any]], list[str]]:
    drafters = (*asked["drafters"], str(CHECKPOINTS / "eagle3-sglang"))
    with pytest.warns(UserWarning, match="left out") as warned:
        rows = dg.rank(**asked | {"drafters": drafters})
    return asked["out"], rows, [str(each.message) for each in warned]


def test_what_models_ship_with_and_what_engines_look_up_are_one_table(tmp_path: Path, capsys) -> None:
    save_with_heads(tmp_path / "target", "glm4_moe", num_hidden_layers=6, vocab_size=48, hidden_size=16)
    tiny_tokenizer(48).save_pretrained(tmp_path / "target")
    lines = [{"prompt": f"ABC {n} ABC {n} AB", "id": f"p{n}", "task": "copy"} for n in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    drafters = ("mtp", str(CHECKPOINTS / "eagle3-norms"), str(CHECKPOINTS / "dflash-flat"), "suffix", "lookup")
    given = {"target": str(tmp_path / "target"), "prompts": str(tmp_path / "prompts.jsonl"), "out": tmp_path / "rank"}
    rows = dg.rank(**SMALL | given | {"drafters": drafters, "live": 1})
    assert [row for row in rows if "error" in row] == []
    assert {row["drafter"] for row in rows} == {*drafters, "no-draft"}
    assert len({row["rank"] for row in rows}) == len(rows) == 6
    (suffix,) = (row for row in rows if row["drafter"] == "suffix")
    assert suffix["policy"] in ("suffix", "no-draft")
    assert suffix["source_model"] == 0
    show_ranking(rows)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("mtp", "eagle3-norms", "dflash-flat", "suffix", "lookup"))
    assert all(row["live_mismatched_prompts"] == 0 for row in rows if row["drafter"] != "no-draft")


def test_every_drafter_is_recorded_over_the_same_outputs(models, ranked) -> None:
    out, rows, warned = ranked
    check_keys(rows, "policy", "tokens_per_second", "ratio_to_plain", "gain", "tokens_per_step", "alpha_1")
    runs = {row["drafter"]: row["run"] for row in rows if row.get("run")}
    assert set(runs) == {str(models["drafter"]), "lookup"}
    traces = [read_trace(Path(run)) for run in runs.values()]
    assert traces[0].token.tolist() == traces[1].token.tolist()
    assert traces[0].target_entropy.tolist() == traces[1].target_entropy.tolist()  # read once
    alone = record(models | {"drafter": "prompt_lookup"}, out.with_name("alone"))
    recorded = read_trace(Path(runs["lookup"]))  # as if it had been recorded by itself
    assert alone.token.tolist() == recorded.token.tolist()
    assert alone.draft_token.tolist() == recorded.draft_token.tolist()
    failed = [row for row in rows if "error" in row]
    assert [Path(row["drafter"]).name for row in failed] == ["eagle3-sglang"]
    assert "made for a target of at least 5 layers and width 16, this one has 2 and 64" in failed[0]["error"]
    assert any("is left out" in text for text in warned)


def test_rows_go_from_the_fastest_to_the_slowest_for_all_prompts_and_each_task(ranked) -> None:
    rows = [row for row in ranked[1] if "rank" in row]
    whole = [row for row in rows if row["task"] == "all"]
    assert [row["rank"] for row in whole] == [1, 2, 3]
    speeds = [row["tokens_per_second"] for row in whole]
    assert speeds == sorted(speeds, reverse=True)
    assert whole[0]["gain"] == 0
    assert all(row["gain"] <= 0 for row in whole)
    assert {row["task"] for row in rows} == {"all", "even", "odd"}
    assert sum(row["prompts"] for row in rows if row["drafter"] == NO_DRAFT) == 2 * whole[0]["prompts"]
    plain = next(row for row in whole if row["drafter"] == NO_DRAFT)
    assert plain["ratio_to_plain"] == pytest.approx(1)
    assert plain["tokens_per_step"] == 1
    for row in whole:  # one target for all: ratios to plain decoding are those of the speeds
        assert row["ratio_to_plain"] == pytest.approx(row["tokens_per_second"] / plain["tokens_per_second"])


def test_asked_again_nothing_is_recorded_anew(asked, ranked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "record_missing", None)
    monkeypatch.setattr(profile, "measure_pair", None)
    assert dg.rank(**asked) == [row for row in ranked[1] if "rank" in row]


def test_the_command_line_ranks_what_can_be_used_and_says_what_cannot(words, ranked, tmp_path: Path) -> None:
    out, _, _ = ranked
    bad, file = str(CHECKPOINTS / "dflash-flat"), tmp_path / "rank.json"
    shown = draftgauge(["rank", "lookup", bad, *words, "--out", str(out), "--json", str(file)])
    assert shown.exit_code == 1
    assert "is left out" in shown.stderr
    assert "gain over it" in shown.stdout
    rows = rows_of(file)
    assert [row["drafter"] for row in rows if "error" in row] == [bad]
    assert draftgauge(["rank", bad, *words, "--out", str(tmp_path / "none")]).exit_code == 1
    for wrong in (
        ["lookup", *words],
        ["--target", str(tmp_path / "none")],
        ["lookp"],
        ["--prompts", str(tmp_path / "none.jsonl")],
        ["--compression", "int7"],
        ["--engine", "nope"],
        ["--device", "nope"],
        ["../x/lookup", "x/lookup"],  # whose folders would be the same
        ["."],
        ["--out", str(out / "lookup")],  # a run itself
    ):
        refusal("rank", "lookup", *words, "--out", str(tmp_path / "wrong"), *wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rank", "lookp", "--out", "x"], "unknown drafter 'lookp': did you mean lookup"),
        (["rank", "some/drafter", "--out", "x"], "nothing says which target some/drafter drafts for"),
        (["generate", "hi", "--drafter", str(reference_path("draft"))], "drafts for: name it with --target"),
        (["generate", "hi", "--target", "referense"], "referense is no folder here; did you mean reference"),
        (["generate", "hi", "--drafter", "lookp"], "unknown drafter 'lookp': did you mean lookup"),
    ],
)
def test_names_that_can_be_no_model_or_lack_their_target_are_refused_at_once(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(*words)


def test_live_ratio_to_plains_stand_beside_the_modelled_ones(asked, words, ranked) -> None:
    out, rows, _ = ranked
    decoded: list[Any] = []
    live = dg.rank(live=2, progress=lambda *of: decoded.append(of), **asked)
    # The first while each arm warms up.
    assert [of[1:] for of in decoded if "bench" in of[0]] == 2 * [(0, 2), (0, 2), (1, 2), (2, 2)]
    decoded_rows = [row for row in live if "live_ratio_to_plain" in row]
    assert {row["drafter"] for row in decoded_rows} == set(asked["drafters"])
    for row in decoded_rows:
        assert (row["task"], row["live_mismatched_prompts"]) == ("all", 0)
        assert row["live_modelled"] > 0
        assert 0 < row["live_ratio_to_plain_low"] <= row["live_ratio_to_plain"] <= row["live_ratio_to_plain_high"]
    without = [{key: row[key] for key in row if not key.startswith("live")} for row in live]
    assert without == [row for row in rows if "rank" in row]
    shown = draftgauge(["rank", *asked["drafters"], *words, "--out", str(out), "--live", "1"])
    assert shown.exit_code == 0, shown.output
    assert "The order of live decoding is" in shown.stdout


ORDERS = [(2, 1, 3, "as modelled"), (1, None, None, "not tell"), (1, 1, 3, "not tell"), (1, 2.5, 2.5, "another one:")]


@pytest.mark.parametrize(("slower", "low", "high", "said"), ORDERS)
def test_the_live_order_is_said_with_what_its_intervals_tell(ranked, capsys, slower, low, high, said) -> None:
    rows = [row for row in ranked[1] if row.get("run") and row["task"] == "all"]
    first = {"live_ratio_to_plain": slower, "live_ratio_to_plain_low": low, "live_ratio_to_plain_high": low and 2}
    first["live_mismatched_prompts"] = 0
    second = first | {"live_ratio_to_plain": 1.5, "live_ratio_to_plain_low": low, "live_ratio_to_plain_high": high}
    show_ranking([rows[0] | first, rows[1] | second])
    assert said in capsys.readouterr().out.replace("\n", " ")
    show_ranking([rows[0] | first | {"live_ratio_to_plain": 0.9}, ranked[1][0] | {"drafter": NO_DRAFT}])
    assert f"another one, of drafters that these prompts do not tell apart: {NO_DRAFT}" in capsys.readouterr().out


def test_a_fitted_rule_decodes_prompts_live_that_it_did_not_learn_from(asked, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[Trace] = []

    def of(trace: Trace, costs: CostCurve) -> Policy:
        learnt.append(trace)
        return make_policy("two-source", trace.gamma_max, costs)

    def with_fitted(recorded: Mapping[str, tuple[Trace, CostCurve]]) -> list[dict[str, Any]]:
        return [row | {"policy": FITTED} if row["drafter"] == "lookup" else row for row in rank_rows(recorded)]

    monkeypatch.setattr(module, "fitted_to", of)
    monkeypatch.setattr(module, "rank_rows", with_fitted)
    monkeypatch.setattr(module, "MIN_PROMPTS", 2)
    rows = dg.rank(live=2, **asked)
    (row,) = [row for row in rows if row["policy"] == FITTED and "live_ratio_to_plain" in row]
    assert row["live_mismatched_prompts"] == 0
    recorded = read_trace(Path(row["run"]))
    assert [prompt.index for prompt in learnt[0].prompts] == [prompt.index for prompt in recorded.prompts[2:]]
    with pytest.warns(UserWarning, match="decodes prompts live that it was fitted on"):
        dg.rank(live=len(recorded.prompts) - 1, **asked)
    monkeypatch.setattr(module, "bench", Mock(side_effect=DraftgaugeError("no memory")))
    with pytest.warns(UserWarning, match="is not decoded live: no memory"):
        assert not any("live_ratio_to_plain" in row for row in dg.rank(live=2, **asked))  # the ranking stands


def test_what_is_modelled_of_live_decoding_is_of_the_prompts_that_bench_decodes() -> None:
    trace = repeating_trace(1, 32, 4, 2)
    splits, tasks = (["train"] * 16 + ["test"] * 16), "aaab" * 8
    named = zip(trace.prompts, splits, tasks, strict=True)
    trace = replace(trace, prompts=tuple(replace(p, split=split, task=task) for p, split, task in named))
    assert np.flatnonzero(module._decoded(trace, 3)).tolist() == [16, 17, 19]


def test_drafters_measured_with_several_engines_are_not_compared(asked, tmp_path: Path) -> None:
    given = asked | {"out": tmp_path}
    dg.rank(**given | {"drafters": ("lookup",), "engine": "lean"})
    kept = pytest.warns(UserWarning, match="stay those of lean on cpu: pass --measure for those of modules on cpu")
    with kept, pytest.raises(DraftgaugeError, match="lean on cpu and modules on cpu: rank again with --measure"):
        dg.rank(**given, engine="modules")
    assert dg.rank(**given, engine="modules", measure=True)[0]["rank"] == 1


def test_costs_of_an_engine_take_the_place_of_those_measured(asked, ranked, tmp_path: Path) -> None:
    rows = ranked[1]
    run = next(Path(row["run"]) for row in rows if row.get("run") and row["drafter"] == "lookup")
    costs = dg.CostCurve.load(run / "costs.json")
    verify = tuple(tuple(10 * s for s in row) for row in costs.verify)
    replace(costs, plain=tuple(10 * s for s in costs.plain), verify=verify).save(tmp_path / "slow.json")
    given = (f"lookup={tmp_path / 'slow.json'}", f"{asked['drafters'][0]}={run / 'costs.json'}")
    slower = dg.rank(costs_of=given, **asked)
    slow, usual = (next(row["tokens_per_second"] for row in of if row["drafter"] == "lookup") for of in (slower, rows))
    assert slow < usual / 2
    with pytest.raises(DraftgaugeError, match="DRAFTER=FILE, with one of the drafters"):
        dg.rank(costs_of=("other=x.json",), **asked)
    with pytest.raises(DraftgaugeError, match=r"give --costs of .*draft too, or of no drafter"):
        dg.rank(costs_of=given[:1], **asked)
    with pytest.raises(DraftgaugeError, match="drafts of up to 3 tokens cost, and --gamma-max is 4: lower it"):
        dg.rank(costs_of=given, **asked | {"gamma_max": 4})


def test_outputs_to_prompts_that_were_cut_elsewhere_are_not_taken(models, asked, tmp_path: Path) -> None:
    short = shutil.copytree(models["drafter"], tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 20}))
    changes = {"drafters": ("lookup", str(short)), "out": tmp_path / "out", "long_prompts": "truncate", "limit": 2}
    rows = dg.rank(**asked | changes)
    (failed,) = [row for row in rows if "error" in row]
    assert failed["drafter"] == str(short)
    assert "no output is known for the prompts p0, p1, or they were cut elsewhere" in failed["error"]


def test_the_setting_of_a_drafter_is_as_fast_as_its_best_length() -> None:
    trace, costs = synthetic_trace(1, 24, 40, 6), curve(0.1)
    (row, *_) = [row for row in rank_rows({"one": (trace, costs)}) if row["drafter"] == "one" and row["task"] == "all"]
    best = replay_fixed_all(trace, costs)[best_fixed_gamma(trace, costs)]
    assert row["tokens_per_second"] >= 0.99 * best.tokens_per_second


def test_rules_are_fitted_to_a_drafter_and_judged_on_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    named, costs = overconfident(repeating_trace(3, prompts=32, length=90, gamma_max=6, vocabulary=12)), curve(0.3)
    trace = replace(named, prompts=tuple(replace(prompt, split="") for prompt in named.prompts))
    learnt = list[set[tuple[str, str]]]()

    def watched(part: Trace, costs: CostCurve) -> Policy:
        learnt.append({(prompt.task, prompt.identifier) for prompt in part.prompts})
        return fitted_to(part, costs)

    monkeypatch.setattr(fitting, "fitted_to", watched)
    (row, *_) = rank_rows({"one": (trace, costs)})
    assert [len(part) for part in (*learnt, learnt[0] & learnt[1])] == [16, 16, 0]
    assert [len({task for task, _ in part}) for part in learnt] == [4, 4]  # all tasks in each
    assert (row["drafter"], row["policy"], row["source_model"]) == ("one", FITTED, 0)
    assert row["tokens_per_second"] > 1.3 * replay(trace, make_policy("two-source", 6, costs), costs).tokens_per_second
    few = select(trace, np.arange(32) < 15)
    assert all(row["policy"] != FITTED for row in rank_rows({"one": (few, costs)}))
    learnt.clear()
    rank_rows({"one": (named, costs)})
    assert learnt == [{(prompt.task, prompt.identifier) for prompt in named.prompts if prompt.split == "train"}]


def test_a_drafter_measured_on_a_busier_machine_is_not_slower_for_it() -> None:
    costs = replace(curve(0.1), rollback=(0.1, 0.2))
    tables = {name: getattr(costs, name) for name in ("verify", "draft")}
    busier = {name: tuple(tuple(3 * seconds for seconds in row) for row in of) for name, of in tables.items()}
    slow = replace(costs, **busier, rollback=(0.3, 0.6), plain=(3 * costs.plain[0],) * len(costs.plain))
    one, two = on_one_target({"one": costs, "two": slow}).values()
    assert two.verify == one.verify
    assert two.plain == one.plain
    assert [list(row) for row in two.draft] == [pytest.approx(row) for row in one.draft]
    assert two.rollback == pytest.approx(one.rollback)
    longer = replace(slow, contexts=(100, 1000), verify=2 * slow.verify, draft=2 * slow.draft, plain=2 * slow.plain)
    for scaled in on_one_target({"one": costs, "two": longer}).values():  # one context says nothing of others
        assert scaled.contexts == (100, 1000)
        assert [list(row) for row in scaled.verify] == 2 * [pytest.approx(costs.verify[0])]
    shorter = {name: tuple(row[:4] for row in of) for name, of in tables.items()}
    three, all_ = on_one_target({"three": replace(costs, **shorter), "all": slow}).values()  # of other longest drafts
    assert (three.gamma_max, all_.gamma_max) == (3, costs.gamma_max)
    assert three.verify[0] == all_.verify[0][:4] == pytest.approx(costs.verify[0][:4])


@pytest.fixture(scope="module")
def in_setups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    models = save_models(tmp_path_factory.mktemp("models"))
    given = {"target": str(models["target"]), "prompts": str(models["prompts"]), "drafters": ("lookup",)}
    return SMALL | given | {"setups": ("fp32", "bf16"), "out": tmp_path_factory.mktemp("setups"), "limit": 8}


def test_setups_are_ranked_within_a_time_and_compared_when_all_are_there(
    in_setups: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="bf16 is left out: the time of --seconds was over"):
        rows = dg.rank(**in_setups | {"seconds": 1e-6})
    assert [(row["setup"], "error" in row) for row in rows] == [("fp32", False), ("bf16", True)]
    assert rows[0]["verdict"].startswith(f"Deploy {in_setups['out'] / 'fp32' / 'lookup'} with")
    rows = dg.rank(**in_setups, live=2)
    assert {row["setup"] for row in rows} == {"fp32", "bf16"} == {row["compression"] for row in rows}
    assert {Path(row["run"]) for row in rows} == {in_setups["out"] / name / "lookup" for name in ("fp32", "bf16")}
    assert [row["live_tokens_per_second"] for row in rows] == sorted(
        (row["live_tokens_per_second"] for row in rows), reverse=True
    )
    assert all(row["live_plain_tokens_per_second"] > 0 for row in rows)
    assert all(row["live_policy"] != "no-draft" for row in rows)
    assert f"--compression {rows[0]['setup']}" in rows[0]["deploy"]
    assert {row["agreement"] for row in rows if row["setup"] == "fp32"} == {1}
    monkeypatch.setattr(profile, "record_missing", None)  # nothing is recorded anew
    options = [
        word for name in (*SMALL, "target", "prompts", "limit", "out") for word in _option(name, in_setups[name])
    ]
    shown = draftgauge(["rank", "lookup", "--setup", "fp32,bf16", *options])
    assert shown.exit_code == 0, shown.output
    assert "best setting" in shown.stdout
    assert "draftgauge generate PROMPT" in shown.stdout


def _option(name: str, value: object) -> list[str]:
    return [f"--{name.replace('_', '-')}", str(value)]


def test_a_file_is_its_own_target_with_the_tokenizer_of_the_target_named(tmp_path: Path) -> None:
    file = tmp_path / "t.Q4_K_M.gguf"
    file.touch()
    request = RankRequest(drafters=("lookup",), target="some/target", setups=(f"gguf:{file}",), out=tmp_path / "out")
    asked = _of_setup(request, f"gguf:{file}")
    assert (asked.target, asked.setups) == (str(file), ())
    assert (asked.loading.engine, asked.loading.tokenizer) == ("gguf-fast", "some/target")
    assert asked.out.parent == tmp_path / "out"
    assert asked.out.name.endswith("t.Q4_K_M.gguf")
    folder = _of_setup(request, f"openvino:{tmp_path}")
    assert (folder.target, folder.loading.engine) == (str(tmp_path), "openvino-fast")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--setup", "bf17"], "a setup is one of uncompressed"),
        (["--setup", "gguf:"], "gguf:FILE or openvino:FOLDER"),
        (["--setup", "bf16,gguf:none.gguf"], "there is no none.gguf"),
        (["--setup", "bf16,bf16"], "each once"),
        (["--setup", "bf16", "--compression", "nf4"], "leave out --costs, --compression"),
        (["--setup", "bf16", "--costs", "lookup=x.json"], "leave out --costs, --compression"),
        (["--seconds", "0"], "--seconds must be"),
    ],
)
def test_setups_that_cannot_be_are_refused_before_anything_is_recorded(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal("rank", "lookup", *words)
    assert not (tmp_path / "rank").exists()
