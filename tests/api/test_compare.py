"""Runs side by side in tokens a second, what a compression costs in quality, and advice before costs are measured."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import draftgauge as dg
from command_line import refusal, succeeds
from draftgauge import profile
from draftgauge.cli.main import run
from draftgauge.core.errors import ModelError
from draftgauge.core.provenance import write_measurement
from draftgauge.judging.splits import design_of
from draftgauge.models.loading import wrap
from draftgauge.pair import quality
from draftgauge.pair.quality import QUALITY_NAME, compared, log_probabilities, read_quality
from draftgauge.serving.advice import cost_ranges
from draftgauge.serving.provisional import token_cost
from draftgauge.traces.costs import Measurement
from draftgauge.traces.run import COSTS_NAME, ModelEntry, PromptsEntry, Run
from draftgauge.traces.trace import accepted_lengths
from row_keys import check_keys
from synthetic import synthetic_manifest, synthetic_records
from tiny import one_pass, save_noisy, save_tiny, tiny_model, tokens
from written_runs import GAMMA_MAX, LENGTH, write_records, write_run

PROMPTS = 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one whose target is three times as fast and, of every fourth prompt, writes another second token."""
    place = tmp_path_factory.mktemp("runs")
    target = tiny_model()
    target.save_pretrained(place / "target")
    entry = ModelEntry(str(place / "target"), "t" * 8, "uncompressed", "qwen3", "lean", "float32")
    slow = write_run(place / "slow", PROMPTS, target=entry)
    costs = Run(slow).costs
    fast = {name: [[s / 3 for s in row] for row in getattr(costs, name)] for name in ("verify", "draft")}
    fast = {name: tuple(map(tuple, table)) for name, table in fast.items()} | {"plain": (costs.plain[0] / 3,)}
    records = synthetic_records(1, PROMPTS, LENGTH, GAMMA_MAX)
    for number, record in enumerate(records):
        if number % 4 == 0 and len(record.token) > 1:
            token = record.token.copy()
            token[1] = (token[1] + 1) % 50
            records[number] = replace(record, token=token, accepted=accepted_lengths(token, record.draft_token))
    manifest = synthetic_manifest(PROMPTS, GAMMA_MAX, LENGTH, target=replace(entry, compression="nf4"))
    write_records(place / "fast", manifest, records, replace(costs, compression="nf4", **fast))
    return slow, place / "fast"


def bench(path: Path, command: str, speed: float) -> Path:
    rows: list[dict[str, Any]] = [
        {"task": "all", "policy": "plain", "tokens_per_second": 50.0, "recommended": False},
        {"task": "all", "policy": "fixed:2", "tokens_per_second": speed, "recommended": True},
    ]
    write_measurement(path, command, rows)
    return path


def test_the_fastest_run_is_first_with_its_quality_its_memory_and_the_command_that_decodes_so(runs) -> None:
    slow, fast = runs
    (fast / QUALITY_NAME).write_text('{"kl": 0.25, "agreement": 0.9}')
    rows = dg.compare((slow, fast))
    assert [row["kl"] for row in rows] == [0.25, None]
    check_keys(rows, "tokens_per_second", "ratio_to_plain", "gain", "policy")
    assert [row["run"] for row in rows] == [str(fast), str(slow)]
    assert rows[0]["plain_tokens_per_second"] == pytest.approx(3 * rows[1]["plain_tokens_per_second"])
    assert (rows[0]["gain"], rows[0]["level"], rows[1]["level"]) == (0, True, False)
    traces = [design_of(Run(run).trace).trace for run in runs]
    changed = [a.tolist() != b.tolist() for a, b in zip(traces[0].outputs, traces[1].outputs, strict=True)]
    same = sum(1 if other else len(out) for other, out in zip(changed, traces[0].outputs, strict=True))
    assert 0 < sum(changed) < len(changed)
    assert [row["agreement"] for row in rows] == [pytest.approx(same / (same + sum(changed))), 1]
    assert {row["agreement_with"] for row in rows} == {str(slow)}
    assert rows[0]["weights_mib"] is None  # the draft's files are gone
    command = rows[0]["deploy"].splitlines()[-1]
    assert command.startswith("draftgauge generate PROMPT --target ")
    assert "--compression nf4" in command
    speed = f"{rows[0]['tokens_per_second']:.3g} tokens a second"
    assert f"Deploy {fast} with {rows[0]['policy']}: {speed}" in rows[0]["verdict"]
    assert f"{rows[0]['agreement']:.1%} of its tokens are those of {slow}" in rows[0]["verdict"]


def test_one_target_is_as_fast_in_every_run_of_it(runs, tmp_path: Path) -> None:
    slow, _ = runs
    busy = write_run(tmp_path / "busy", PROMPTS, target=Run(slow).manifest.target, environment={})
    costs = Run(busy).costs  # measured while the machine was half as fast
    twice = {name: tuple(tuple(2 * s for s in row) for row in getattr(costs, name)) for name in ("verify", "draft")}
    replace(costs, plain=(2 * costs.plain[0],), **twice).save(busy / COSTS_NAME)
    first, second = dg.compare((slow, busy))
    assert first["plain_tokens_per_second"] == pytest.approx(second["plain_tokens_per_second"])
    assert first["tokens_per_second"] == pytest.approx(second["tokens_per_second"])
    known = replace(Run(busy).costs, measured=Measurement(1.0, (1,) * (GAMMA_MAX + 1), 0.1))
    known.save(busy / COSTS_NAME)
    wider = next(row for row in dg.compare((slow, busy)) if row["run"] == str(busy))
    assert wider["tokens_per_second_low"] == pytest.approx(0.9 * second["tokens_per_second_low"])
    assert wider["tokens_per_second_high"] == pytest.approx(1.1 * second["tokens_per_second_high"])


def test_weights_count_as_they_are_held_and_a_file_of_llama_cpp_is_no_reference(runs, tmp_path: Path) -> None:
    target = Run(runs[0]).manifest.target
    file = tmp_path / "target.gguf"
    file.write_bytes(bytes(2**20))
    run = write_run(tmp_path / "gguf", PROMPTS, target=replace(target, source=str(file), engine="gguf"), draft=None)
    held = {
        compression: write_run(
            tmp_path / compression, PROMPTS, target=replace(target, compression=compression), draft=None
        )
        for compression in ("fp32", "bf16")
    }
    for folder in held.values():
        costs = Run(folder).folder / COSTS_NAME
        replace(dg.CostCurve.load(costs), compression=folder.name).save(costs)
    rows = {Path(row["run"]).name: row for row in dg.compare((run, *held.values()))}
    assert (rows["gguf"]["weights_mib"], rows["gguf"]["compression"]) == (1, "")
    assert rows["fp32"]["weights_mib"] == rows["bf16"]["weights_mib"] > 0  # held in their dtype, float32
    assert {row["agreement_with"] for row in rows.values()} == {str(held["fp32"])}


def test_live_figures_come_from_a_runs_folder_and_from_files_and_then_decide(runs, tmp_path: Path) -> None:
    slow, fast = (write_run(tmp_path / run.name, PROMPTS) for run in runs)
    bench(fast / "bench.json", "draftgauge bench", 60.0)
    file = bench(tmp_path / "slow.json", f"draftgauge bench {slow.parent.name}/{slow.name} --json slow.json", 90.0)
    rows = dg.compare((fast, slow), bench=(file,))
    assert [(row["run"], row["live_tokens_per_second"]) for row in rows] == [(str(slow), 90), (str(fast), 60)]
    assert {row["live_plain_tokens_per_second"] for row in rows} == {50}
    assert "90 tokens a second, live" in rows[0]["verdict"]
    assert "--policy fixed:2" in rows[0]["deploy"]
    shown = succeeds("compare", slow, fast, "--bench", file).stdout
    assert rows[0]["verdict"] in shown
    assert rows[0]["deploy"] in shown


def test_what_differs_beside_the_setup_is_said(runs, tmp_path: Path) -> None:
    slow, _ = runs
    fewer = write_run(tmp_path / "fewer", PROMPTS - 4, environment={"cpu": "another", "cores": 8})
    with pytest.warns(UserWarning, match="prompts are in every run") as warned:
        rows = dg.compare((slow, fewer))
    said = " ".join(str(each.message) for each in warned)
    assert f"{PROMPTS - 4} of {PROMPTS} prompts are in every run" in said
    assert f"{fewer} on another, 8)" in said
    assert len({row["machine"] for row in rows}) == 2
    other = write_run(tmp_path / "longer", PROMPTS, temperature=0.0, max_new_tokens=LENGTH + 1)
    with pytest.warns(UserWarning, match="differ in max_new_tokens"):
        dg.compare((slow, other))


def test_what_cannot_be_compared_is_refused_in_one_sentence(runs, tmp_path: Path) -> None:
    slow, fast = runs
    others = PromptsEntry("others.jsonl", "b" * 64, PROMPTS, ("code",))
    other = write_run(tmp_path / "other", PROMPTS)
    replace(Run(other).manifest, prompts=others).save(other)
    file = bench(tmp_path / "bench.json", "draftgauge bench elsewhere", 1.0)
    empty = tmp_path / "rows.json"
    write_measurement(empty, f"draftgauge bench {fast}", [{"task": "all", "policy": "plain"}])
    unsaid = [{"policy": "plain", "tokens_per_second": 9.0}, {"policy": "fixed:1", "recommended": True}]
    write_measurement(half := tmp_path / "half.json", f"bench {fast} '", [row | {"task": "all"} for row in unsaid])
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"rows": []}))
    for words, said in (
        ([slow], "is a single run"),
        ([slow, slow], "each once"),
        ([slow, slow / ".." / slow.name], "is a single run"),
        ([slow, other], "were recorded on other prompts (prompts.jsonl and others.jsonl)"),
        ([slow, tmp_path / "none"], "there is no folder"),
        ([slow, fast, "--bench", file], "names none of these runs"),
        ([slow, fast, "--bench", empty], "holds no live figures"),
        ([slow, fast, "--bench", half], "holds no live figures"),
        ([slow, fast, "--bench", broken], "broken.json"),
        ([slow, fast, "--tasks", "none"], "holds no task"),
        ([], "FOLDERS is required"),
    ):
        assert said in refusal("compare", *words), words
    assert np.isfinite(dg.compare(slow.parent)[0]["tokens_per_second"])  # a folder of runs


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"task": "code", "prompt": f"w{number} w2 w5"}) for number in range(3)))
    pair = {"target": str(save_tiny(folder / "target")), "drafter": str(save_noisy(folder / "draft")), "device": "cpu"}
    return pair | {"prompts": str(prompts), "max_new_tokens": 8, "gamma_max": 2, "cost_seconds": 0.2}


def test_divergence_and_agreement_are_those_of_the_definition() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.8, 0.0]]), torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.8, 0.0]])
    found = compared([(p + 1e-30).log()], [(q + 1e-30).log()])
    assert found == {"kl": pytest.approx(float(torch.tensor(2.0).log()) / 8), "agreement": 0.5, "positions": 2}
    assert compared([p.log()[:1]], [p.log()[:1]]) == {"kl": 0.0, "agreement": 1.0, "positions": 1}


@pytest.mark.parametrize("count", [1, 4])
def test_rows_are_those_behind_the_prompt(count: int) -> None:
    model, text = tiny_model(), tokens(6 + count)
    rows = log_probabilities(wrap(model), (text[:6].tolist(), text[6:].tolist()))
    torch.testing.assert_close(rows, one_pass(model, text)[5:-1].log_softmax(-1), rtol=1e-4, atol=5e-4)


def test_profile_says_what_each_compression_costs(asked: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    rows = profile(out=tmp_path, compression=("uncompressed", "int8-weight", "int4"), **asked)
    kl, agreement = ({row["compression"]: row[key] for row in rows} for key in ("kl", "agreement"))
    assert kl["uncompressed"] is agreement["uncompressed"] is None
    assert 0 < kl["int8-weight"] < kl["int4"]
    assert all(0.05 < Run(tmp_path / name).costs.peak_memory_gib < 20 for name in kl)
    assert 0 < agreement["int4"] <= agreement["int8-weight"] <= 1
    assert 3 < read_quality(tmp_path / "int4")["positions"] <= 24
    monkeypatch.setattr(quality, "load_model", None)  # known already
    again = profile(out=tmp_path, compression=("uncompressed", "int8-weight", "int4"), **asked)
    assert [row["kl"] for row in again] == [row["kl"] for row in rows]


def test_a_single_compression_is_compared_too_and_shown(asked: dict[str, Any], tmp_path: Path, capsys) -> None:
    words = [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert run(["profile", "--out", str(tmp_path), "--compression", "int4", *words]) == 0
    assert re.search(r"(?s)Quality beside speed.*KL to uncompressed", capsys.readouterr().out)
    assert read_quality(tmp_path)["kl"] > 0
    (tmp_path / QUALITY_NAME).write_text("[1")
    assert read_quality(tmp_path) == {}


def test_an_uncompressed_target_that_cannot_be_loaded_is_said(asked: dict[str, Any], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(quality, "load_model", Mock(side_effect=ModelError("it does not fit into the memory of cpu")))
    with pytest.warns(UserWarning, match="quality of int4 is not measured.*does not fit"):
        rows = profile(out=tmp_path, compression="int4", **asked)
    assert rows[0]["kl"] is None


def test_a_length_is_the_best_one_exactly_in_its_range_of_costs() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        drafted = np.append(0, np.cumsum(rng.random(6)))
        committed = 1 + np.append(0, np.cumsum(rng.random(6) * np.diff(drafted)))
        ranges = cost_ranges(committed.tolist(), drafted.tolist())
        for cost in (0.0, *rng.exponential(0.5, 20)):
            best = int(np.argmax(committed / (1 + cost * drafted)))
            holding = [
                length
                for length, of in enumerate(ranges)
                if of["best_from"] is not None
                and of["best_from"] <= cost < (math.inf if of["best_below"] is None else of["best_below"])
            ]
            assert holding == [best], (cost, ranges)
    never = cost_ranges([1.0, 1.0, 1.0], [0.0, 1.0, 2.0])  # nothing is accepted
    assert never == [{"best_from": 0.0, "best_below": None}] + 2 * [{"best_from": None, "best_below": None}]
    assert cost_ranges([1.0, 1.0], [0.0, 0.0])[0] == {"best_from": 0.0, "best_below": None}  # nothing is drafted


@pytest.mark.parametrize(
    ("engine", "measured"),
    [
        ("vllm", "`draftgauge costs --start --engine vllm --target "),
        ("llama-server", "--target TARGET.gguf --drafter DRAFT.gguf --out llama-server-costs.json`"),
        ("sglang", "takes there to sglang-costs.json (docs/costs.md shows"),
        ("gguf", "`draftgauge profile --target TARGET.gguf"),
    ],
)
def test_an_engine_without_costs_gets_advice_from_acceptance_and_the_command_that_settles_it(
    engine: str, measured: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", 40)
    rows = dg.advise(run, engine=engine)
    assert [row["policy"] for row in rows] == ["plain", *(f"fixed:{n}" for n in range(1, GAMMA_MAX + 1))]
    cost = token_cost(design_of(Run(run).trace).trace, Run(run).costs)
    assert cost == pytest.approx(0.3, abs=0.01)  # a drafted token takes 2 ms and its verification 1 of 10
    speeds = [row["tokens_per_step"] / (1 + cost * row["drafted_per_step"]) for row in rows]
    (best,) = (row for row in rows if row["recommended"])
    assert rows.index(best) == int(np.argmax(speeds)) > 0
    assert best["best_from"] <= cost < best["best_below"]
    assert (best["known"], best["ratio_to_plain"], best["tokens_per_second"]) == (False, None, None)
    assert f"draft with {best['policy']}" in best["verdict"]
    assert f"From {rows[0]['best_from']:.3f} on no length pays" in best["verdict"]
    assert measured in best["verdict"]
    if engine != "gguf":
        assert f"`draftgauge advise {run} --engine {engine} --costs {engine}-costs.json`" in best["verdict"]
        settings = tmp_path / "settings.json"
        shown = succeeds("advise", run, "-e", engine, "--settings", settings).stdout
        assert best["verdict"] in shown
        assert best["flags"] in shown
        assert str(rows.index(best)) in json.dumps(json.loads(settings.read_text()))
