"""``draftgauge compare``: runs side by side in tokens a second, what to deploy, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgauge as dg
from command_line import refusal, succeeds
from draftgauge.core.provenance import write_measurement
from draftgauge.judging.splits import design_of
from draftgauge.pair.quality import QUALITY_NAME
from draftgauge.traces.costs import Measurement
from draftgauge.traces.run import COSTS_NAME, ModelEntry, PromptsEntry, Run
from draftgauge.traces.trace import accepted_lengths
from row_keys import check_keys
from synthetic import synthetic_manifest, synthetic_records
from tiny import tiny_model
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
