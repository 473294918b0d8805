"""Recording in parts gives the trace of one process, whatever was killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import draftgauge as package
from command_line import succeeds
from draftgauge.api.profile import profile
from draftgauge.core.config import make_request
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.executor import execute
from draftgauge.core.files import only_writer
from draftgauge.core.progress import silent
from draftgauge.models.base import FIRST_CAPACITY
from draftgauge.pair import recording
from draftgauge.pair.recording import PartJob
from draftgauge.requests import ProfileRequest
from draftgauge.traces.run import Manifest, read_trace
from draftgauge.traces.shards import shard_paths
from draftgauge.traces.trace import Trace
from draftgauge.traces.writer import PARTS, join_parts, part_folder
from launching import LONG, ray_cluster
from small_profiles import PROMPTS, SMALL, record
from synthetic import same_rows
from tiny import tiny_model

MANY = 100  # that take workers long enough to be killed


def test_parts_give_the_trace_of_one_process(models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    trace = record(models, tmp_path / "run", shards=3, progress=lambda *what: told.append(what))
    assert same_rows(trace, whole[1])
    assert trace.prompts == whole[1].prompts
    assert not (tmp_path / "run" / PARTS).exists()
    assert {(what, total) for what, _, total in told} >= {("parts uncompressed", 3), ("costs", 1)}
    manifest, other = Manifest.load(tmp_path / "run"), Manifest.load(whole[0])
    assert manifest.complete
    assert manifest.fingerprint() == other.fingerprint()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    record(models, tmp_path / "run", shards=2)  # nothing is left to do
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before


def test_an_interrupted_recording_goes_on_with_any_number_of_parts(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def stops(jobs: Any, *rest: Any) -> Any:
        execute(jobs[:1], *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recording, "execute", stops)
        with pytest.raises(KeyboardInterrupt):
            record(models, run, shards=3)
    assert len(list((run / PARTS).iterdir())) == 1
    with pytest.raises(TraceError, match="is incomplete"):
        read_trace(run)
    assert same_rows(record(models, run, shards=2), whole[1])
    assert not (run / PARTS).exists()


def part_job(models: dict[str, Any], run: Path, indices: tuple[int, ...]) -> PartJob:
    request = make_request(ProfileRequest, keywords=models | SMALL | {"out": run})
    return PartJob("part 0", request, Manifest.load(run), run, indices)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_join_that_was_killed_goes_on_and_a_damaged_part_is_recorded_again(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, damaged: bool
) -> None:
    run = tmp_path / "run"
    record(models, run, limit=3)
    part_job(models, run, tuple(range(3, PROMPTS))).run(silent)
    first, *others = shard_paths(part_folder(run, 0))
    assert others
    if damaged:
        first.write_bytes(first.read_bytes()[:-40])
    else:
        (run / "positions-00007.parquet").write_bytes(first.read_bytes())  # copied, then killed
    assert same_rows(record(models, run, shards=2), whole[1])


def test_parts_that_cannot_join(models: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(models, run, limit=3)
    before = {path.name for path in run.iterdir()}
    part_job(models, run, (2, 3, 4)).run(silent)
    with pytest.raises(TraceError, match=r"holds prompt 2, as another shard .* prompt 3, .* must not overlap"):
        join_parts(run)
    part = part_folder(run, 0)
    manifest = Manifest.load(part)
    replace(manifest, target=replace(manifest.target, fingerprint="another")).save(part)
    with pytest.raises(TraceError, match=r"is a part of another run \(target.fingerprint: 'another'"):
        join_parts(run)
    assert {path.name for path in run.iterdir()} == before | {PARTS}
    job = part_job(models, run, (5,))
    other = replace(job.manifest, target=replace(job.manifest.target, fingerprint="another"))
    with pytest.raises(TraceError, match="is another model for this worker"):
        replace(job, manifest=other, number=1).run(silent)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"device": "cuda:0"}, "the device is cpu for this worker and cuda for the run: .* \\(--gpus asks"),
        ({"target": {"dtype": "bfloat16"}}, "the dtype is float32 for this worker and bfloat16 for the run"),
        ({"target": {"engine": "static"}}, "the engine is lean for this worker and static for the run"),
        ({"draft": {"engine": "modules"}}, "the engine of the draft is lean for this worker and modules for the run"),
    ],
)
def test_a_worker_that_runs_models_otherwise_is_refused(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    job = part_job(models, whole[0], (1,))
    changed = {
        name: replace(getattr(job.manifest, name), **value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    with pytest.raises(TraceError, match=match):
        replace(job, manifest=replace(job.manifest, **changed), folder=tmp_path / "run").run(silent)


def test_a_part_that_fails_is_named_and_the_others_are_kept(
    models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recording.record_missing

    def fails(pair: Any, writer: Any, encoded: Any, *rest: Any) -> bool:
        if any(prompt.index == 1 for prompt, _ in encoded):
            raise DraftgaugeError("the memory of the worker is full")
        return recorded(pair, writer, encoded, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(recording, "record_missing", fails)
        with pytest.raises(DraftgaugeError, match=r"part 1 failed: the memory .* ask for the same again"):
            record(models, tmp_path / "run", shards=2)
    assert not Manifest.load(tmp_path / "run").complete
    assert shard_paths(tmp_path / "run")
    assert same_rows(record(models, tmp_path / "run", shards=2), whole[1])


def test_two_writers_on_one_folder(models: dict[str, Any], whole: tuple[Path, Trace], tmp_path: Path) -> None:
    several = tmp_path / "bf16"
    several.mkdir()
    for held, out, compression in ((whole[0], whole[0], "uncompressed"), (several, tmp_path, "uncompressed,bf16")):
        with only_writer(held), pytest.raises(DraftgaugeError, match=f"another process is writing into .*{held.name}"):
            record(models, out, compression=compression)
    assert same_rows(read_trace(whole[0]), whole[1])


def test_a_plan_states_memory_and_disk_and_records_nothing(models: dict[str, Any], tmp_path: Path) -> None:
    asked: dict[str, Any] = models | SMALL | {"out": tmp_path / "run", "plan": True}
    (row,) = profile(**asked)
    config = tiny_model().config
    parameters = sum(p.numel() for p in tiny_model().parameters())
    assert (row["prompts"], row["positions"], row["fits"]) == (PROMPTS, PROMPTS * 8, True)
    assert row["weights_gib"] * 2**30 == pytest.approx(2 * parameters * 4)
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    held = min(FIRST_CAPACITY, config.max_position_embeddings)
    assert row["cache_gib"] * 2**30 == pytest.approx(2 * held * per_token)
    (batched,) = profile(**asked, batches=(1, 7))
    assert (batched["cache_gib"] - row["cache_gib"]) * 2**30 >= 7 * 2 * row["longest"] * per_token
    assert row["memory_gib"] == pytest.approx(
        sum(row[f"{part}_gib"] for part in ("weights", "cache", "logits", "copies"))
    )
    assert row["copies_gib"] > 0.5  # of libraries
    assert row["minutes"] > 0
    assert not (tmp_path / "run").exists()
    record(models, tmp_path / "other")
    taken = sum(read_trace(tmp_path / "other").draft_token.nbytes for _ in range(4))
    assert taken <= row["disk_gib"] * 2**30
    words = [f"--{name}={value}" for name, value in models.items()]
    assert "fits" in succeeds("profile", "--plan", "--out", tmp_path / "run", *words, "--max-new-tokens=8").output


def test_bad_requests(models: dict[str, Any], tmp_path: Path) -> None:
    for options, match in (
        ({"shards": 0}, "shards must be at least 1"),
        ({"executor": "slurm"}, "choose one of local, ray"),
        ({"shards": 2, "seconds": 5.0}, "leave out --seconds"),
        ({"gpus": -1.0}, "gpus must be at least 0"),
        ({"plan": True, "drafter": "./x.gguf"}, "a plan reads what transformers loads, and .*x.gguf is a GGUF file"),
    ):
        with pytest.raises(DraftgaugeError, match=match):
            record(models, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@LONG
@pytest.mark.slow
def test_killed_on_ray(models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is killed, then the driver; the same command again gives the trace of one process."""
    pytest.importorskip("ray", reason="Ray is not installed")
    run, prompts = tmp_path / "run", tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt number {n}"}) for n in range(MANY)))
    asked = {name: str(value) for name, value in (models | {"prompts": prompts}).items()} | SMALL
    program = f"""
from draftgauge.api.profile import profile
profile(out={str(run)!r}, executor="ray", shards=2, **{asked!r})
"""
    source = str(Path(package.__file__).parents[1])
    threads = str(torch.get_num_threads())  # as many as here: sums of other parts of a product round differently
    monkeypatch.setenv("PYTHONPATH", source)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    started = subprocess.Popen([sys.executable, "-c", program])
    wait_for(lambda: list(run.glob(f"{PARTS}/*/manifest.json")), started)
    workers = [pid for pid in children(started.pid) if command(pid).startswith(b"ray::attempt")]
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    time.sleep(1)
    started.kill()
    started.wait()
    with ray_cluster(cpus=2):
        again = record(models, run, prompts=prompts, executor="ray", shards=2)
    assert same_rows(again, record(models, tmp_path / "whole", prompts=prompts))


def wait_for(condition: Any, process: subprocess.Popen[bytes], limit: float = 600) -> None:
    until = time.monotonic() + limit
    while not condition():
        assert process.poll() is None, "ended before"
        assert time.monotonic() < until
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            own = int(stat.parent.name)
            found += [own, *children(own)]
    return found


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_workers_find_what_was_named_by_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("target", "drafter", "tokenizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "prompts.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    names = {"target": "target", "drafter": "drafter", "tokenizer": "tokenizer", "prompts": "prompts.jsonl"}
    asked = recording._with_absolute_paths(make_request(ProfileRequest, keywords=names | {"out": "run"}))
    found = (asked.pair.target, asked.pair.drafter, asked.pair.loading.tokenizer, asked.prompts.prompts)
    assert [str(path) for path in found] == [str(tmp_path / name) for name in names.values()]
