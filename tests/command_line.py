"""The command line in this process: what it printed and how it ended."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from draftgauge.cli.main import run


@dataclass(frozen=True)
class Result:
    """Exit code and texts."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def message(self) -> str:
        return " ".join(self.stderr.split())


def draftgauge(arguments: Sequence[str]) -> Result:
    """Run ``draftgauge`` with these words after it."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["draftgauge", *arguments]):
        code = run(arguments)  # as a function, which leaves signals to this process
    return Result(code, out.getvalue(), err.getvalue())


def invoke(*arguments: object) -> Result:
    return draftgauge([str(argument) for argument in arguments])


def succeeds(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: object) -> str:
    """The message of a run that must be refused."""
    result = invoke(*arguments)
    assert result.exit_code == 2, (arguments, result.output)
    return result.message


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What ``--json`` wrote."""
    document = json.loads(path.read_text())
    assert set(document) >= {"sha256", "command", "created", "environment", "rows"}
    return list(document["rows"])
