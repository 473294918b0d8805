"""Servers that are started: what their steps cost is found, and none is left behind."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command_line import refusal, succeeds
from draftgauge.traces.engine_costs import read_costs
from fake_llama_server import ALONE, DRAFTED, TEXT, step

FAKE = [sys.executable, str(Path(__file__).parents[1] / "fake_llama_server.py")]


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """What starts the fake server; its models lie in the test's folder."""
    models = [tmp_path / "target.gguf", tmp_path / "draft.gguf"]
    for model in models:
        model.write_bytes(b"")
    words = ["-e", "llama-server", "--target", str(models[0]), "--drafter", str(models[1])]
    return [*words, "--program", shlex.join(FAKE)]


def left(folder: Path) -> list[str]:
    """Fake servers of a folder's models that still run."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_text())
        except OSError:  # it has ended
            continue
    return [line for line in lines if str(folder) in line and FAKE[1] in line and "costs" not in line]


def test_costs_of_a_started_server_are_what_its_steps_take(asked: list[str], tmp_path: Path) -> None:
    shape = ["--lengths", "2", "--batches", "1,2", "--contexts", "64,4096", "--out", str(tmp_path / "costs.json")]
    said = succeeds("costs", "--start", *asked, *shape).stdout
    assert "at 64 tokens of context" in said
    assert f"{TEXT:.3g} s a step and request" in said
    for batch, curve in read_costs(tmp_path / "costs.json", "llama-server").items():
        for context in (64, 1000):
            plain = np.interp(context, curve.contexts, curve.plain)
            assert plain == pytest.approx(step(0, batch, context), rel=1e-3)
            assert curve.step_seconds(2, context) == pytest.approx(step(2, batch, context), rel=1e-3)
        assert curve.draft_seconds(1, 64) == pytest.approx(ALONE)  # less than the step has beyond a plain one
        assert ALONE < DRAFTED
    assert not left(tmp_path)


def test_a_server_that_ignores_its_length_is_refused_and_stopped(asked: list[str], tmp_path: Path) -> None:
    asked[-1] += " --ignores 3"
    said = refusal("costs", "--start", *asked, "--lengths", "4,8", "--batches", "1", "--out", tmp_path / "costs.json")
    assert "was started for drafts of 8 tokens drafts 3 on average, so it ignored the length" in said
    assert not left(tmp_path)
    missing = str(tmp_path / "none.gguf")
    for wrong, message in (
        (["--out", "x.json", *asked, "--drafter", missing], "serves GGUF files, and"),
        (["--out", "x.json", *asked, "--kind", "pard"], "has no drafter 'pard'"),
        (["--out", "x.json", *asked[:2]], "name what the servers serve"),
        (["--out", "x.json", *asked[2:], "-e", "sglang"], "choose --engine vllm or llama-server"),
        (asked, "name the file of costs"),
        (["--out", "x.json", *asked[:-1], str(tmp_path / "nothing")], "No such file or directory"),
        (["--out", "x.json", *asked[:-1], "false"], "ended with code 1"),
    ):
        assert message in refusal("costs", "--start", *wrong)


def test_vllm_beside_draftgauge_is_started_without_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    server.write_text("import sys\nsys.exit(' '.join(sys.argv[1:]))")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of the process that it starts
    asked = ("-e", "vllm", "--target", "T", "--drafter", "lookup", "--out", tmp_path / "costs.json")
    assert "--model T --max-num-seqs 16" in refusal("costs", "--start", *asked)


def test_ctrl_c_leaves_no_server(asked: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftgauge", "costs", "--start", *asked, "--out", str(tmp_path / "costs.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        until = time.monotonic() + 60
        while not left(tmp_path) and time.monotonic() < until:
            time.sleep(0.05)
        assert left(tmp_path)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert not left(tmp_path)
