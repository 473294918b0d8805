"""Ctrl-C and SIGTERM at any moment, and an output that cannot be written: one line and exit code, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import draftgauge as package
from command_line import draftgauge, refusal
from draftgauge import __main__
from draftgauge.cli.console import interruptible
from draftgauge.traces.run import read_trace
from draftgauge.traces.shards import shard_paths
from forked import ended, fork
from tiny import save_tiny
from written_runs import write_run

COMMAND = [sys.executable, "-m", "draftgauge"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_libraries_load(number: int) -> None:
    """The handler is installed before anything else is imported; the test waits for it."""
    process = subprocess.Popen([*COMMAND, "replay", "no-run"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("no /proc to see in when the handler is there")
    both = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        caught = int(next(line for line in status.read_text().splitlines() if line.startswith("SigCgt")).split()[1], 16)
        if caught & both == both:
            break
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.startswith("interrupted.")
    assert said.count("\n") == 1


def test_while_recording_told_several_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "run"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt number {n}"}) for n in range(400)))
    models = [f"--target={save_tiny(tmp_path / 'target')}", f"--drafter={save_tiny(tmp_path / 'draft')}"]
    words = ["profile", *models, f"--prompts={prompts}", f"--out={out}"]
    words += ["--max-new-tokens=8", "--gamma-max=2", "--cost-seconds=0"]
    monkeypatch.setattr(sys, "argv", ["draftgauge", *words])
    process = fork(tmp_path / "said", __main__.main)
    while not list(out.glob("positions-*")) and process.is_alive():
        time.sleep(0.002)
    for _ in range(3):
        process.terminate()
        time.sleep(0.002)
    said = ended(process)
    assert process.exitcode == 130, said
    assert "Traceback" not in said
    assert said.count("interrupted.") == 1
    assert shard_paths(out)
    result = draftgauge([*words, "--seconds=1e-9"])  # it goes on with what is there
    assert result.exit_code == 0, result.stderr
    assert 0 < len(read_trace(out).prompts) < 400


class Finalised:
    """Its finaliser is interrupted, which Python ignores."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


def test_an_interrupt_of_a_finaliser_is_not_lost() -> None:
    def until_interrupted() -> None:
        Finalised()
        time.sleep(30)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interruptible():
        until_interrupted()
    assert time.monotonic() - started < 20


def test_rows_are_written_although_standard_output_is_full(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    run, rows = write_run(tmp_path / "run", 8), tmp_path / "rows.json"
    words = ["replay", str(run), "--policy", "fixed:2", "--json", str(rows)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, *words], env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert json.loads(rows.read_text())["rows"]
    assert ended.returncode == 2
    assert "standard output: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_prompt_may_begin_with_a_dash(tmp_path: Path) -> None:
    models = [f"--target={save_tiny(tmp_path / 'target')}", f"--drafter={save_tiny(tmp_path / 'draft')}"]
    for words in (["- one\n- two"], ["--", "-one"]):
        result = draftgauge(["generate", *models, "--max-new-tokens=2", "-p=fixed:1", *words])
        assert result.exit_code == 0, result.stderr
    assert 'Put "--" before a text that begins with a dash' in refusal("generate", "-one", *models)
