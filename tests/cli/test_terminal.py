"""On a terminal: streamed text stays, help has groups, and tables fit 80 columns."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from command_line import draftgauge
from tiny import save_noisy, save_tiny


def test_help_names_groups_with_an_example_each_and_basic_options_first() -> None:
    said = draftgauge(["--help"]).stdout
    for group in ("Measure", "Decide", "Run", "Train", "Research"):
        assert re.search(rf"{group}: draftgauge [a-z]+ \S", said)
    said = draftgauge(["profile", "--help"]).stdout
    places = [said.index(f"--{option} ") for option in ("out", "target", "draft", "prompts", "seconds", "top-k")]
    assert max(places[:4]) < min(places[4:])


def test_streamed_text_is_not_overwritten_by_the_meter(tmp_path: Path) -> None:
    save_tiny(tmp_path / "target")
    save_noisy(tmp_path / "draft")
    words = [
        "generate",
        "abc def",
        "--policy",
        "stopping",
        "--show-drafts",
        "--max-new-tokens",
        "12",
        "--device",
        "cpu",
    ]
    words += ["--cost-seconds", "1", "--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]
    reading, terminal = pty.openpty()
    environment = os.environ | {"DRAFTGAUGE_CACHE": str(tmp_path / "cache"), "TERM": "xterm-256color", "COLUMNS": "80"}
    command = [sys.executable, "-m", "draftgauge", *words]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                piece = os.read(reading, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            seen += piece
    os.close(reading)
    said = seen.decode(errors="replace")
    assert process.returncode == 0, said
    assert "cost curve" in said
    bars = [match.end() for match in re.finditer(r"\x1b\[(?:2K|1A)|100/100", said)]
    answer = said[max(bars) :]
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", answer)
    assert re.search(r"12 tokens in \d+ steps?", shown), said
    tokens = re.search(r"accepted from the draft", shown)
    assert tokens is not None
    assert len(shown[: tokens.start()].split("\n", 1)[1].strip()) >= 12  # the text itself, behind the last bar
