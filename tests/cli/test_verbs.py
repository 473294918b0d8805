"""The verbs from the command line on tiny models and written traces: what they write, warn of and refuse."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from command_line import invoke, refusal, rows_of, succeeds
from draftgauge.api.fit import FITS
from draftgauge.cli import generate as cli_generate
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import TRAIN
from draftgauge.judging.splits import prompt_key
from draftgauge.policies.fitted import FITTED, FittedPolicy, load_fitted, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.run import Manifest, read_trace
from draftgauge.traces.shards import read_parquet, write_parquet
from tiny import save_tiny
from written_runs import GAMMA_MAX, write_run


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Llama target, and a draft with fewer layers."""
    folder = tmp_path_factory.mktemp("pair")
    draft = save_tiny(folder / "draft", "llama", num_hidden_layers=1)
    return {"target": save_tiny(folder / "target", "llama"), "draft": draft}


def test_generate_with_and_without_speculation_agree(pair: dict[str, Path]) -> None:
    common = ("generate", "abc def", "--target", pair["target"], "--drafter", pair["draft"], "--device", "cpu")
    plain, drafted = (succeeds(*common, "--max-new-tokens", 10, "-p", policy) for policy in ("plain", "fixed:3"))
    assert plain.stdout.strip()
    assert drafted.stdout == plain.stdout
    assert " steps (1.00 a step)" in plain.stderr
    one = invoke(*common, "--max-new-tokens", 1, "-p", "plain")
    assert "1 token in 1 step (1.00 a step)" in one.stderr


def test_without_colours_drafts_are_shown_by_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = {"accepted": "The", "text": " lunch", "corrected": " is", "bonus": " in", "plain": " room"}
    shown = {}
    for colours in (None, "truecolor"):
        console = Console(color_system=colours, force_terminal=colours is not None)
        monkeypatch.setattr(cli_generate, "console", console)
        for origin, piece in pieces.items():
            cli_generate.show_text(piece, origin)
        shown[colours] = capsys.readouterr().out, str(cli_generate.legend())
    marked, legend = shown[None]
    assert marked == "·The~ lunch! is+ in room"
    assert "~ accepted from the text itself  ! the target's" in legend
    coloured, legend = shown["truecolor"]
    assert "\x1b[32mThe\x1b[0m" in coloured
    assert "accepted from the draft  accepted from the text itself" in legend


def test_tabs_and_line_ends_of_an_answer_stay(capsys: pytest.CaptureFixture[str]) -> None:
    for plain in (True, False):
        cli_generate.show_text("if x:\r\n\ty\t= 1", "plain", plain)
        assert capsys.readouterr().out == "if x:\r\n\ty\t= 1"


@pytest.mark.parametrize("given", ["caf\udce9", "-"])
def test_a_prompt_of_another_encoding_is_refused(
    given: str, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    models = ["--target", pair["target"], "--drafter", pair["draft"]]
    assert "not UTF-8" in refusal("generate", given, *models, "--device", "cpu")


def test_a_dash_is_standard_input_as_the_prompt_alone(pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Mock(side_effect=DraftgaugeError("noted"))
    monkeypatch.setattr("draftgauge.api.generate.generate", noted)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"typed"), encoding="utf-8"))
    assert invoke("generate", "-", "--stop", "-", "--stop", "b", "--system", "-").exit_code == 2
    (asked,) = noted.call_args.args
    assert (asked.prompt, asked.stop, asked.conversation.system) == ("typed", ("-", "b"), "-")


def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert "name a file" in refusal("replay", str(tmp_path / "none"), "--json", "-")
    said = refusal("replay", str(tmp_path / "none"), "--json", str(tmp_path / "new" / "rows.json"))
    assert "cannot write" in said
    assert "Permission denied" in said


def test_a_json_file_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    run, file = write_run(tmp_path / "run", 8), tmp_path / "a.json"
    file.write_text("{}")
    for words in (["replay", str(run), "--policy", str(file)], ["bench", "--prompts", str(file)]):
        assert "is one of the files to read" in refusal(*words, "--json", str(file))
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("notes.txt", "is not a model folder"),
        ("drafter.json", "not a trained drafter"),
        ("manifest.json", "a recorded run"),
    ],
)
def test_a_folder_that_is_no_model(name: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    said = refusal("generate", "hi", "--drafter", str(tmp_path))
    assert str(tmp_path) in said
    assert hint in said


def test_a_model_that_is_neither_here_nor_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig, AutoTokenizer

    unreachable = Mock(side_effect=OSError("We couldn't connect to 'https://a.hub' to load the files"))
    for auto in (AutoConfig, AutoTokenizer):
        monkeypatch.setattr(auto, "from_pretrained", unreachable)
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", unreachable)
    assert "nothere is no folder here" in refusal("generate", "hi", "--target", "nothere")


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


KEYS = {"policy", "compression", "task", "split", "tokens_per_step", "tokens_per_second"}
KEYS |= {"gain", "gain_low", "gain_high", "captured"}


@pytest.fixture
def fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FittedPolicy:
    """A kind of policy that is fitted to draft two tokens."""
    monkeypatch.setitem(FITTED, "two", (lambda *given: FixedLength(2), ()))
    return FittedPolicy("two", GAMMA_MAX, (), {}, trained_on=("code/p0", "math/p1", "chat/p2", "elsewhere/p8"))


def test_test_prompts_are_judged_on_where_there_are_training_ones(run: Path, tmp_path: Path) -> None:
    result = succeeds("replay", run, "-p", "fixed", "-p", "cumulative-confidence", "--json", tmp_path / "r.json")
    assert "warning" not in result.stderr
    rows = rows_of(tmp_path / "r.json")
    assert all(set(row) >= KEYS for row in rows)
    assert {row["task"] for row in rows} == {"code", "math", "chat", "summarization", "all"}
    pooled = {row["policy"]: row for row in rows if row["task"] == "all"}
    assert set(pooled) == {"no-draft", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "cumulative-confidence", "hindsight"}
    assert {(row["split"], row["prompts"], row["best_fixed_from"]) for row in pooled.values()} == {("test", 8, "train")}
    best = pooled["hindsight"]["best_fixed_gamma"]
    assert pooled[f"fixed:{best}" if best else "no-draft"]["gain"] == 0
    assert pooled["hindsight"]["captured"] == pytest.approx(1)
    assert "Test prompts" in result.stdout


def test_all_prompts_on_demand(run: Path, tmp_path: Path) -> None:
    succeeds("replay", run, "--split", "all", "-p", "no-draft", "--json", tmp_path / "r.json")
    rows = [row for row in rows_of(tmp_path / "r.json") if row["task"] == "all"]
    assert {(row["split"], row["prompts"], row["best_fixed_from"]) for row in rows} == {("all", 24, "same prompts")}


def test_prompts_that_a_policy_was_fitted_on_are_counted(run: Path, tmp_path: Path, fitted: FittedPolicy) -> None:
    save_fitted(fitted, tmp_path / "two.json")
    unseen = succeeds("replay", run, "-p", tmp_path / "two.json")
    assert "warning" not in unseen.stderr
    seen = succeeds("replay", run, "-p", tmp_path / "two.json", "--split", "all")
    assert "two.json was fitted on 3 of the 24 prompts that it is evaluated on" in seen.message


def test_costs_of_another_device_are_pointed_out(tmp_path: Path) -> None:
    result = succeeds("replay", write_run(tmp_path / "run", 8, device="cuda"), "-p", "no-draft")
    assert "warning" in result.stderr
    assert "are of lean on cuda, its trace is of lean on cpu" in result.message


def refused(kept: Path, *arguments: object) -> str:
    """The message of a refusal that left an earlier result as it was."""
    said = refusal("replay", *arguments, "--json", kept)
    assert kept.read_text() == "precious"
    return said


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A result of an earlier command."""
    path = tmp_path / "r.json"
    path.write_text("precious")
    return path


def test_a_trace_without_a_column_is_refused(run: Path, tmp_path: Path, kept: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shard = tmp_path / "run" / "positions-00000.parquet"
    write_parquet(shard, read_parquet(shard).drop_columns(["margin"]))
    assert "margin" in refused(kept, tmp_path / "run", "-p", "cumulative-confidence")


@pytest.mark.parametrize("change", [{"gamma_max": 9}, {"policy": "three"}])
def test_a_policy_fitted_for_something_else_is_refused(
    run: Path, tmp_path: Path, kept: Path, fitted: FittedPolicy, change: dict[str, Any]
) -> None:
    save_fitted(replace(fitted, **change), tmp_path / "p.json")
    said = refused(kept, run, "-p", tmp_path / "p.json")
    assert ("gamma_max 9" if "gamma_max" in change else "'three'") in said


def test_too_few_test_prompts_say_what_to_do(tmp_path: Path, kept: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    shown = succeeds("replay", run, "-p", "no-draft").stdout
    assert shown.startswith("\nAll prompts")  # by themselves all are judged then
    said = refused(kept, run, "-p", "no-draft", "--split", "test")
    assert "4 of the 20 recorded prompts are test prompts, and it takes 8 or more: record more test prompts" in said
    assert "or take all of them together with --split all" in said


def test_a_policy_fitted_on_another_pair_is_named(run: Path, tmp_path: Path, fitted: FittedPolicy) -> None:
    manifest = Manifest.load(run)
    assert manifest.draft is not None
    own = {"target": manifest.target.fingerprint, "draft": manifest.draft.fingerprint}
    for name, pair in (("own", own), ("older", None), ("other", own | {"draft": "another"}), ("edited", "x")):
        provenance = {"target": "a-target", "draft": "a-draft"} | ({} if pair is None else {"pair": pair})
        save_fitted(replace(fitted, provenance=provenance), tmp_path / f"{name}.json")
        said = succeeds("replay", run, "-p", tmp_path / f"{name}.json", "--split", "all").message
        assert ("was fitted on another pair (a-target and a-draft)" in said) == (name in ("other", "edited"))


def test_where_rules_are_tuned_is_said(tmp_path: Path) -> None:
    few = write_run(tmp_path / "run", 4)
    everything = ("replay", few, "-p", "no-draft", "--split", "all")
    said = " ".join(succeeds(*everything, "--tune").stdout.split())
    assert "chosen on these prompts: " in said
    assert ", as are the parameters of tuned rules" in said
    assert "tuned rules" not in succeeds(*everything).stdout
