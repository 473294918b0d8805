from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import TraceError
from draftgauge.core.rendering import Rendering
from draftgauge.traces.run import MANIFEST, Manifest
from synthetic import synthetic_manifest

BASE = synthetic_manifest(24, 16, 256)


def test_round_trip(tmp_path: Path) -> None:
    for manifest in (BASE, replace(BASE, draft=None, drafter="prompt_lookup:ngram=3", complete=True)):
        manifest.save(tmp_path)
        assert Manifest.load(tmp_path) == manifest
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"gamma_max": 16', '"gamma_max": 17'))
    with pytest.raises(TraceError, match=r"manifest\.json is damaged.*not match its checksum.*record the trace again"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"draftgauge": "9", "command": "another", "created": "later", "environment": {}, "complete": True},
        {"device": "cuda", "seed": 5},
        {"prompts": replace(BASE.prompts, path="elsewhere", count=3, tasks=("code",))},
        {"target": replace(BASE.target, source="elsewhere", engine="modules")},
    ],
)
def test_how_and_where_it_was_recorded_does_not_change_the_fingerprint(changes: dict[str, Any]) -> None:
    other = replace(BASE, **changes)
    assert other.fingerprint() == BASE.fingerprint()
    other.refuse_other(BASE, "it is")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": replace(BASE.target, fingerprint="x")}, "target.fingerprint: 'x', not 'tttttttt'"),
        ({"target": replace(BASE.target, compression="int8")}, "target.compression: 'int8', not 'uncompressed'"),
        ({"target": replace(BASE.target, dtype="bfloat16")}, "target.dtype: 'bfloat16', not 'float32'"),
        (
            {"draft": replace(BASE.draft, fingerprint="x") if BASE.draft else None},
            "draft.fingerprint: 'x', not 'dddddddd'",
        ),
        ({"drafter": "prompt_lookup"}, "drafter: 'prompt_lookup', not 'language_model'"),
        ({"rule": "first of 2"}, "rule: 'first of 2', not None"),
        ({"gamma_max": 8}, "gamma_max: 8, not 16"),
        ({"max_new_tokens": 8}, "max_new_tokens: 8, not 256"),
        (
            {"rendering": Rendering(turns=2)},
            f"rendering: {to_mapping(Rendering(turns=2))}, not {to_mapping(Rendering())}",
        ),
        ({"prompts": replace(BASE.prompts, sha256="b")}, f"prompts.sha256: 'b', not '{'a' * 64}'"),
    ],
)
def test_what_changes_rows_changes_the_fingerprint(changes: dict[str, Any], named: str) -> None:
    other = replace(BASE, **changes)
    assert other.fingerprint() != BASE.fingerprint()
    with pytest.raises(TraceError, match=re.escape(f"it is of another run ({named}); choose another folder")):
        other.refuse_other(BASE, "it is")


@pytest.mark.parametrize(
    "changes", [{"gamma_max": 0}, {"max_new_tokens": 2**31}, {"temperature": -1.0}, {"top_p": 0.0}]
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    MANIFEST.write(tmp_path / "manifest.json", to_mapping(BASE) | changes)
    with pytest.raises(TraceError, match=r"of a trace|was not drawn"):
        Manifest.load(tmp_path)
