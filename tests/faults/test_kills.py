"""Commands that are killed at any moment, run side by side, or called often; ``make test-faults`` runs it whole."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgauge as dg
import forked
from draftgauge import __main__
from draftgauge.core.files import TEMPORARY_SUFFIX
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.shards import shard_paths
from faults.kinds import KINDS
from faults.test_campaign import WHOLE
from small_profiles import SMALL, record, save_hybrid, save_models
from small_trainings import small_training
from written_runs import write_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")
TRIALS, CALLS = (10, 100) if WHOLE else (1, 2)  # calls of three verbs each
CALLED = {"max_new_tokens": 8, "gamma_max": 3}
TEMPORARY = f"*{TEMPORARY_SUFFIX}"
TARGET = "--target=../target --max-new-tokens=8 --gamma-max=3 --cost-seconds=0"
PAIR = f"{TARGET} --drafter=../draft"
TRAIN = "--target=../trained/target --prompts=../trained/prompts.jsonl"
COMMANDS = {  # what runs in a folder beside what it reads, and the keys of its rows that no time or date is in
    "export": ("export ../drafter --out=exported", ("parameters", "depths")),
    "fit": ("fit ../written --out=p.json --split=all", ("policy", "trained_prompts", "thresholds", "gain")),
    "doctor": (f"doctor {PAIR} --prompts=../prompts.jsonl", ("check",)),
    "bench": (
        f"bench {PAIR} --prompts=../prompts.jsonl --policy=fixed:2 --over=fixed:2 --rounds=1 --no-baselines",
        ("policy", "task", "mismatches", "tokens_per_step"),
    ),
    "rank": (
        f"rank ../draft lookup {TARGET} --prompts=../prompts.jsonl --live=2 --out=ranked",
        ("drafter", "prompts", "live_mismatched_prompts"),
    ),
    "train": (f"train {TRAIN} --new-tokens=12 --depths=3 --steps=12 --checkpoint-every=2 --out=drafter", ("loss",)),
    "study": (f"study kvshot {TRAIN} --held-out=../trained/prompts.jsonl --out=study", ("cell", "parameters")),
}


def _run(folder: Path, words: list[str], act: Callable[[], Any]) -> Any:
    """What a forked process does: as the command line, or as a program that calls draftgauge."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, __main__._stop if act is __main__.main else signal.SIG_DFL)
    os.chdir(folder)
    os.environ["DRAFTGAUGE_CACHE"], tempfile.tempdir = str(folder / "cache"), str(folder / "tmp")
    sys.argv = ["draftgauge", *words]
    Path("begun").touch()
    return act()


def start(folder: Path, words: str, act: Callable[[], Any] = __main__.main) -> BaseProcess:
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    (folder / "begun").unlink(missing_ok=True)
    process = forked.fork(folder / "said.txt", _run, folder, words.split(), act)
    while not (folder / "begun").exists():
        time.sleep(0.001)
    return process


def ended(process: BaseProcess, folder: Path) -> int | None:
    said = forked.ended(process)
    assert not re.search("Traceback|Exception ignored|another process is writing", said), said
    for written in re.findall("^wrote (.*)", said, re.MULTILINE):
        assert (folder / written).is_file()
    return process.exitcode


def result(folder: Path, keys: tuple[str, ...]) -> tuple[list[str], list[bytes]]:
    """What a command left that times and dates do not change."""
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    weights = [path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))]
    return sorted(str([row.get(key) for key in keys]) for row in rows), weights


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("kills")
    for name in ("trained", "drafter"):
        (folder / name).mkdir()
    save_models(folder)
    small_training(folder / "trained")
    KINDS["drafter"].make(folder / "drafter", 0)
    write_run(folder / "written", 12)
    return folder


@pytest.mark.parametrize("name", COMMANDS if WHOLE else ("export", "fit"))
def test_a_killed_command_run_again_gives_what_an_undisturbed_one_gives(name: str, place: Path) -> None:
    words, keys = f"{COMMANDS[name][0]} --json=rows.json", COMMANDS[name][1]
    whole, began = place / f"{name} whole", time.monotonic()
    code = ended(start(whole, words), whole)
    seconds, good = time.monotonic() - began, result(whole, keys)
    assert code in (0, 1), (whole / "said.txt").read_text()
    for trial in range(TRIALS):
        folder, rng = place / f"{name} {trial}", np.random.default_rng(trial)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            process = start(folder, words)
            process.join(rng.random() * seconds)
            os.kill(process.pid or 0, number) if process.is_alive() else None
            assert ended(process, folder) in (code, -9 if number == signal.SIGKILL else 130)
            assert number == signal.SIGKILL or not [*folder.rglob(TEMPORARY), *folder.glob("tmp/*")]
        assert ended(start(folder, words), folder) == code
        assert result(folder, keys) == good
        assert not [*folder.rglob(TEMPORARY)]


def stopped() -> None:
    """A program that is sent SIGTERM when two prompts of a shard of four are recorded."""

    def stop(what: str, done: int, total: int) -> None:
        if done == 2 and "cost" not in what:
            os.kill(os.getpid(), signal.SIGTERM)

    models = {"target": "../target", "drafter": "../draft", "prompts": "../prompts.jsonl"}
    with suppress(KeyboardInterrupt):
        dg.profile(**models | SMALL, out="run", progress=stop)


def killed() -> None:
    """A program that is killed when six prompts of a hybrid are recorded."""

    def stop(what: str, done: int, total: int) -> None:
        if done == 6 and what.startswith("record"):
            os.kill(os.getpid(), signal.SIGKILL)

    dg.profile(target="../hybrid", drafter="../hybrid", prompts="../prompts.jsonl", **SMALL, out="run", progress=stop)


def test_a_killed_recording_of_a_hybrid_goes_on_to_the_same_trace(place: Path) -> None:
    folder, models = place / "hybrids", dict.fromkeys(("target", "drafter"), place / "hybrid")
    models["prompts"] = place / "prompts.jsonl"
    save_hybrid(place / "hybrid")
    assert ended(start(folder, "", killed), folder) == -signal.SIGKILL
    kept = shard_paths(folder / "run")
    assert kept
    resumed, whole = record(models, folder / "run"), record(models, folder / "whole")
    assert set(kept) < set(shard_paths(folder / "run"))
    for name in ("token", "draft_token", "accepted", "offsets"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
    np.testing.assert_allclose(resumed.confidence, whole.confidence, atol=1e-5)


def test_sigterm_in_a_program_keeps_what_is_recorded(place: Path) -> None:
    folder = place / "program"
    assert ended(start(folder, "", stopped), folder) == 0
    assert shard_paths(folder / "run")


def certain() -> int:
    """The command line on a machine that nothing else keeps busy: a curve in doubt is not kept."""
    CostCurve.doubt = lambda self: ""  # type: ignore[method-assign]
    return __main__.main()


def test_two_processes_that_measure_a_pair_at_once_leave_one_whole_curve(place: Path) -> None:
    for trial in range(TRIALS):
        folders = [place / f"cache {trial}" / name for name in "ab"]
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "cache").symlink_to("..")
        processes = [start(folder, f"generate hello {PAIR.replace('..', '../..')}", certain) for folder in folders]
        assert [ended(process, folder) for process, folder in zip(processes, folders, strict=True)] == [0, 0]
        (curve,) = (folders[0] / "cache" / "costs").iterdir()
        CostCurve.load(curve)


def test_hundreds_of_calls_hold_no_more_than_a_few(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    process, written, texts = Path("/proc/self"), place / "written", set()
    for number in range(CALLS):
        texts.add(dg.generate("x", target=place / "target", drafter=place / "draft", policy="fixed:2", **CALLED).text)
        dg.replay(folder=written, policies=("fixed:2",), split="all")
        dg.report(folder=written, split="all", out=place / "page.html")
        held = [len([*(process / name).iterdir()]) for name in ("task", "fd")]
        memory = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        if number < CALLS // 2:
            before, least = held, memory
    assert (held, len(texts), [*(place / "tmp").iterdir()]) == (before, 1, [])
    assert memory < least + 16  # MiB
