"""Recorded runs written without a model, with a plain cost curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME
from draftgauge.traces.writer import TraceWriter
from synthetic import synthetic_manifest, synthetic_records

GAMMA_MAX, LENGTH = 4, 20


def write_run(folder: Path, prompts: int, device: str = "cpu", **changes: Any) -> Path:
    """A run of ``prompts`` prompts, by turns of every task and then of every split; ``changes`` are of its manifest."""
    verify = tuple((0.01 + 0.001 * np.arange(GAMMA_MAX + 1)).tolist())
    draft = tuple((0.002 * np.arange(GAMMA_MAX + 1)).tolist())
    costs = CostCurve((0,), (verify,), (draft,), (0.01,), "uncompressed", device, "float32")
    with TraceWriter(folder, replace(synthetic_manifest(prompts, GAMMA_MAX, LENGTH), **changes)) as writer:
        for record in synthetic_records(1, prompts, LENGTH, GAMMA_MAX):
            writer.add(record)
    costs.save(folder / COSTS_NAME)
    return folder
