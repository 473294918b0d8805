"""Recorded runs written without a model, with a plain cost curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import COSTS_NAME, Manifest
from draftgauge.traces.trace import PromptRecord
from draftgauge.traces.writer import TraceWriter
from synthetic import synthetic_manifest, synthetic_records

GAMMA_MAX, LENGTH = 4, 20


def write_records(
    folder: Path, manifest: Manifest, records: Iterable[PromptRecord], costs: CostCurve | None = None, shard: int = 4
) -> None:
    """A run of these records, ``shard`` prompts a file."""
    with TraceWriter(folder, manifest, shard) as writer:
        for record in records:
            writer.add(record)
    if costs is not None:
        costs.save(folder / COSTS_NAME)


def write_run(folder: Path, prompts: int, device: str = "cpu", length: int = LENGTH, **changes: Any) -> Path:
    """A run of ``prompts`` prompts, by turns of every task and then of every split; ``changes`` are of its manifest."""
    verify = tuple((0.01 + 0.001 * np.arange(GAMMA_MAX + 1)).tolist())
    draft = tuple((0.002 * np.arange(GAMMA_MAX + 1)).tolist())
    costs = CostCurve((0,), (verify,), (draft,), (0.01,), "uncompressed", device, "float32")
    manifest = replace(synthetic_manifest(prompts, GAMMA_MAX, length), **changes)
    write_records(folder, manifest, synthetic_records(1, prompts, length, GAMMA_MAX), costs)
    return folder
