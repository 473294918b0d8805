"""``draftgauge fit`` on written traces: what it writes serves ``replay``, what it cannot fit is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import invoke, refusal, rows_of, succeeds
from draftgauge.api.fit import FITS
from draftgauge.core.prompts import TRAIN
from draftgauge.judging.splits import prompt_key
from draftgauge.policies.fitted import load_fitted
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.run import read_trace
from written_runs import GAMMA_MAX, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 prompts, 8 of each split."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", 24)


@pytest.mark.parametrize("policy", FITS)
def test_what_is_fitted_is_replayed_on_prompts_it_never_saw(run: Path, tmp_path: Path, policy: str) -> None:
    out = tmp_path / "p.json"
    succeeds("fit", run, "--policy", policy, "--out", out, "--json", tmp_path / "fit.json")
    fitted = load_fitted(out)
    assert fitted.policy == policy
    assert fitted.gamma_max == GAMMA_MAX
    assert set(fitted.trained_on) == {prompt_key(p) for p in read_trace(run).prompts if p.split == TRAIN}
    (validated,) = rows_of(tmp_path / "fit.json")
    assert (validated["split"], validated["prompts"], validated["trained_prompts"]) == ("validation", 8, 8)

    result = succeeds("replay", run, "--policy", out, "--json", tmp_path / "r.json")
    assert "warning" not in result.stderr
    row = next(r for r in rows_of(tmp_path / "r.json") if r["policy"] == str(out) and r["task"] == "all")
    assert row["split"] == "test"
    assert row["gain_low"] <= row["gain"] <= row["gain_high"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--split", "test"), "--split is train or all"), (("--policy", "fixed"), "nothing to fit in policy 'fixed'")],
)
def test_what_cannot_be_fitted_leaves_the_file_as_it_was(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    out = tmp_path / "p.json"
    out.write_text("mine")
    assert says in refusal("fit", run, *arguments, "--out", out)
    assert out.read_text() == "mine"


def test_the_file_is_named_json_and_prompts_are_enough(run: Path, tmp_path: Path) -> None:
    assert ".json file to write" in refusal("fit", run, "--out", tmp_path / "policy.pt")
    few = write_run(tmp_path / "few", 6)
    assert "8 or more" in refusal("fit", few, "--out", tmp_path / "p.json")
    assert "too few to fit on" in refusal("fit", few, "--split", "all", "--out", tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()


def test_what_is_said_to_come_next_can_be_done(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    assert f"draftgauge replay {run} --policy {out}" in invoke("fit", run, "--out", out).stdout
    few = write_run(tmp_path / "few", 20)  # 4 test prompts
    said = invoke("fit", few, "--out", out).stdout
    assert "Too few test prompts" in said
    assert f"replay {few}" not in said
    for judging in ("replay", "report"):
        assert "--split all" in refusal(judging, few, "--policy", out)
        assert "it is evaluated on" in succeeds(judging, few, "--policy", out, "--split", "all").stderr


def test_an_engine_has_a_rule_fitted_to_its_own_costs(run: Path, tmp_path: Path) -> None:
    """Where a drafted token costs as much as verifying one, and in the loop a tenth, the draft model is not asked."""
    costs, out = tmp_path / "costs.json", tmp_path / "p.json"
    dear = tuple(0.01 * tokens for tokens in range(3))
    served = {"plain": (0.01,), "verify": ((0.01, 0.02, 0.03),), "draft": (dear,), "drafted_by": "draftgauge"}
    EngineCosts("vllm", (1,), **served).save(costs)
    fitting = ("fit", run, "-p", "two-source", "--costs", costs, "-e", "vllm", "--out", out)
    following = " ".join(succeeds(*fitting).output.partition("Next: draftgauge ")[2].split())
    assert out.name in succeeds(*following.split()).output  # and not `replay`, whose drafts may be longer
    assert load_fitted(out).gamma_max == 2
    assert set(load_fitted(out).parameters["accepted_by_depth"]) == {0.0}
    succeeds("fit", run, "-p", "two-source", "--out", out)
    assert max(load_fitted(out).parameters["accepted_by_depth"]) > 0
    write_run(tmp_path / "two" / "a", 24)
    write_run(tmp_path / "two" / "b", 24)
    assert "--costs are of one target" in refusal("fit", tmp_path / "two", "--costs", costs, "-e", "vllm", "--out", out)
    assert "holds the costs of vllm" in refusal("fit", run, "--costs", costs, "--out", out)


def test_two_sources_are_compared_with_the_best_simple_rule(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    succeeds("fit", run, "--policy", "two-source", "--out", out, "--json", tmp_path / "fit.json")
    (row,) = rows_of(tmp_path / "fit.json")
    assert row["best_rival"].partition(":")[0] in ("cumulative-confidence", "lookup", "lookup-else-stopping")
    assert row["gain_over_rival_low"] <= row["gain_over_rival"] <= row["gain_over_rival_high"]
    succeeds("replay", run, "--policy", "lookup:least=1", "--json", tmp_path / "r.json")
    rows = rows_of(tmp_path / "r.json")
    assert {"hindsight-two-sources"} <= {row["policy"] for row in rows}
    assert all({"source_model", "source_text", "distinct_4grams"} <= row.keys() for row in rows)
