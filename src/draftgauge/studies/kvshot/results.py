"""From the results of cells to rows: by run, pooled over seeds, by depth, by task, and the verdicts; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.diagnostics.bottlenecks import Bottlenecks, bottleneck_rows
from draftgauge.judging.statistics.bootstrap import Interval, columns, ratio_interval
from draftgauge.judging.statistics.crossed import Counts, depth_rows, interval, mean_accepted, retention
from draftgauge.studies.kvshot.cells import DRAFTER_FOLDER, HEADS, RECIPES, RESULT_NAME, Cell, Variant, read_kept
from draftgauge.studies.kvshot.curve import Curve, Point, at_equal_seconds, curve_rows, gradient_rows
from draftgauge.studies.kvshot.presets import CONTROL, HIDDEN
from draftgauge.studies.kvshot.verdicts import Run, common_seeds, compare, mat_by_prompt, verdict_rows
from draftgauge.training.reuse.request import BLOCK, TTT
from draftgauge.training.reuse.tracking import read_history

if TYPE_CHECKING:  # it trains, with torch
    from draftgauge.studies.kvshot.tuning import Tuned

Row = dict[str, Any]


@dataclass(frozen=True)
class CellResult:
    """A finished cell: its result file's content, with the counts as arrays.

    Attributes:
        forced: drafts from all output positions that reached each depth, and those accepted there.
        agreed: all output positions that have a label at each depth, and those where the drafted token is the label.
        survived: the same positions, and those where all tokens up to this depth are the labels.
        live: of the drafts of live decoding.
    """

    cell: Cell
    forced: Counts
    agreed: Counts
    survived: Counts
    live: Counts
    bottlenecks: Bottlenecks
    curve: Curve
    history: Sequence[Mapping[str, float]]
    evaluation: Mapping[str, Any]
    training: Mapping[str, Any]


def read_result(cell: Cell) -> CellResult | None:
    """The result of a cell, None where it has none yet; raises ``DraftgaugeError`` for one of other settings."""
    path = cell.folder / RESULT_NAME
    document = read_kept(path, cell.digest())
    if document is None:
        return None
    try:
        found = document["evaluation"]
        forced, live = (Counts.of(found[f"{kind}reached"], found[f"{kind}accepted"]) for kind in ("", "live_"))
        agreed, survived = (Counts.of(found["positions"], found[kind]) for kind in ("agreed", "accepted"))
        limits = Bottlenecks.from_json(document["bottlenecks"])
        training, curve = document["training"], list(map(Point.of, document.get("curve", [])))
    except (KeyError, TypeError) as error:
        raise DraftgaugeError(f"{path} lacks {error}: remove it, and the cell runs again") from error
    history = read_history(cell.folder / DRAFTER_FOLDER)
    return CellResult(cell, forced, agreed, survived, live, limits, curve, history, found, training)


def study_rows(results: Sequence[CellResult]) -> list[Row]:
    """All rows of a study.

    - a run: ``design, seed, layers, injection, init, capacity, mat, retention, parameters, intermediate_size`` with
      intervals over prompts, the live measure, draft trees and latency. ``mat_by_prompt``, which paired differences
      compare, holds one number per prompt in one text; their mean is MAT over all positions;
    - by depth: ``design, layers, injection, init, capacity, depth, alpha`` over prompts and seeds, ``depth`` from 1.
      Alpha compares each drafter's survivors; over all positions, with intervals, are ``agreement`` and ``survival``,
      the share where every token so far is right;
    - other measures, likewise pooled: ``measure``, of all or of a ``task``, ``estimate, low, high``;
    - paired differences of MAT over all positions, on the seeds of both, with ``p_value, p_seeds``, neither corrected.
      ``mat_minus_plain`` is to the same drafter without its remedy or head, ``mat_minus_random`` to the same from
      random weights. ``mat_minus_control`` is to the control of the same recipe and head, and block-wise
      ``mat_minus_hidden`` to the ``hidden`` drafter of these;
    - what limits a drafter: rows of :func:`~draftgauge.diagnostics.bottlenecks.bottleneck_rows`;
    - of a study with two recipes, every run as ``recipe`` (or its head)``, design, seed, tokens_seen,
      tokens_per_step_live, agreement`` (over all depths)``, seconds_draft`` (of a whole draft)``, ratio_to_plain``;
    - of a study that keeps learning curves, see :mod:`draftgauge.studies.kvshot.curve`, a row for every checkpoint, and
      both recipes after equal seconds of training; and :func:`~draftgauge.studies.kvshot.curve.gradient_rows`;
    - predictions: see :func:`~draftgauge.studies.kvshot.verdicts.verdict_rows`.

    Of the two MATs of a run, ``mat`` is over all output positions, ``live_mat`` over those where decoding drafts.
    """
    groups: dict[Variant, list[CellResult]] = {}
    for result in results:
        groups.setdefault(result.cell.variant, []).append(result)
    rows = [_run_row(result) for result in results]
    for variant, group in groups.items():
        labels = _labels(variant)
        kinds = ([getattr(result, kind) for result in group] for kind in ("forced", "agreed", "survived"))
        pooled = [*depth_rows(*map(Counts.stack, kinds)), *_measure_rows(group)]
        rows += [labels | {"seeds": len(group)} | row for row in pooled]
        rows += bottleneck_rows([result.bottlenecks for result in group], labels)
    runs = {
        variant: {result.cell.request.seed: Run(result.agreed, result.survived) for result in group}
        for variant, group in groups.items()
    }
    if len({result.cell.request.recipe for result in results}) > 1:
        rows += map(_recipe_row, results)
        for result in results:
            request = result.cell.request
            rows += gradient_rows(_recipe(result), request.reuse, request.seed, result.history)
    curves: list[Row] = []
    for variant, group in groups.items():
        curves += curve_rows(variant, _recipe(group[0]), [each.curve for each in group if each.curve])
    rows += curves
    for recipe in (BLOCK, *HEADS):
        rows += at_equal_seconds(curves, recipe, TTT)
    return [*rows, *_paired_rows(runs), *verdict_rows(runs)]


def _labels(variant: Variant) -> Row:
    labels = asdict(variant) | {"injection": variant.injection or None}
    return {key: value for key, value in labels.items() if value != "" or key != "remedy"}


def _run_row(result: CellResult) -> Row:
    cell, found = result.cell, result.evaluation
    row = _labels(cell.variant) | {"seed": cell.request.seed, "learning_rate": cell.request.learning_rate}
    row |= {"parameters": cell.parameters, "intermediate_size": cell.request.intermediate_size or 0}
    row |= columns("mat", interval(result.forced, mean_accepted))
    row["mat_by_prompt"] = " ".join(f"{each:.4f}" for each in mat_by_prompt(Run(result.agreed, result.survived)))
    row |= columns("retention", interval(result.forced, retention))
    if result.live.reached.shape[1]:
        row |= columns("live_mat", interval(result.live, mean_accepted))
        row["live_mismatched_prompts"] = found["mismatched"]
    row |= {f"train_{key}": value for key, value in result.training.items()}
    return row | _latency(found)


def _latency(found: Mapping[str, Any]) -> Row:
    """Cells of earlier versions hold ``ratio``."""
    return {"ratio_to_plain" if key == "ratio" else key: value for key, value in (found["latency"] or {}).items()}


def _recipe(result: CellResult) -> str:
    """How it was trained: its recipe, or the name of the head that it has beside it."""
    remedy = result.cell.variant.remedy
    return remedy if remedy in HEADS else result.cell.request.recipe


def _recipe_row(result: CellResult) -> Row:
    request, latency = result.cell.request, _latency(result.evaluation)
    draft = latency["draft_ms"] * latency["gamma"] / 1e3 if latency else None
    return {
        "recipe": _recipe(result),
        "design": request.reuse,
        "seed": request.seed,
        "tokens_seen": result.training["tokens"],
        "tokens_per_step_live": interval(result.live, mean_accepted).estimate,
        "agreement": float(result.agreed.accepted.sum() / result.agreed.reached.sum()),
        "seconds_draft": draft,
        "ratio_to_plain": latency.get("ratio_to_plain"),
    }


def _measure_rows(group: Sequence[CellResult]) -> Iterator[Row]:
    counts = Counts.stack([result.forced for result in group])
    for name, measure in (("mat", mean_accepted), ("retention", retention)):
        yield _measured(name, interval(counts, measure))
    tasks = np.array(group[0].evaluation["tasks"])
    for task in dict.fromkeys(tasks.tolist()):
        yield _measured("mat", interval(counts.prompts(tasks == task), mean_accepted), task=task)
    if group[0].live.reached.shape[1]:
        yield _measured("live_mat", interval(Counts.stack([result.live for result in group]), mean_accepted))
    tokens, steps = (
        np.sum([result.evaluation[f"tree_{key}"] for result in group], axis=0) for key in ("tokens", "steps")
    )
    if len(tokens):
        yield _measured("tree_mat", ratio_interval(tokens, steps))


def _measured(name: str, found: Interval, **key: str) -> Row:
    return {"measure": name, **key} | found._asdict()


def _paired_rows(runs: Mapping[Variant, Mapping[int, Run]]) -> Iterator[Row]:
    for variant in runs:
        bases = {"plain": variant.base, "random": replace(variant, init="random"), "control": CONTROL}
        if variant.remedy in RECIPES:
            bases |= {each.design: replace(each, remedy=variant.remedy) for each in (CONTROL, HIDDEN)}
        for name, base in bases.items():
            if variant == base or len(common_seeds(runs, variant, base)) < 2:
                continue
            test = compare(mat_by_prompt, runs, variant, base)
            yield _labels(variant) | {"measure": f"mat_minus_{name}"} | test._asdict()


def tuned_rows(tuned: Mapping[Variant, Tuned]) -> list[Row]:
    return [row for variant, chosen in tuned.items() for row in chosen.rows(_labels(variant))]


def summary(rows: Sequence[Row]) -> list[Row]:
    """One line for every variant, over its seeds: the paper's table, from pooled rows."""
    lines: dict[str, Row] = {}
    for row in rows:
        if "capacity" not in row:
            continue
        labels = {key: row[key] for key in ("design", "layers", "init", "capacity")}
        name = Variant(**labels, injection=row["injection"] or "", remedy=row.get("remedy") or "").name
        line = lines.setdefault(name, {"drafter": name})
        if "alpha" in row and row["depth"] in (1, 4, 7):
            line |= {f"alpha_{row['depth']}": row["alpha"], f"agreement_{row['depth']}": row["agreement"]}
        if "measure" in row and "task" not in row:
            line |= columns(row["measure"], Interval(row["estimate"], row["low"], row["high"]))
    return list(lines.values())
