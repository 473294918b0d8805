from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import command_line, environment, git_revision, read_measurement, write_measurement


def test_measurement_round_trip_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    rows = [
        {"policy": "fixed:4", "tokens_per_second": np.float32(1.5), "mismatches": np.int64(0), "ratio": float("nan")},
        {"policy": "none", "tokens_per_second": np.inf, "mismatches": None, "exact": np.True_, "path": Path("a/b")},
    ]
    write_measurement(path, "draftgauge bench x", rows)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(document) == ["format", "version", "sha256", "command", "created", "environment", "rows"]
    measurement = read_measurement(path)
    assert measurement.command == "draftgauge bench x"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(measurement.created)).total_seconds()) < 60
    assert measurement.rows == (
        {"policy": "fixed:4", "tokens_per_second": 1.5, "mismatches": 0, "ratio": None},
        {"policy": "none", "tokens_per_second": None, "mismatches": None, "exact": True, "path": "a/b"},
    )


def test_rows_are_flat(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="rows are flat: by_depth is list"):
        write_measurement(tmp_path / "x.json", "x", [{"by_depth": [1, 2]}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "is not a measurement"),
        ("{}", "'command', 'created', 'environment', 'rows' must be given"),
        ('{"command": "", "created": "", "environment": {}, "rows": [1]}', r"rows\[0\] must be Mapping"),
        ('{"command": "", "created": "", "environment": {}, "rows": [{"a": [1]}]}', r"x\.json: .*a is a list"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(DraftgaugeError, match=message):
        read_measurement(path)


def test_environment_is_json_and_names_the_machine() -> None:
    machine = json.loads(json.dumps(environment(), allow_nan=False))
    assert machine["python"] == ".".join(map(str, sys.version_info[:3]))
    assert machine["versions"]["numpy"] == np.__version__
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["cpu"]


def test_revision_of_a_checkout(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None  # even where a parent folder is a checkout
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_revision(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-q", "--no-verify", "-m", "a"], check=True)
    revision = git_revision(tmp_path)
    assert revision is not None
    assert len(revision) == 40
    (tmp_path / "a").write_text("2")
    assert git_revision(tmp_path) == f"{revision}-dirty"


def test_command_line_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/draftgauge", "profile", "--out", "my folder"])
    assert command_line() == "draftgauge profile --out 'my folder'"
    monkeypatch.setattr(sys, "argv", ["/site-packages/draftgauge/__main__.py", "replay", "run"])
    assert command_line() == "draftgauge replay run"
