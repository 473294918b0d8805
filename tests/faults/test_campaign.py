"""Artefacts damaged or killed while written, cut answers, many calls: an error in words, or the same as ever."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgauge as dg
from command_line import draftgauge
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import TEMPORARY_SUFFIX
from draftgauge.serving import endpoint
from draftgauge.serving.client import complete
from draftgauge.serving.counters import read_counts, served_models
from engine_server import raw_server, vllm_metrics
from faults.kinds import KINDS, seen
from faults.mutations import MUTATIONS, nest
from generating import draft_of, prompt, target_of
from small_profiles import save_models

WHOLE = os.environ.get("DRAFTGAUGE_FAULTS") == "whole"
MUTATED, KILLED, COMMANDS = (2000, 200, 100) if WHOLE else (40, 5, 6)
kinds = pytest.mark.parametrize("name", KINDS)


def files_of(folder: Path) -> list[Path]:
    """Those that are read; locks are not."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name)


def made(name: str, folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    KINDS[name].make(folder, seed)
    return folder


def outcome(name: str, folder: Path) -> Any:
    """What reading gives, or None for an error in words; anything else is a traceback, which fails the test."""
    try:
        return seen(KINDS[name].read(folder))
    except DraftgaugeError:
        return None


@kinds
def test_a_mutated_file_is_refused_or_reads_the_same(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path / "a")
    good, files, refused = outcome(name, folder), files_of(folder), 0
    assert good is not None
    for number in range(MUTATED):
        rng = np.random.default_rng([number])
        path = files[number % len(files)]
        content = path.read_bytes()
        mutation = MUTATIONS[number // len(files) % len(MUTATIONS)]
        path.write_bytes(mutation(rng, content))
        found = outcome(name, folder)
        assert found in (good, None), f"{path.name}: silent difference by {mutation.__name__}, seed {number}"
        refused += found is None
        path.write_bytes(content)
    assert outcome(name, folder) == good
    assert refused > MUTATED / 2


@kinds
def test_a_missing_file_is_refused_or_not_needed(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path / "a")
    good = outcome(name, folder)
    for path in files_of(folder):
        content = path.read_bytes()
        path.unlink()
        found = outcome(name, folder)
        assert found in (good, None), f"a silent difference without {path.name}"
        assert found is None or name == "drafter"  # of no consequence
        path.write_bytes(content)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.single])
def test_a_file_of_another_one_is_refused(name: str, tmp_path: Path) -> None:
    one, other = made(name, tmp_path / "a"), made(name, tmp_path / "b", 1)
    good = [outcome(name, folder) for folder in (one, other)]
    for path in files_of(one):
        theirs = other / path.relative_to(one)
        if theirs.exists():
            content = path.read_bytes()
            path.write_bytes(theirs.read_bytes())
            assert outcome(name, one) in (good[0], None), f"{path.name} of another one was believed"
            path.write_bytes(content)


def write_on(name: str, folder: Path, first: int) -> None:
    for turn in range(first, 10**9):
        KINDS[name].make(folder, turn % 2)


@kinds
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_kill_leaves_the_old_one_or_the_new_one(name: str, tmp_path: Path) -> None:
    """Written over and over by a process that is killed at any moment; a run is gone on with instead."""
    alternate = name != "recorded run"
    valid = [outcome(name, made(name, tmp_path / f"{seed}", seed)) for seed in (0, 1)]
    rng = np.random.default_rng(0)
    folder = tmp_path / "killed"
    for turn in range(KILLED):
        if not alternate:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        arguments = (name, folder, turn % 2 if alternate else 0)
        process = multiprocessing.get_context("fork").Process(target=write_on, args=arguments, daemon=True)
        process.start()
        time.sleep(0.005 + rng.random() * 0.06)
        process.kill()
        process.join()
        if alternate and any(path.suffix != TEMPORARY_SUFFIX for path in files_of(folder)):
            assert outcome(name, folder) in (*valid, None)
        KINDS[name].make(folder, 0)
        assert outcome(name, folder) == valid[0]
        assert not list(folder.rglob(f"*{TEMPORARY_SUFFIX}"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if os.name == "nt" or os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@kinds
def test_a_full_disk_ends_in_words_and_loses_nothing(name: str, small_disk: Path, tmp_path: Path) -> None:
    folder = made(name, small_disk / "a")
    before, after = outcome(name, folder), outcome(name, made(name, tmp_path / "b", 1))
    full = small_disk / "full"
    with full.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    (small_disk / "c").mkdir()
    for place in (folder, small_disk / "c"):
        with pytest.raises(DraftgaugeError, match=r"no space left|another run"):
            KINDS[name].make(place, 1)
    assert outcome(name, folder) == before
    full.unlink()
    KINDS[name].make(small_disk / "c", 1)
    assert outcome(name, small_disk / "c") == after


def test_the_command_line_ends_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    run = made("recorded run", tmp_path / "run")
    arguments = ["replay", str(run), "--policy", "fixed:2", "--split", "all", "--json", str(tmp_path / "r.json")]
    assert draftgauge(arguments).exit_code == 0
    files = files_of(run)
    for number in range(COMMANDS):
        path = files[number % len(files)]
        content = path.read_bytes()
        path.write_bytes(MUTATIONS[number % len(MUTATIONS)](np.random.default_rng(number), content))
        result = draftgauge(arguments)
        assert result.exit_code in (0, 2)
        assert "Traceback" not in result.output
        if result.exit_code == 2:
            assert path.name in result.stderr or "trace" in result.stderr
        path.write_bytes(content)


ANSWERS = 1000 if os.environ.get("DRAFTGAUGE_FAULTS") == "whole" else 40
METRICS = vllm_metrics(100, 300, 200, (90, 70, 40)).encode()
MODELS = b'{"object": "list", "data": [{"id": "target", "object": "model"}]}'
COMPLETION = b"""{"choices": [{"token_ids": [1, 2, 3], "text": "abc"}], "metrics": {"time_to_first_token_ms": 1.0,
"generation_time_ms": 4.0, "speculative_decoding": {"num_accepted_draft_tokens": 1, "num_draft_tokens": 2}}}"""


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


def ask_all(url: str) -> None:
    """Whatever is asked of a server; errors in words are fine, others fail the test."""
    for ask in (
        lambda: read_counts("vllm", url),
        lambda: served_models("vllm", url),
        lambda: complete("vllm", url, [1, 2], 8),
    ):
        with suppress(DraftgaugeError):
            ask()


@pytest.mark.parametrize("body", [METRICS, MODELS, COMPLETION], ids=["metrics", "models", "completion"])
def test_changed_answers_end_in_figures_or_words(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BYTES", 2**20)
    content, started = [answer(body)], time.monotonic()
    with raw_server(lambda connection: connection.sendall(content[0])) as (url, _):
        ask_all(url)
        for number in range(ANSWERS):
            rng, mutation = np.random.default_rng(number), MUTATIONS[number % len(MUTATIONS)]
            if number % 3 and mutation is not nest:
                content[0] = mutation(rng, answer(body))  # status and headers too
            else:
                content[0] = answer(mutation(rng, body), b"200 OK" if number % 2 else b"500 Oh")
            ask_all(url)
    assert time.monotonic() - started < 5 * ANSWERS


THREADS, CALLS, IN_A_ROW = (4, 50, 300) if WHOLE else (4, 2, 12)


@pytest.mark.parametrize("used", ["one speculation", "a pair", *["two of one model"] * WHOLE])
def test_calls_have_their_own_text_and_leave_nothing_behind(used: str, tmp_path: Path) -> None:
    models = save_models(tmp_path)
    pair = dg.load_pair(target=str(models["target"]), drafter=str(models["drafter"]), device="cpu")
    both = [dg.speculative(draft_of("gpt2"), "fixed:3", engine="modules") for _ in range(2)]

    def decode(seed: int, then: Callable[..., object] = lambda *told: False) -> list[int]:
        if used == "a pair":
            ids = prompt(seed=seed)[0].tolist()
            return dg.generate(pair, ids, "fixed:3", max_new_tokens=12, on_text=then).tokens
        asked = {"custom_generate": both[seed % 2 if used.startswith("two") else 0], "max_new_tokens": 12}
        criteria = [lambda ids, scores: ids[:, 0] < int(bool(then()))]
        return target_of("gpt2").generate(prompt(seed=seed), stopping_criteria=criteria, **asked)[0].tolist()

    alone, seeds = [decode(seed) for seed in range(THREADS)], list(range(THREADS)) * CALLS
    assert len(set(map(tuple, alone))) == THREADS
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(decode, seeds)) == alone * CALLS
        with pytest.raises(dg.DraftgaugeError, match="begin it when the other one has ended"):
            decode(0, lambda *told: decode(0))
        assert pool.submit(decode, 0).result(timeout=60) == alone[0]
    counts = []
    for _ in range(3):
        assert [decode(seed % THREADS) for seed in range(IN_A_ROW // 3)] == (alone * IN_A_ROW)[: IN_A_ROW // 3]
        counts.append(gc.collect() * 0 + len(gc.get_objects()))
    assert counts[2] - counts[1] < IN_A_ROW / 3
