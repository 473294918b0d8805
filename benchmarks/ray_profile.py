"""Recording on Ray: one worker, two workers, and two workers of which one is killed, and then the driver.

The bundled pair on generated questions, the shortest of many, and few new tokens, so that there can be thousands. Every
run is the command ``draftgauge profile``, the first without Ray in one process; the killed one is started again with
the same words. Rows, one a run: ``seconds`` of everything, of the killed run both commands together; ``identical``:
whether its trace is that of one process, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import console, save

import draftgauge
from draftgauge.traces.build import COLUMNS
from draftgauge.traces.manifest import MANIFEST_NAME
from draftgauge.traces.parts import PARTS
from draftgauge.traces.reader import read_trace
from draftgauge.traces.shards import shard_paths
from draftgauge.traces.trace import Trace
from draftgauge.traces.writer import SHARD_PROMPTS
from draftgauge.training.reference.data import training_questions

GENERATED = 4  # questions for each that is taken
WORKER = b"ray::attempt"
POLL_SECONDS = 0.2


def main() -> None:
    """Record three times and write ``ray-profile.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--prompts", type=int, default=5000)
    parser.add_argument("--max-new-tokens", type=int, default=6)
    parser.add_argument("--gamma-max", type=int, default=4)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        questions = write_questions(place / "questions.jsonl", args.prompts)
        expected: Trace | None = None
        for name, executor, shards, kills in (
            ("one process, without Ray", "local", 1, False),
            ("one worker", "ray", 1, False),
            ("two workers", "ray", 2, False),
            ("two workers, killed", "ray", 2, True),
        ):
            out = place / name.replace(" ", "-").replace(",", "")
            words = [
                *(sys.executable, "-m", "draftgauge", "profile", "--executor", executor, "--shards", str(shards)),
                *("--prompts", str(questions), "--out", str(out), "--cost-seconds", "1"),
                *("--max-new-tokens", str(args.max_new_tokens), "--gamma-max", str(args.gamma_max)),
            ]
            began = time.perf_counter()
            killed = kill_both(words, out, args.prompts) if kills else []
            run(words).check_returncode()
            spent = time.perf_counter() - began
            trace = read_trace(out)
            expected = expected or trace
            rows.append(
                {
                    "run": name,
                    "workers": shards,
                    "killed": ", ".join(killed),
                    "prompts": len(trace.prompts),
                    "positions": trace.positions,
                    "max_new_tokens": args.max_new_tokens,
                    "gamma_max": args.gamma_max,
                    "seconds": spent,
                    "identical": same_rows(trace, expected),
                }
            )
            console.print(f"{name}: {spent:.0f} s, identical {rows[-1]['identical']}", highlight=False)
    save(args.out, "ray-profile.json", rows)


def write_questions(path: Path, count: int) -> Path:
    """The shortest of generated questions, as conversations."""
    conversations = sorted(
        set(training_questions(GENERATED * count, seed=0)), key=lambda each: (len(str(each)), str(each))
    )
    lines = [
        json.dumps({"task": "generated", "messages": [{"role": role, "content": text} for role, text in messages]})
        for messages in conversations[:count]
    ]
    path.write_text("\n".join(lines))
    return path


def run(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, env=environment(), check=False, stdout=subprocess.DEVNULL)


def environment() -> dict[str, str]:
    """One thread a worker, so that workers do not share cores; this checkout."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(draftgauge.__file__).parents[1])}


def kill_both(words: list[str], out: Path, prompts: int) -> list[str]:
    """Start, kill a worker after a fifth of the prompts, and the driver after half of them."""
    driver = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL)
    wait_for(driver, lambda: recorded(out) >= prompts / 5)
    worker = next(pid for pid in below(driver.pid) if command(pid).startswith(WORKER))
    os.kill(worker, signal.SIGKILL)
    wait_for(driver, lambda: recorded(out) >= prompts / 2)
    driver.kill()
    driver.wait()
    return ["worker", "driver"]


def recorded(out: Path) -> int:
    """Prompts in whole shards of the parts."""
    parts = [path for path in (out / PARTS).glob("*") if (path / MANIFEST_NAME).exists()]
    return SHARD_PROMPTS * sum(len(shard_paths(part)) for part in parts)


def wait_for(process: subprocess.Popen[bytes], condition: Any) -> None:
    while not condition():
        if process.poll() is not None:
            raise SystemExit("it ended before it could be killed: ask for more prompts")
        time.sleep(POLL_SECONDS)


def below(pid: int) -> Iterator[int]:
    """All processes below one."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            yield int(stat.parent.name)
            yield from below(int(stat.parent.name))


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def same_rows(one: Trace, other: Trace) -> bool:
    """Byte for byte."""
    return one.prompts == other.prompts and all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in ("offsets", *COLUMNS)
    )


if __name__ == "__main__":
    main()
