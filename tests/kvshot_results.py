"""Results of cells as drafters with known acceptance would leave them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from draftgauge.core.config import to_mapping
from draftgauge.diagnostics.bottlenecks import CONTROLS, MEASURES, Bottlenecks, GroupGradient, QueryErrors
from draftgauge.drafters.reuse.config import DESIGNS
from draftgauge.studies.kvshot.cells import KEPT, RESULT_NAME, Cell, Evaluation, Study, Variant, make_cells
from draftgauge.studies.kvshot.presets import CONTROL, CROSS, HIDDEN, HYBRID, KV, KV_DEEP
from draftgauge.studies.kvshot.results import CellResult, read_result
from draftgauge.training.reuse.request import TrainingSpec

TASKS = ("code", "math")
ALPHAS: dict[Variant, list[float]] = {
    HIDDEN: [0.64, 0.57, 0.53, 0.51, 0.49, 0.48, 0.47],
    KV: [0.49, 0.44, 0.40, 0.38, 0.37, 0.36, 0.35],
    KV_DEEP: [0.61, 0.57, 0.54, 0.53, 0.51, 0.50, 0.50],
    HYBRID: [0.65, 0.58, 0.54, 0.52, 0.51, 0.50, 0.49],
    CROSS: [0.63, 0.56, 0.52, 0.50, 0.48, 0.46, 0.45],
    CONTROL: [0.24, 0.24, 0.24, 0.24, 0.24, 0.24, 0.24],
}


def study(variants: Sequence[Variant] = tuple(ALPHAS), seeds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Study:
    return Study("test", tuple(variants), seeds, TrainingSpec(), Evaluation())


def cells(folder: Path, chosen: Study, fixed: int | None = None) -> list[Cell]:
    """Cells whose widths are different, or all alike."""
    shapes = {variant: (fixed or 100 + number, 1000) for number, variant in enumerate(chosen.variants)}
    return make_cells(chosen, shapes, "target", folder)


def write_result(cell: Cell, alpha: Sequence[float], prompts: int = 40, seconds: float = 3.0) -> None:
    """Write the result file of a cell with these acceptance rates. A prompt is equally hard in every cell."""
    rng = np.random.default_rng([cell.request.seed, *cell.variant.name.encode()])
    drafts = 20_000
    ease = np.random.default_rng(0).normal(0, 0.02, prompts)
    reached, accepted = [], []
    here = np.full(prompts, drafts)
    for value in alpha:
        reached.append(here)
        here = rng.binomial(here, np.clip(value + ease, 0, 1))
        accepted.append(here)
    both = {"reached": np.stack(reached, -1), "accepted": np.stack(accepted, -1)}
    found = {f"{kind}{key}": value.tolist() for kind in ("", "live_") for key, value in both.items()}
    positions, free = np.full((prompts, len(alpha)), drafts), rng.binomial  # agreement at the rates of acceptance
    agreed = [free(drafts, np.clip(value + ease, 0, 1)) for value in alpha]
    found |= {"positions": positions.tolist(), "agreed": np.stack(agreed, -1).tolist(), "mismatched": 0}
    found |= {"tasks": [TASKS[n % 2] for n in range(prompts)], "tree_tokens": [90, 80], "tree_steps": [30, 25]}
    timed = {
        "verify_ms": 5.0,
        "tokens_per_second": 200.0,
        "plain_tokens_per_second": 100.0,
        "ratio": 2.0,
    }  # as earlier versions wrote it
    found["latency"] = {"gamma": len(alpha), "draft_ms": 1.0 + cell.variant.layers} | timed
    training = {"steps": 10, "tokens": 1000, "seconds": 2.0, "tokens_per_second": 500.0, "loss": 3.0}
    document = {"identity": cell.digest(), "training": training, "evaluation": found}
    counts = {key: found[key] for key in ("positions", "agreed", "accepted")}
    fewer = counts | {"accepted": (np.array(counts["accepted"]) // 2).tolist()}
    document["curve"] = [{"tokens": 500, "seconds": 1.0} | fewer, {"tokens": 1000, "seconds": 2.0} | counts]
    document |= {"bottlenecks": to_mapping(limits(cell, len(alpha))), "seconds": seconds}
    cell.folder.mkdir(parents=True, exist_ok=True)
    KEPT.write(cell.folder / RESULT_NAME, json.loads(json.dumps(document)))


def limits(cell: Cell, depths: int) -> Bottlenecks:
    """What limits a drafter that guesses queries worse the deeper it drafts, and whose gate is a quarter open."""
    design = DESIGNS[cell.variant.design]
    shape = (4, depths)
    positions = np.full(shape, 50.0)
    error = positions * 0.1 * np.arange(1, depths + 1)
    sums = {name: np.repeat(error[..., None, None], 3, -1) for name in MEASURES}
    agreed = {name: positions * share for name, share in zip(CONTROLS, (0.4, 0.5), strict=True)}
    gradients = [
        GroupGradient(group, depth, 0.5, 0.01, 0.25)
        for group in ("head", "blocks.0.chain_attention.keys")
        for depth in (0, depths - 1)
    ]
    gate = {"gate_mean": 0.25, "gate_open": 0.1}
    history = [{"step": step, **gate} for step in (1, 5, 10)] if design.gated else []
    query = QueryErrors((1, 2, 3), positions, sums, agreed) if design.reads_kv else None
    return Bottlenecks(query, gradients, [gate] if design.gated else [], history)


def results(
    folder: Path, alphas: dict[Variant, list[float]] | None = None, seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
) -> list[CellResult]:
    """Results of a whole study."""
    alphas = alphas or ALPHAS
    made = cells(folder, study(tuple(alphas), seeds))
    for cell in made:
        write_result(cell, alphas[cell.variant])
    found = [read_result(cell) for cell in made]
    return [result for result in found if result is not None]
