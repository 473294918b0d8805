"""Small tables of made-up speculation, written in the published columns."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.studies.speckv.importer import EXPERIMENT_COLUMNS, STEP_COLUMNS
from draftgauge.studies.speckv.records import COMPRESSIONS, GAMMAS, TASKS

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "speckv"
VERIFY, DRAFT = {"fp16": 0.020, "int8": 0.090, "nf4": 0.036}, 0.010


def made_up_rows(prompts_per_task: int = 2, seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps and experiments of a whole grid: runs of up to 80 tokens whose times follow VERIFY and DRAFT exactly."""
    rng = np.random.default_rng(seed)
    steps: list[dict[str, Any]] = []
    experiments: list[dict[str, Any]] = []
    for compression in COMPRESSIONS:
        for gamma in GAMMAS:
            for task in TASKS:
                for number in range(prompts_per_task):
                    run, drafted = _run(rng, compression, gamma, task)
                    seconds = len(run) * VERIFY[compression] + drafted * DRAFT
                    tokens = sum(row["tokens_produced"] for row in run)
                    steps += run
                    experiments.append(
                        {
                            "compression": compression,
                            "gamma": gamma,
                            "task": task,
                            "prompt": f"{task}, prompt {number}",
                            "num_tokens": tokens,
                            "elapsed_sec": seconds,
                            "tokens_per_sec": tokens / seconds,
                            "mean_acceptance_rate": round(float(np.mean([row["acceptance_rate"] for row in run])), 4),
                            "num_steps": len(run),
                        }
                    )
    return steps, experiments


def _run(rng: np.random.Generator, compression: str, gamma: int, task: str) -> tuple[list[dict[str, Any]], int]:
    rows: list[dict[str, Any]] = []
    produced = drafted = 0
    while produced < 80:
        length = min(gamma, 80 - produced)
        confidence = rng.uniform(0.3, 1.0, length)
        accepted = int(np.cumprod(rng.uniform(size=length) < confidence).sum())
        entropy = 4 * (1 - confidence)
        rows.append(
            {
                "compression": compression,
                "gamma": gamma,
                "task": task,
                "step": len(rows),
                "accepted": accepted,
                "acceptance_rate": accepted / length,
                "tokens_produced": accepted + 1,
                "mean_draft_entropy": round(float(entropy.mean()), 4),
                "mean_draft_confidence": round(float(confidence.mean()), 4),
                "max_draft_entropy": round(float(entropy.max()), 4),
                "min_draft_confidence": round(float(confidence.min()), 4),
            }
        )
        produced, drafted = produced + accepted + 1, drafted + length
    return rows, drafted


def write_rows(path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Path:
    """Write rows as CSV; each row is one line, the first row is line 2."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_tables(folder: Path, steps: list[dict[str, Any]], experiments: list[dict[str, Any]]) -> tuple[Path, Path]:
    """Both tables in a folder."""
    return write_rows(folder / "steps.csv", steps, STEP_COLUMNS), write_rows(
        folder / "experiments.csv", experiments, EXPERIMENT_COLUMNS
    )
