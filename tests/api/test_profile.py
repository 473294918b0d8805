"""Profiling: everything checked first, resumable after a kill at any moment, and the same rows in the end."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgauge.api.bench import bench
from draftgauge.api.profile import profile, profile_rows
from draftgauge.core.errors import DraftgaugeError, ModelError, PromptError, TraceError
from draftgauge.judging.evaluate import evaluate
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.pair import recording
from draftgauge.pair.loading import load_pair, load_pair_of
from draftgauge.pair.prompts import prompts_of
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import Manifest, Run, read_trace
from small_profiles import SMALL, save_models
from small_profiles import record as record_small
from synthetic import same_rows
from tiny import save_tiny

PROMPTS = 7


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return save_models(tmp_path_factory.mktemp("models"), ["test"] * 4 + ["train"] * (PROMPTS - 4))


def run(models: dict[str, Any], out: Path, **options: Any) -> list[Path]:
    rows = profile(**(models | {"out": out} | SMALL | options))
    return list(dict.fromkeys(Path(row["run"]) for row in rows))


@pytest.fixture(scope="module")
def whole(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    return run(models, tmp_path_factory.mktemp("whole"))[0]


def test_a_run_holds_trace_costs_and_manifest(models: dict[str, Any], whole: Path) -> None:
    trace, costs, manifest = read_trace(whole), CostCurve.load(whole / "costs.json"), Manifest.load(whole)
    assert [p.index for p in trace.prompts] == list(range(PROMPTS))
    assert (trace.gamma_max, costs.gamma_max, trace.max_new_tokens) == (3, 3, 8)
    assert [p.task for p in trace.prompts[:2]] == ["even", "odd"]
    assert trace.prompts[0].prompt_tokens == len("prompt number 0")
    assert trace.accepted.max() > 0
    assert manifest.complete
    assert manifest.prompts.count == PROMPTS
    assert manifest.target.source == str(models["target"])
    assert (manifest.target.engine, manifest.target.family, manifest.target.dtype) == ("lean", "qwen3", "float32")
    told = profile_rows([whole])[-1]
    bound = evaluate(trace, costs, {"hindsight": hindsight_optimum(trace, costs)})[-1]
    assert told["best_fixed_gamma"] == bound["best_fixed_gamma"]
    assert told["hindsight_gain"] == pytest.approx(bound["gain"])


def test_a_run_finds_its_pair_and_prompts_again(whole: Path) -> None:
    manifest = Manifest.load(whole)
    assert manifest.draft is not None
    entries = {role: replace(getattr(manifest, role), engine="modules") for role in ("target", "draft")}
    pair = load_pair_of(replace(manifest, **entries))
    assert pair.target.spec.engine == "modules"  # as it was recorded
    found = prompts_of(Run(whole))
    assert [len(tokens) for _, tokens in found] == [p.prompt_tokens for p in read_trace(whole).prompts]


def test_a_run_names_the_tokenizer_that_was_given(models: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    assert Manifest.load(whole).tokenizer is None
    bare = tmp_path / "bare"
    shutil.copytree(models["target"], bare, ignore=shutil.ignore_patterns("tokenizer*"))
    recorded = run(models | {"target": bare}, tmp_path / "run", tokenizer=str(models["drafter"]), limit=2)[0]
    manifest = Manifest.load(recorded)
    assert manifest.tokenizer == str(models["drafter"])
    assert len(prompts_of(Run(recorded))) == 2


class Interrupt:
    """A progress callback that raises as soon as so many prompts are recorded."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.seen: list[tuple[str, int, int]] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.seen.append((what, done, total))
        if what.startswith("record") and done >= self.after:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_where_it_stopped(models: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        run(models, tmp_path / "run", progress=Interrupt(5))
    assert str(tmp_path / "run") in caught.value.__notes__[0]
    with pytest.raises(TraceError, match="incomplete"):
        read_trace(tmp_path / "run")
    again = Interrupt(99)
    run(models, tmp_path / "run", progress=again)
    assert [done for what, done, _ in again.seen if what == "record uncompressed"] == [5, 6, 7]
    assert same_rows(read_trace(tmp_path / "run"), read_trace(whole))


def test_an_interrupt_while_measuring_leaves_the_run_incomplete(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recording, "measured", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(models, tmp_path)
    assert not Manifest.load(tmp_path).complete
    run(models, tmp_path)
    assert Manifest.load(tmp_path).complete
    assert CostCurve.load(tmp_path / "costs.json").gamma_max == 3


def test_what_a_run_keeps_of_how_it_was_made(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Benched from any folder, by the tokens of its trace; resumed without a new prompt; code that was allowed."""
    monkeypatch.chdir(Path(models["prompts"]).parent)
    monkeypatch.setattr("sys.argv", ["/x/ipykernel_launcher.py", "-f", "k.json"])
    monkeypatch.setattr("sys.ps1", "In : ", raising=False)
    given = models | {"prompts": Path(models["prompts"]).name}
    (out,) = run(given, tmp_path / "run", seconds=1e-9, allow_pickle=True)
    manifest = Manifest.load(out)
    assert manifest.command.startswith("draftgauge.profile(")
    assert f"prompts={given['prompts']!r}" in manifest.command
    assert manifest.code_options == ("--allow-pickle",)
    old = replace(manifest, allowed=None, command="draftgauge profile --trust-remote-code")
    assert old.code_options == ("--trust-remote-code",)
    with monkeypatch.context() as patch:  # no prompt is recorded, so nothing is measured
        patch.setattr("draftgauge.api.profile.measure_pair", None)
        run(given, out, seconds=1e-9)
    monkeypatch.chdir(tmp_path)
    assert {row["prompts"] for row in bench(out, ["no-draft"], baselines=False, rounds=1)} == {1}


def test_a_finished_run_is_not_recorded_again(models: dict[str, Any], whole: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir()}
    told = Interrupt(0)
    assert run(models, whole, progress=told) == [whole]
    assert told.seen == []
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir()} == before
    (whole / "costs.json").write_text("{}")
    run(models, whole)
    assert CostCurve.load(whole / "costs.json").gamma_max == 3
    with pytest.warns(UserWarning, match="are of modules on cpu, its trace is of lean on cpu"):
        run(models, whole, measure=True, engine="modules")
    assert CostCurve.load(whole / "costs.json").engine == "modules"
    run(models, whole, measure=True)
    assert CostCurve.load(whole / "costs.json").engine == "lean"


def test_recording_ends_with_its_time_and_goes_on_when_asked_again(
    models: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    (folder,) = run(models, tmp_path / "run", seconds=1e-9)
    assert Manifest.load(folder).complete
    assert len(read_trace(folder).prompts) == 1  # one is always finished
    assert CostCurve.load(folder / "costs.json").gamma_max == 3
    run(models, tmp_path / "run", seconds=1e-9, cost_seconds=0)
    assert [prompt.index for prompt in read_trace(folder).prompts] == [0]  # nothing more in no time
    run(models, tmp_path / "run", seconds=600)
    assert same_rows(read_trace(folder), read_trace(whole))


def test_several_compressions_have_a_folder_each(models: dict[str, Any], tmp_path: Path) -> None:
    folders = run(models, tmp_path, compression=("uncompressed", "bf16"), limit=2)
    assert folders == [tmp_path / "uncompressed", tmp_path / "bf16"]
    for folder in folders:
        trace, costs = read_trace(folder), CostCurve.load(folder / "costs.json")
        assert {Manifest.load(folder).target.compression, trace.compression, costs.compression} == {folder.name}
        assert len(trace.prompts) == 2
    half = Manifest.load(tmp_path / "bf16")
    assert (half.target.dtype, half.draft.dtype, half.draft.compression) == ("bfloat16", "bfloat16", "bf16")
    with pytest.raises(TraceError, match="a folder for each"):
        run(models, tmp_path)


def test_prompt_lookup_needs_no_draft(models: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "twice.jsonl").write_text(json.dumps({"prompt": "ab ab ab ab ab ab"}))
    twice = models | {"drafter": "prompt_lookup", "prompts": tmp_path / "twice.jsonl"}
    run(twice, tmp_path, max_new_tokens=32)
    manifest, trace = Manifest.load(tmp_path), read_trace(tmp_path)
    assert manifest.draft is None
    assert manifest.drafter == "prompt_lookup"
    assert (trace.drafted > 0).any()


def test_prompts_are_chosen(models: dict[str, Any], tmp_path: Path) -> None:
    run(models, tmp_path / "one", tasks=["odd"], split="test")
    assert [p.index for p in read_trace(tmp_path / "one").prompts] == [1, 3]
    run(models, tmp_path / "two", per_task=1, split="test")
    assert [p.index for p in read_trace(tmp_path / "two").prompts] == [0, 1]
    run(models, tmp_path / "two", limit=3)  # more of the same file extends the run
    assert [p.index for p in read_trace(tmp_path / "two").prompts] == [0, 1, 2]
    with pytest.warns(UserWarning, match=r"holds more prompts than are asked for now \(1\), which count too") as warned:
        run(models, tmp_path / "two", limit=2)
    assert Path(warned[0].filename) == Path(__file__)
    run(models, tmp_path / "three", per_task=1)  # of every split
    assert [p.index for p in read_trace(tmp_path / "three").prompts] == [0, 1, 4, 5]


def test_long_prompts(models: dict[str, Any], tmp_path: Path) -> None:
    prompts = tmp_path / "long.jsonl"
    prompts.write_text(
        '{"prompt": "short"}\n{"prompt": "%s", "id": "wordy"}\n' % ("x" * 110 + "0123456789")
    )  # the models take 128
    mixed = models | {"prompts": prompts}
    with pytest.raises(PromptError, match=r"wordy \(120 tokens\).*truncate.*skip"):
        run(mixed, tmp_path / "error", max_new_tokens=20)
    assert not (tmp_path / "error").exists()
    run(mixed, tmp_path / "skip", max_new_tokens=20, long_prompts="skip")
    assert [p.prompt_tokens for p in read_trace(tmp_path / "skip").prompts] == [5]
    with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the 108 tokens .* beginning is left out"):
        run(mixed, tmp_path / "truncate", max_new_tokens=20, long_prompts="truncate")
    assert [p.prompt_tokens for p in read_trace(tmp_path / "truncate").prompts] == [5, 108]
    with pytest.raises(PromptError, match="lower it"):
        run(mixed, tmp_path / "none", max_new_tokens=128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "int3"}, "unknown compression 'int3'.*nf4"),
        ({"compression": ()}, "at least one compression"),
        ({"compression": ("uncompressed", "uncompressed")}, "each once"),
        ({"drafter": "oracle"}, "unknown drafter 'oracle'"),
        ({"prompts": Path("nowhere.jsonl")}, "no prompt file nowhere.jsonl"),
        ({"tasks": ["poetry"]}, "no task 'poetry'"),
        ({"gamma_max": 100}, "lower gamma_max"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    models: dict[str, Any], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        run(models, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_folder_of_another_run_is_left_alone(models: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in whole.iterdir())
    with pytest.raises(TraceError, match=r"another run.*gamma_max"):
        run(models, whole, gamma_max=4)
    with pytest.raises(TraceError, match="one compression"):
        run(models, whole, compression=("uncompressed", "bf16"))
    assert sorted(path.name for path in whole.iterdir()) == before
    run(models, tmp_path, compression=("uncompressed", "bf16"), limit=1)
    replace(Manifest.load(tmp_path / "bf16"), gamma_max=5).save(tmp_path / "bf16")
    with pytest.raises(TraceError, match="another run"):  # of the second folder, before the first is touched
        run(models, tmp_path, compression=("uncompressed", "bf16"), limit=2)
    assert len(read_trace(tmp_path / "uncompressed").prompts) == 1


def test_widths_that_nf4_cannot_take_are_found_before_recording(models: dict[str, Any], tmp_path: Path) -> None:
    narrow = save_tiny(tmp_path / "narrow", hidden_size=48)
    with pytest.raises(ModelError, match="divisible by 64"):
        run(models | {"target": narrow, "drafter": narrow}, tmp_path / "out", compression=("uncompressed", "nf4"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_run_does_not_go_on_with_another_tokenizer_or_template(tmp_path: Path, name: str) -> None:
    models = save_models(tmp_path)
    record_small(models, tmp_path / "run", limit=2)
    changed = Path(models["target"]) / name
    changed.write_text((changed.read_text() if changed.exists() else "{{ messages[0].content }}") + " ")
    with pytest.raises(TraceError, match=r"the trace of another run .*target.fingerprint"):
        record_small(models, tmp_path / "run", limit=3)


def test_a_file_for_a_folder_is_refused_before_anything_is_loaded(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftgauge.api.profile.load_pair", lambda *_: pytest.fail("it was loaded"))
    (tmp_path / "run").write_text("kept")
    with pytest.raises(DraftgaugeError, match="run is a file where a folder is needed"):
        record_small(models, tmp_path / "run", limit=3)


def test_a_loaded_pair_is_profiled(models: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    pair = load_pair(models["target"], models["drafter"], device="cpu")
    assert re.fullmatch(r"Pair\(target='.+', drafter='.+', compression='uncompressed', engine='\w+'\)", repr(pair))
    asked = {name: models[name] for name in models if name not in ("target", "drafter", "device")}
    profile(pair, tmp_path / "run", **asked | SMALL)
    assert same_rows(read_trace(tmp_path / "run"), read_trace(whole))
    assert Manifest.load(tmp_path / "run").target.source == str(models["target"])
    with pytest.raises(DraftgaugeError, match="loaded already: leave out target"):
        profile(pair, tmp_path / "other", **asked | SMALL, target="other")
