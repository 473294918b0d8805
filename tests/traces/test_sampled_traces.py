"""Traces of sampled decoding on disk: a schema version of their own, beside which greedy ones stay what they were."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.errors import TraceError
from draftgauge.traces.run import Manifest, read_trace
from draftgauge.traces.trace import select
from draftgauge.traces.writer import make_trace
from synthetic import same_rows, sampled_records, synthetic_manifest
from written_runs import write_records

GAMMA_MAX, LENGTH = 4, 9
GREEDY = synthetic_manifest(3, GAMMA_MAX, LENGTH)
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.9, seed=4)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = sampled_records(1, 3, LENGTH, GAMMA_MAX)
    write_records(tmp_path, SAMPLED, records, shard=2)
    found, made = read_trace(tmp_path), make_trace(records, LENGTH)
    assert same_rows(found, made)
    for field in fields(made.sampled):
        np.testing.assert_array_equal(getattr(found.sampled, field.name), getattr(made.sampled, field.name), field.name)
    assert (found.accepted > 0).any(), "rows are drawn: some drafts are accepted"
    manifest = Manifest.load(tmp_path)
    assert (manifest.temperature, manifest.top_k, manifest.top_p, manifest.seed) == (0.8, 0, 0.9, 4)
    part = select(found, [False, True, True])
    np.testing.assert_array_equal(part.sampled.survival, found.sampled.survival[found.offsets[1] :])


@pytest.mark.parametrize("changes", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 1.0}, {"seed": 5}])
def test_how_it_was_drawn_is_part_of_its_identity(changes: dict) -> None:
    other = replace(SAMPLED, **changes)
    assert other.fingerprint() != SAMPLED.fingerprint()
    with pytest.raises(TraceError, match=f"another run .{next(iter(changes))}: [^;]*;"):
        other.refuse_other(SAMPLED, "it is")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("acceptance", 1.5, "acceptance must be a chance"), ("survival", np.nan, r"survival must be a chance .*row 2\)")],
)
def test_chances_that_cannot_be_are_refused(name: str, value: float, message: str) -> None:
    record = sampled_records(1, 1, LENGTH, GAMMA_MAX)[0]
    assert record.drafted[2] > 0
    column = getattr(record, name).copy()
    column[2] = value
    with pytest.raises(TraceError, match=message):
        replace(record, **{name: column}).validate()
