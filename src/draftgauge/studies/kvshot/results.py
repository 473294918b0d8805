"""From the results of cells to rows: one for every run, pooled over seeds, by depth, by task, by distance, and the
verdicts; no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.diagnostics.bottlenecks import Bottlenecks, bottleneck_rows
from draftgauge.statistics.bootstrap import Interval, columns
from draftgauge.statistics.crossed import (
    Counts,
    Measure,
    alpha_intervals,
    at_depths,
    difference,
    interval,
    mean_accepted,
    retention,
)
from draftgauge.statistics.paired import ratio_interval
from draftgauge.studies.kvshot.cells import RESULT_NAME, Cell, Variant
from draftgauge.studies.kvshot.presets import NONE
from draftgauge.studies.kvshot.tuning import Tuned
from draftgauge.studies.kvshot.verdicts import EFFECTS, Run, common_seeds, compare, mat_by_prompt, verdicts

Row = dict[str, Any]
NORMS = ("norm_before_fc", "norm_before_residual", "norm_output")


@dataclass(frozen=True)
class CellResult:
    """A finished cell: its result file's content, with the counts as arrays.

    Attributes:
        forced: drafts from all output positions that reached each depth, and those accepted there.
        agreed: all output positions that have a label at each depth, and those where the drafted token is the label.
        survived: the same positions, and those where all tokens up to this depth are the labels.
        walked, live: of the drafts that decoding makes on its way, teacher-forced and live.
        bottlenecks: what limits it.
        normalisation: the norms of its inputs that its design has.
        learning_rate: peak that it was trained with; None for the default of its target's width.
    """

    variant: Variant
    seed: int
    parameters: int
    intermediate_size: int
    tasks: tuple[str, ...]
    forced: Counts
    agreed: Counts
    survived: Counts
    walked: Counts
    live: Counts
    distance_names: tuple[str, ...]
    by_distance: tuple[Counts, ...]
    bottlenecks: Bottlenecks
    normalisation: str
    learning_rate: float | None
    raw: Mapping[str, Any]


def read_result(cell: Cell) -> CellResult | None:
    """The result of a cell; None where it has none yet.

    Raises:
        DraftgaugeError: if it is the result of other settings, or cannot be read.
    """
    path = cell.folder / RESULT_NAME
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["digest"] != cell.digest():
            raise DraftgaugeError(
                f"{path} is the result of other settings (preset, steps, prompts or target): give this study a folder "
                "of its own"
            )
        return _parsed(cell, document)
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise DraftgaugeError(
            f"{path} cannot be read as the result of a cell ({error}): remove it, and the cell runs again"
        ) from error


def _parsed(cell: Cell, document: Mapping[str, Any]) -> CellResult:
    evaluation = document["evaluation"]
    pairs = {
        kind: Counts.of(evaluation[f"{kind}reached"], evaluation[f"{kind}accepted"])
        for kind in ("", "walked_", "live_")
    }
    distances = [np.asarray(evaluation[f"distance_{kind}"], np.int64) for kind in ("reached", "accepted")]
    return CellResult(
        variant=cell.variant,
        seed=cell.request.seed,
        parameters=cell.parameters,
        intermediate_size=cell.request.intermediate_size or 0,
        tasks=tuple(evaluation["tasks"]),
        forced=pairs[""],
        agreed=Counts.of(evaluation["positions"], evaluation["agreed"]),
        survived=Counts.of(evaluation["positions"], evaluation["accepted"]),
        walked=pairs["walked_"],
        live=pairs["live_"],
        distance_names=tuple(document["distances"]),
        by_distance=tuple(Counts.of(*(part[:, c] for part in distances)) for c in range(distances[0].shape[1])),
        bottlenecks=Bottlenecks.from_json(document["bottlenecks"]),
        normalisation=", ".join(name for name in NORMS if getattr(cell.request, name)) or "none",
        learning_rate=cell.request.learning_rate,
        raw=document,
    )


def study_rows(results: Sequence[CellResult]) -> list[Row]:
    """All rows of a study.

    - a run: ``design, seed, layers, injection, init, mat, retention, parameters`` with ``capacity``,
      ``intermediate_size``, intervals over prompts, the live measure and its difference to the teacher-forced one on
      the same drafts, draft trees and latency;
    - by depth: ``design, layers, injection, init, capacity, depth, alpha, low, high`` over prompts and seeds, ``depth``
      from 0; beside alpha, which compares the survivors of each drafter, ``agreement`` over all positions and
      ``survival``, the share of all positions where every token up to this depth is right, with their intervals;
    - other measures, likewise pooled: ``measure`` with ``task`` or ``distance``, ``estimate, low, high``;
    - paired differences of MAT over all positions, on the seeds of both, with ``p_value, p_seeds``, neither corrected:
      ``mat_minus_plain`` to the same drafter without its remedy, ``mat_minus_random`` to the same from random weights,
      ``mat_minus_none`` to the control;
    - what limits a drafter: rows of :func:`~draftgauge.diagnostics.bottlenecks.bottleneck_rows`;
    - a prediction: ``prediction, verdict, difference, low, high, test, seeds, p_value, p_seeds``.

    Of the two MATs of a run, ``mat`` is over all output positions, ``live_mat`` over those where decoding drafts.
    """
    variants = dict.fromkeys(result.variant for result in results)
    pooled = [[result for result in results if result.variant == variant] for variant in variants]
    rows = [_run_row(result) for result in results]
    for group in pooled:
        rows += _depth_rows(group)
    for group in pooled:
        rows += _measure_rows(group)
    for group in pooled:
        rows += bottleneck_rows([result.bottlenecks for result in group], _labels(group[0].variant))
    runs: dict[Variant, dict[int, Run]] = {}
    for result in results:
        runs.setdefault(result.variant, {})[result.seed] = Run(result.agreed, result.survived)
    return [*rows, *_paired_rows(runs), *_verdict_rows(runs)]


def _labels(variant: Variant) -> Row:
    return {
        "design": variant.design,
        "layers": variant.layers,
        "injection": variant.injection or None,
        "init": variant.init,
        "capacity": variant.capacity,
    } | ({"remedy": variant.remedy} if variant.remedy else {})


def _run_row(result: CellResult) -> Row:
    labels = _labels(result.variant)
    row: Row = {"design": labels.pop("design"), "seed": result.seed} | labels
    for name, measure in (("mat", mean_accepted), ("retention", retention)):
        row |= columns(name, interval(result.forced, measure))
    row |= {"parameters": result.parameters, "intermediate_size": result.intermediate_size}
    row |= {"normalisation": result.normalisation, "learning_rate": result.learning_rate}
    if result.live.reached.shape[1]:
        row |= columns("live_mat", interval(result.live, mean_accepted))
        gap = difference(result.live, result.walked, mean_accepted)
        row |= columns("live_minus_forced", gap)
        row["live_mismatched_prompts"] = result.raw["evaluation"]["mismatched"]
    tree = _tree_mat([result])
    row |= {} if tree is None else columns("tree_mat", tree)
    row |= {f"train_{key}": value for key, value in result.raw["training"].items()}
    latency = result.raw["evaluation"]["latency"]
    return row | ({} if latency is None else dict(latency))


def _tree_mat(group: Sequence[CellResult]) -> Interval | None:
    """Accepted length with draft trees, the target's own token included, over the prompts of all seeds; None where no
    trees were drafted.
    """
    tokens, steps = (
        np.sum([result.raw["evaluation"][f"tree_{key}"] for result in group], axis=0) for key in ("tokens", "steps")
    )
    return ratio_interval(tokens, steps) if len(tokens) else None


def _depth_rows(group: Sequence[CellResult]) -> Iterator[Row]:
    kinds = {"alpha": "forced", "agreement": "agreed", "survival": "survived"}
    intervals = {
        name: alpha_intervals(Counts.stack([getattr(result, kind) for result in group])) for name, kind in kinds.items()
    }
    for depth, (alpha, low, high) in enumerate(intervals["alpha"]):
        row = _labels(group[0].variant) | {
            "seeds": len(group),
            "depth": depth,
            "alpha": alpha,
            "low": low,
            "high": high,
        }
        for name in ("agreement", "survival"):
            row |= columns(name, intervals[name][depth])
        yield row


def _measure_rows(group: Sequence[CellResult]) -> Iterator[Row]:
    labels = _labels(group[0].variant) | {"seeds": len(group)}
    counts = Counts.stack([result.forced for result in group])
    depths = counts.reached.shape[-1]
    deep = at_depths(min(4, depths - 1), min(6, depths - 1))
    for name, measure in (
        ("mat", mean_accepted),
        ("retention", retention),
        ("alpha_first", at_depths(0, 0)),
        ("alpha_deep", deep),
    ):
        yield labels | _measured(name, counts, measure)
    tasks = np.array(group[0].tasks)
    for task in dict.fromkeys(group[0].tasks):
        yield labels | {"task": task} | _measured("mat", counts.prompts(tasks == task), mean_accepted)
    if group[0].live.reached.shape[1]:
        live, walked = (Counts.stack([getattr(result, kind) for result in group]) for kind in ("live", "walked"))
        yield labels | _measured("live_mat", live, mean_accepted)
        yield labels | {"measure": "live_minus_forced"} | difference(live, walked, mean_accepted)._asdict()
    tree = _tree_mat(group)
    if tree is not None:
        yield labels | {"measure": "tree_mat"} | tree._asdict()
    for index, name in enumerate(group[0].distance_names):
        at = Counts.stack([result.by_distance[index] for result in group])
        for which, measure in (("alpha_first", at_depths(0, 0)), ("alpha_deep", deep)):
            yield labels | {"distance": name} | _measured(which, at, measure)


def _measured(name: str, counts: Counts, measure: Measure) -> Row:
    return {"measure": name} | interval(counts, measure)._asdict()


def _paired_rows(runs: Mapping[Variant, Mapping[int, Run]]) -> Iterator[Row]:
    for variant in runs:
        bases = {
            "plain": replace(variant, remedy=""),
            "random": replace(variant, init="random"),
            "none": NONE,
        }
        for name, base in bases.items():
            if variant == base or len(common_seeds(runs, variant, base)) < 2:
                continue
            test = compare(mat_by_prompt, runs, variant, base)
            figures = {"estimate": test.estimate, "low": test.low, "high": test.high}
            tests = {"seeds": test.seeds, "p_value": test.p_value, "p_seeds": test.p_seeds, "test": EFFECTS}
            yield _labels(variant) | {"measure": f"mat_minus_{name}"} | figures | tests


def _verdict_rows(runs: Mapping[Variant, Mapping[int, Run]]) -> list[Row]:
    return [
        {
            "prediction": v.prediction.name,
            "verdict": v.verdict,
            "difference": v.difference,
            "low": v.low,
            "high": v.high,
            "test": v.prediction.measured,
            "seeds": v.seeds,
            "p_value": v.p_value,
            "p_seeds": v.p_seeds,
            "uncorrected_p_value": v.raw_p_value,
            "statement": v.prediction.statement,
            "reason": v.reason or None,
        }
        for v in verdicts(runs)
    ]


def tuned_rows(tuned: Mapping[Variant, Tuned]) -> list[Row]:
    """What was tried for each row of the table: ``trial, learning_rate, warmup, gate_start, validation_kl, chosen``."""
    return [row for variant, chosen in tuned.items() for row in chosen.rows(_labels(variant))]


def summary(rows: Sequence[Row]) -> list[Row]:
    """One line for every variant, over its seeds: the paper's table, from pooled rows."""
    lines: dict[str, Row] = {}
    for row in rows:
        if "alpha" in row and row["depth"] in (0, 3, 6):
            _line(lines, row)[f"alpha_{row['depth']}"] = row["alpha"]
            _line(lines, row)[f"agreement_{row['depth']}"] = row["agreement"]
        if "measure" in row and "task" not in row and "distance" not in row:
            name = row["measure"]
            line = _line(lines, row)
            line |= columns(name, Interval(row["estimate"], row["low"], row["high"]))
    return list(lines.values())


def _line(lines: dict[str, Row], row: Row) -> Row:
    """The line of a row's variant, begun if need be."""
    labels = {key: row[key] for key in ("design", "layers", "init", "capacity")}
    name = Variant(**labels, injection=row["injection"] or "", remedy=row.get("remedy") or "").name
    return lines.setdefault(name, {"drafter": name})
