"""Artefacts that were damaged, swapped or killed while they were written: an error in words, or the same as ever.

In small here; ``make test-faults`` runs it whole.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import draftgauge
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import TEMPORARY_SUFFIX
from faults.kinds import KINDS, seen
from faults.mutations import MUTATIONS

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
