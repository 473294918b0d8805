"""Datastores from the command line and from Python: made of runs, given to replay and bench, grown by generate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import draftgauge as package
from command_line import invoke, refusal, rows_of, succeeds
from draftgauge.core.errors import DraftgaugeError
from draftgauge.models.tokenizer import vocabulary_digest
from draftgauge.pair.loading import Pair
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.datastore import Datastore, prompt_digest
from draftgauge.traces.run import COSTS_NAME, read_trace
from written_runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 prompts, 8 of each split, of the vocabulary "words"."""
    run = write_run(tmp_path_factory.mktemp("runs") / "run", 24)
    replace(CostCurve.load(run / COSTS_NAME), vocabulary="words").save(run / COSTS_NAME)
    return run


def test_a_datastore_holds_the_outputs_of_training_prompts(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.parquet"
    result = succeeds("datastore", "build", run, "--out", path, "--json", tmp_path / "rows.json")
    trace = read_trace(run)
    held = {each.prompt: each.tokens for each in Datastore.load(path, "words").outputs}
    assert len(held) == 8
    for row, prompt in enumerate(trace.prompts):
        output = tuple(trace.token[trace.offsets[row] : trace.offsets[row + 1]].tolist())
        assert held.get(prompt_digest(prompt.prompt_token)) == (output if prompt.split == "train" else None)
    (row,) = rows_of(tmp_path / "rows.json")
    assert (row["outputs"], row["tokens"], row["capacity"]) == (8, sum(map(len, held.values())), 1 << 17)
    assert (row["left_out"], "did not fit" in result.output) == (0, False)
    rows = package.build_datastore(run, out=path, split="all", capacity=100)
    assert rows[0]["tokens"] <= rows[0]["capacity"] == 100
    assert 0 < rows[0]["left_out"] == len(trace.prompts) - rows[0]["outputs"]
    small = invoke("datastore", "build", run, "--out", tmp_path / "small.parquet", "--capacity", "50")
    assert "outputs, the oldest, did not fit: raise --capacity" in " ".join(small.output.split())


def test_replay_looks_in_it_and_names_its_size(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.parquet"
    package.build_datastore(run, out=path)
    tokens = Datastore.load(path, "words").tokens
    specs = ("-p", "lookup:least=1", "-p", "fixed:2")
    for given in ((), ("--datastore", path)):
        succeeds("replay", run, *specs, *given, "--json", tmp_path / f"{len(given)}.json")
    without, with_ = (
        {row["policy"]: row for row in rows_of(tmp_path / f"{count}.json") if row["task"] == "all"} for count in (0, 2)
    )
    assert {row["datastore_tokens"] for row in with_.values()} == {tokens}
    assert with_["fixed:2"]["tokens_per_second"] == without["fixed:2"]["tokens_per_second"]
    assert with_["lookup:least=1"]["appended_per_step"] > without["lookup:least=1"]["appended_per_step"]
    bound = "hindsight-two-sources"
    assert with_[bound]["tokens_per_second"] >= without[bound]["tokens_per_second"]
    tuned = package.replay(run, policies=("lookup",), datastore=path, tune=True)
    assert {row["datastore_tokens"] for row in tuned} == {tokens}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "lookup", "--split", "train"), "outputs of 8 of the 8 prompts"),
        (("-p", "lookup", "--split", "all"), "outputs of 8 of the 24 prompts"),
        (("-p", "fixed:2"), "looks tokens up"),
        (("-p", "lookup", "--batches", "1,2"), "leave out --datastore"),
    ],
)
def test_replay_refuses_a_datastore_that_would_cheat_or_do_nothing(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    path = tmp_path / "store.parquet"
    package.build_datastore(run, out=path)
    assert words in refusal("replay", run, *arguments, "--datastore", path)


def test_bad_input_is_refused(run: Path, tmp_path: Path) -> None:
    assert "datastore build" in refusal("replay", run, "-p", "lookup", "--datastore", tmp_path / "none")
    build = ("datastore", "build", "--out", tmp_path / "s")
    assert "capacity must be at least 1" in refusal(*build, run, "--capacity", "0")
    assert "vocabulary" in refusal(*build, write_run(tmp_path / "unnamed", 24))
    assert not (tmp_path / "s").exists()
    assert "dev" in refusal(*build, run, "--split", "dev")


def test_generate_looks_in_it_and_adds_to_it(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.parquet"
    vocabulary = vocabulary_digest(pair.tokenizer)
    prompts = [list(range(3, 20)), list(range(30, 50)), list(range(3, 20))]
    appended, plain = [], []
    for number, prompt in enumerate(prompts):
        result = package.generate(pair, prompt, policy="lookup", max_new_tokens=24, datastore=path)
        assert result.text == package.generate(pair, prompt, policy="plain", max_new_tokens=24).text
        plain.append(result.tokens)
        appended.append(sum(step.accepted_text for step in result.steps))
        held = Datastore.load(path, vocabulary)
        assert held.outputs[-1].tokens == tuple(result.tokens)
        assert len(held.outputs) == min(number + 1, 2)
    assert appended[2] > appended[0]  # asked again, the answer is there
    with pytest.raises(DraftgaugeError, match="plain decoding"):
        package.generate(pair, prompts[0], policy="plain", datastore=path)
    with pytest.raises(DraftgaugeError, match="looks tokens up"):
        package.generate(pair, prompts[0], policy="fixed:2", max_new_tokens=24, datastore=path)


def test_generate_refuses_a_datastore_of_another_tokenizer(run: Path, pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "store.parquet"
    package.build_datastore(run, out=path)
    before = path.read_bytes()
    with pytest.raises(DraftgaugeError, match="another tokenizer"):
        package.generate(pair, [5, 6, 7], policy="lookup", datastore=path)
    assert path.read_bytes() == before
    blocked = tmp_path / "store.parquet" / "below" / "store.parquet"
    with pytest.raises(DraftgaugeError, match="a file where a folder is needed"):
        package.generate(pair, [5, 6, 7], policy="lookup", datastore=blocked)


def test_bench_looks_in_it_adds_nothing_and_refuses_its_own_prompts(pair: Pair, tmp_path: Path) -> None:
    path, prompts = tmp_path / "store.parquet", tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": words}) + "\n" for words in ("one two three", "four five six")))
    models = {"target": pair.target_name, "drafter": pair.draft_name, "device": "cpu"}
    options = models | {"prompts": prompts, "max_new_tokens": 12, "rounds": 1, "baselines": False}
    package.generate(pair, "another one", policy="lookup", max_new_tokens=12, datastore=path)
    before = path.read_bytes()
    rows = package.bench(policies=("lookup", "fixed:2"), datastore=path, **options)
    assert {row["mismatches"] for row in rows} == {0}
    assert path.read_bytes() == before
    package.generate(pair, "one two three", policy="lookup", max_new_tokens=12, datastore=path)
    with pytest.raises(DraftgaugeError, match="outputs of 1 of the 2 prompts"):
        package.bench(policies=("lookup",), datastore=path, **options)
