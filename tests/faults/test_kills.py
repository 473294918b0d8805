"""Commands that are killed at any moment, that run side by side, and that are called hundreds of times.

In small here; ``make test-faults`` runs it whole.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.api.generate import generate
from draftgauge.api.replay import replay
from draftgauge.api.report import report
from draftgauge.core.files import TEMPORARY_SUFFIX
from draftgauge.core.provenance import write_measurement
from draftgauge.policies.fitted import load_fitted
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.reader import read_trace
from faults.kinds import KINDS, seen
from faults.test_campaign import WHOLE, files_of
from small_profiles import save_models
from small_trainings import small_training
from written_runs import write_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")
KILLS, CALLS = (20, 100) if WHOLE else (1, 3)  # trials; calls of three verbs each
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
BEGUN = "begun"
VERBS = ("doctor", "bench", "rank", "train", "export", "fit", "study", "report")  # loaded once, before the forks
BRIEF = "--target=../target --draft=../draft --prompts=../prompts.jsonl --max-new-tokens=8 --gamma-max=3 --cost-seconds=0"
TRAIN = "--target=../trained/target --prompts=../trained/prompts.jsonl --new-tokens=12 --depths=3 --length=64 --batch=2"
# What to run in a folder of its own, with what to look at of its rows; all other files must be equal.
COMMANDS = {
    "profile": (f"profile {BRIEF} --out=run --json=r.json", ("prompts", "captured")),
    "rank --live": (
        f"rank ../draft lookup {BRIEF.replace('--draft=../draft ', '')} --out=ranked --live=2 --json=r.json",
        ("drafter", "prompts", "live_mismatched_prompts"),
    ),
    "doctor": (f"doctor {BRIEF} --json=r.json", ("check",)),
    "bench": (
        f"bench {BRIEF} --policy=fixed:2 --over=fixed:2 --rounds=1 --no-baselines --json=r.json",
        ("policy", "task", "mismatches", "tokens_per_step"),
    ),
    "train": (f"train {TRAIN} --steps=12 --checkpoint-every=2 --log-every=1 --out=drafter --json=r.json", ()),
    "export": ("export ../drafter --out=exported --json=r.json", ("parameters", "depths")),
    "fit": ("fit ../written --policy=stopping --split=all --out=p.json --json=r.json", ("policy", "gain")),
    "study": ("study kvshot --target=../trained/target --prompts=../trained/prompts.jsonl --held-out=../trained/prompts.jsonl --out=study", ()),
}


def _run(words: Sequence[str], folder: Path) -> None:
    """As ``python -m draftgauge`` does, but for libraries, which are loaded."""
    from draftgauge import __main__

    for number in SIGNALS[1:]:
        signal.signal(number, __main__._stop)
    for name in ("tmp", "cache"):
        (folder / name).mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ.update(DRAFTGAUGE_CACHE=str(folder / "cache"), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    tempfile.tempdir = str(folder / "tmp")
    sys.argv = ["draftgauge", *words]
    said = os.open("said.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(said, 1)
    os.dup2(said, 2)
    Path(BEGUN).touch()
    sys.exit(__main__.main())


def start(command: str, folder: Path) -> BaseProcess:
    """A command in a folder, in a process that can be sent signals now."""
    folder.mkdir(exist_ok=True)
    (folder / BEGUN).unlink(missing_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["draftgauge.cli.main", *(f"draftgauge.api.{v}" for v in VERBS)])
    process = context.Process(target=_run, args=(command.split(), folder))
    process.start()
    while not (folder / BEGUN).exists():
        time.sleep(0.001)
    return process


def end(process: BaseProcess, folder: Path) -> tuple[int | None, str]:
    process.join(300)
    assert process.exitcode is not None, "it hangs"
    said = (folder / "said.txt").read_text()
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    return process.exitcode, said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("kills")
    save_models(folder)
    (folder / "trained").mkdir()
    small_training(folder / "trained")
    write_run(folder / "written", 12)
    (folder / "drafter").mkdir()
    KINDS["drafter"].make(folder / "drafter", 0)
    return folder


def result(folder: Path, keys: Sequence[str]) -> dict[str, Any]:
    """What a command left, but for times and dates."""
    found: dict[str, Any] = {}
    for path in files_of(folder):
        name = str(path.relative_to(folder))
        if name.startswith(("tmp/", "cache/")):
            continue
        if path.name == "manifest.json":
            found[name] = seen(read_trace(path.parent))
        elif path.name == "r.json":
            rows = json.loads(path.read_text())["rows"]
            found[name] = sorted(str({key: row.get(key) for key in keys}) for row in rows)
        elif path.name == "p.json":
            found[name] = seen(load_fitted(path).parameters)
        elif not re.match(r"said|begun|.*positions-", name):
            found[name] = path.read_bytes() if path.suffix == ".safetensors" else None
    return found


@pytest.mark.parametrize("name", COMMANDS if WHOLE else ["export", "fit"])
def test_a_killed_command_run_again_gives_what_an_undisturbed_one_gives(name: str, place: Path) -> None:
    command, keys = COMMANDS[name]
    started = time.monotonic()
    usual, _ = end(start(command, place / f"{name} usual"), place / f"{name} usual")
    seconds, good = time.monotonic() - started, result(place / f"{name} usual", keys)
    assert usual in (0, 1)
    rng = np.random.default_rng(0)
    for trial in range(KILLS):
        folder = place / f"{name} {trial}"
        for _ in range(3):
            number = SIGNALS[rng.integers(3)]
            process = start(command, folder)
            time.sleep(rng.random() * seconds)
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            code, said = end(process, folder)
            assert code in (130, usual) if number != signal.SIGKILL else code in (-9, usual), said
            for written in re.findall("wrote (.*)", said):
                assert (folder / written).is_file()
            if number != signal.SIGKILL:
                assert not list((folder / "tmp").iterdir())
        code, said = end(start(command, folder), folder)
        assert code == usual, said
        assert result(folder, keys) == good
        assert not list(folder.rglob(f"*{TEMPORARY_SUFFIX}"))


def test_two_processes_that_measure_a_pair_at_once_leave_one_whole_curve(place: Path) -> None:
    for trial in range(KILLS // 4 or 1):
        folder = place / f"cache {trial}"
        command = f"generate hello --target=../target --draft=../draft --max-new-tokens=4 --cost-seconds={trial / 10}"
        folder.mkdir()
        places = [folder / name for name in "ab"]
        for each in places:
            each.mkdir()
            (each / "cache").symlink_to(folder)
        command = command.replace("../", "../../")
        processes = [start(command, each) for each in places]
        texts = [end(process, each) for process, each in zip(processes, places, strict=True)]
        assert [code for code, _ in texts] == [0, 0], texts
        (curve,) = (folder / "costs").iterdir()
        CostCurve.load(curve)


def _rewrite(path: Path, variants: Sequence[list[dict[str, Any]]]) -> None:
    for turn in range(10**9):
        write_measurement(path, "bench", variants[turn % 2])


def test_reports_made_while_bench_writes_show_the_old_rows_or_the_new(place: Path) -> None:
    rows, made = place / "rows.json", {"folder": place / "written", "bench": (place / "rows.json",), "split": "all"}
    row = {"policy": "fixed:2", "compression": "uncompressed", "task": "all", "tokens_per_step": 2.5, "mismatches": 0}
    ratios = {"ratio_to_plain": 1.5, "ratio_to_plain_low": 1.4, "ratio_to_plain_high": 1.6}
    variants = [[row | ratios | {"tokens_per_second": speed}] for speed in (300.0, 456.0)]

    def page() -> str:
        text = report(**made, out=place / "page.html").read_text()
        return re.sub(r"<dt>report made</dt><dd>.*?</dd>", "", text)

    pages = []
    for variant in variants:
        write_measurement(rows, "bench", variant)
        pages.append(page())
    assert pages[0] != pages[1]
    writer = multiprocessing.get_context("fork").Process(target=_rewrite, args=(rows, variants), daemon=True)
    writer.start()
    for _ in range(CALLS // 2):
        assert page() in pages
    writer.kill()
    writer.join()


def held() -> tuple[int, int, float]:
    """Threads, open files and MiB of this process."""
    process = Path("/proc/self")
    pages = int((process / "statm").read_text().split()[1])
    counts = (len(list((process / name).iterdir())) for name in ("task", "fd"))
    return *counts, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_hundreds_of_calls_hold_no_more_than_a_few(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "scratch"))
    models = {name: place / name for name in ("target", "draft")}
    before: tuple[int, int, float] = (0, 0, 0.0)
    texts = set()
    for number in range(CALLS):
        texts.add(str(generate(prompt="prompt number 1", policy="fixed:2", gamma_max=3, max_new_tokens=8, **models)))
        replay(folder=place / "written", policies=("fixed:2",), split="all")
        report(folder=place / "written", out=place / "page.html", split="all")
        if number == CALLS // 3:
            before = held()
    threads, files, memory = held()
    assert (threads, files) == before[:2]
    assert memory < before[2] + 16
    assert len(texts) == 1
    assert not list((place / "scratch").iterdir())
