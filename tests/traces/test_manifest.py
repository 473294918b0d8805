from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.errors import TraceError
from draftgauge.traces.manifest import Manifest
from synthetic import synthetic_manifest

BASE = synthetic_manifest(24, 16, 256)


def test_round_trip(tmp_path: Path) -> None:
    for manifest in (BASE, replace(BASE, draft=None, drafter="prompt_lookup:ngram=3", complete=True)):
        manifest.save(tmp_path)
        assert Manifest.load(tmp_path) == manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"draftgauge": "9"},
        {"command": "another"},
        {"created": "later"},
        {"environment": {}},
        {"device": "cuda"},
        {"seed": 5},
        {"complete": True},
        {"prompts": replace(BASE.prompts, path="elsewhere", count=3, tasks=("code",))},
        {"target": replace(BASE.target, source="elsewhere", engine="modules")},
    ],
)
def test_how_and_where_it_was_recorded_does_not_change_the_fingerprint(changes: dict[str, Any]) -> None:
    other = replace(BASE, **changes)
    assert other.fingerprint() == BASE.fingerprint()
    assert other.differences(BASE) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": replace(BASE.target, fingerprint="x")}, "target.fingerprint: 'x', not 'tttttttt'"),
        ({"target": replace(BASE.target, compression="int8")}, "target.compression: 'int8', not 'none'"),
        ({"target": replace(BASE.target, dtype="bfloat16")}, "target.dtype: 'bfloat16', not 'float32'"),
        (
            {"draft": replace(BASE.draft, fingerprint="x") if BASE.draft else None},
            "draft.fingerprint: 'x', not 'dddddddd'",
        ),
        ({"drafter": "prompt_lookup"}, "drafter: 'prompt_lookup', not 'language_model'"),
        ({"gamma_max": 8}, "gamma_max: 8, not 16"),
        ({"max_new_tokens": 8}, "max_new_tokens: 8, not 256"),
        ({"prompts": replace(BASE.prompts, sha256="b")}, f"prompts.sha256: 'b', not '{'a' * 64}'"),
    ],
)
def test_what_changes_rows_changes_the_fingerprint(changes: dict[str, Any], named: str) -> None:
    other = replace(BASE, **changes)
    assert other.fingerprint() != BASE.fingerprint()
    assert other.differences(BASE) == [named]


def test_the_fingerprint_stays_what_it_is() -> None:
    """Folders recorded before must stay resumable."""
    assert BASE.fingerprint() == "31583e972ee61a506556d6d4a1605b7a0d8b029be97bbf4958eca03853d5b44d"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"manifest\.json is damaged"),
        ("[]", r"manifest\.json is damaged \(not a JSON object\)"),
        ('{"schema_version": 7}', "has schema version 7, this draftgauge reads 1"),
        ('{"schema_version": 1}', "'command', 'created'.* must be given"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(TraceError, match=message):
        Manifest.load(tmp_path)


def test_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no trace .*draftgauge profile"):
        Manifest.load(tmp_path)
