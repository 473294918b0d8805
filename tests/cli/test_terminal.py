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
    places = [said.index(f"--{option} ") for option in ("out", "target", "drafter", "prompts", "seconds", "top-k")]
    assert max(places[:4]) < min(places[4:])


def on_terminal(*words: str, cache: Path) -> str:
    """What a command writes on a terminal of 80 columns."""
    reading, terminal = pty.openpty()
    environment = os.environ | {"DRAFTGAUGE_CACHE": str(cache), "TERM": "xterm-256color", "COLUMNS": "80"}
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
    return said


def test_a_table_shows_the_five_columns_that_matter_and_wide_shows_all(tmp_path: Path) -> None:
    run = str(Path(__file__).parents[2] / "docs" / "results" / "real" / "runs" / "bf16")
    wide = draftgauge(["replay", run, "--policy", "stopping", "--wide"]).stdout
    said = on_terminal("replay", run, "--policy", "stopping", cache=tmp_path)
    (line,) = [line for line in said.splitlines() if line.startswith(" stopping")]
    assert line.split()[:3] == ["stopping", "yes", "1.96"]
    assert len(re.split(r"   +", line.strip())) >= 5
    assert "Not shown at this width: " in said
    assert "Not shown" not in wide
    assert len(next(line for line in wide.splitlines() if line.startswith(" stopping")).split("   ")) > 5


def test_streamed_text_is_not_overwritten_by_the_meter(tmp_path: Path) -> None:
    save_tiny(tmp_path / "target")
    save_noisy(tmp_path / "draft")
    words = ["generate", "abc def", "--policy", "stopping", "--show-drafts", "--max-new-tokens", "12"]
    words += ["--device", "cpu", "--cost-seconds", "0.2"]
    words += ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "draft")]
    said = on_terminal(*words, cache=tmp_path / "cache")
    assert "cost curve" in said
    bars = [match.end() for match in re.finditer(r"\x1b\[(?:2K|1A)|100/100", said)]
    answer = said[max(bars) :]
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", answer)
    assert re.search(r"12 tokens in \d+ steps?", shown), said
    tokens = re.search(r"accepted from the draft", shown)
    assert tokens is not None
    assert len(shown[: tokens.start()].split("\n", 1)[1].strip()) >= 12  # the text itself, behind the last bar
