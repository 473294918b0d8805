"""Recorded runs for the report's tests: synthetic traces on disk, with the costs of three imaginary machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.traces.costs import CostCurve
from synthetic import synthetic_manifest, synthetic_records
from written_runs import write_records

GAMMA_MAX = 6
LENGTH = 40


def make_costs(compression: str, verify: float, growth: float, draft: float, gamma_max: int = GAMMA_MAX) -> CostCurve:
    """Costs linear in the number of tokens: ``verify`` seconds for one, ``growth`` of it more for each further one."""
    contexts = (32, 128, 512)
    verifying = np.array([[verify * (1 + c / 4096) * (1 + growth * k) for k in range(gamma_max + 1)] for c in contexts])
    drafting = np.array([[draft * n for n in range(gamma_max + 1)] for _ in contexts])
    plain = tuple((verifying[:, 0] + 1e-4).tolist())
    tables = [tuple(map(tuple, part.tolist())) for part in (verifying + 2e-4, drafting)]
    return CostCurve(contexts, *tables, plain, compression, "cpu", "float32")


def write_run(
    folder: Path, costs: CostCurve, seed: int, prompts: int = 9, length: int = LENGTH, tasks: tuple[str, ...] = ()
) -> Path:
    """A complete run folder; ``tasks`` replaces the tasks of the prompts."""
    manifest = synthetic_manifest(prompts, costs.gamma_max, length)
    manifest = replace(manifest, target=replace(manifest.target, compression=costs.compression))
    records = []
    for record in synthetic_records(seed, prompts, length, costs.gamma_max):
        info = replace(record.info, task=tasks[record.info.index % len(tasks)]) if tasks else record.info
        records.append(replace(record, info=info))
    write_records(folder, manifest, records, costs)
    return folder


@pytest.fixture(scope="session")
def of_task_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one task, which has the name of all tasks together."""
    costs = make_costs("uncompressed", 5e-3, 0.05, 1.5e-3)
    return write_run(tmp_path_factory.mktemp("all") / "uncompressed", costs, seed=3, tasks=("all",))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two compressions of two tasks: with "int8" verifying is dear beside drafting."""
    root = tmp_path_factory.mktemp("runs")
    costs = [make_costs("uncompressed", 5e-3, 0.05, 1.5e-3), make_costs("int8", 3e-2, 0.05, 1.5e-3)]
    return [write_run(root / c.compression, c, seed=3, tasks=("code", "math")) for c in costs]


@pytest.fixture(scope="session")
def single_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of one task, drafts of one token at most."""
    costs = make_costs("bf16", 1e-3, 0.1, 2e-3, gamma_max=1)
    return write_run(tmp_path_factory.mktemp("single"), costs, seed=5, prompts=1, tasks=("chat",))


@pytest.fixture(scope="session")
def live_row() -> Callable[..., dict[str, Any]]:
    """A row as ``draftgauge bench`` gives it, with some of its keys replaced."""

    def make(policy: str, **changes: Any) -> dict[str, Any]:
        row = {
            "policy": policy,
            "compression": "uncompressed",
            "task": "all",
            "tokens_per_step": 2.5,
            "tokens_per_second": 300.0,
            "ratio_to_plain": 1.5,
            "ratio_to_plain_low": 1.4,
            "ratio_to_plain_high": 1.6,
            **dict.fromkeys(("mismatches", "mismatched_prompts", "near_ties"), 0),
        }
        return row | changes

    return make
