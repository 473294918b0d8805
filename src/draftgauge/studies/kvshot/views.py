"""What the report of the KVShot study shows, gathered from the study's rows; no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from draftgauge.reporting.style import fixed, p_text
from draftgauge.studies.kvshot.presets import ROPE

Row = Mapping[str, Any]
LABELS = ("design", "layers", "injection", "init", "capacity", "remedy")


class Estimate(NamedTuple):
    """A figure and the ends of its 95% interval; NaN where it is not known."""

    value: float
    low: float
    high: float

    def text(self, decimals: int = 2) -> str:
        """``2.31 (2.20 to 2.42)``, an en dash where there is none."""
        middle = fixed(self.value, decimals)
        return (
            middle
            if self.low != self.low
            else f"{middle} ({fixed(self.low, decimals)} to {fixed(self.high, decimals)})"
        )


@dataclass(frozen=True)
class LimitsView:
    """What limits a drafter.

    Attributes:
        query_kl: by depth, the mean over the drafter's layers and the tapped ones; empty for designs without keys.
        controls: rows of agreement with another query in place.
        gradients: rows of the last depth, by parameter group.
        gate: ``(step, mean openness)`` over training; empty for designs without a gate.
    """

    query_kl: tuple[float, ...]
    controls: tuple[Row, ...]
    gradients: tuple[Row, ...]
    gate: tuple[tuple[float, float], ...]


UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True)
class VariantView:
    """One row of the study's table, over its seeds.

    Attributes:
        design, layers, injection, init, capacity, remedy: which drafter.
        seeds: how many.
        alpha: by depth, given that all before was accepted.
        agreement: by depth, over all positions.
        measures: ``mat``, ``retention``, ``live_mat``, ``live_minus_forced``, ``tree_mat``, ``alpha_first``,
            ``alpha_deep``.
        tasks: ``mat`` by task.
        distances: ``alpha_first`` and ``alpha_deep`` by the context that a token needs.
        parameters, width: trainable ones, and the width of the MLP.
        draft_ms, tokens_per_second, ratio: medians over seeds; NaN where nothing was timed.
        mismatched: live outputs, over all seeds, that are not the plain ones.
        limits: what limits it.
    """

    design: str
    layers: int
    injection: str
    init: str
    capacity: str
    remedy: str
    seeds: int
    alpha: tuple[Estimate, ...]
    agreement: tuple[Estimate, ...]
    measures: Mapping[str, Estimate]
    tasks: Mapping[str, Estimate]
    distances: Mapping[str, Mapping[str, Estimate]]
    parameters: int
    width: int
    draft_ms: float
    tokens_per_second: float
    ratio: float
    mismatched: int
    limits: LimitsView

    @property
    def label(self) -> str:
        """In a legend or a table's first column."""
        return label_of(vars(self))

    def measure(self, name: str) -> Estimate:
        """A pooled measure, unknown where the study did not take it."""
        return self.measures.get(name, UNKNOWN)


@dataclass(frozen=True)
class PredictionView:
    """One prediction and its answer."""

    name: str
    verdict: str
    statement: str
    difference: Estimate
    p_value: float
    p_seeds: float
    reason: str

    @property
    def evidence(self) -> str:
        """The numbers behind the verdict, and why there are none or why they decide nothing."""
        if not math.isfinite(self.p_value):
            return self.reason
        corrected, seeds = p_text(self.p_value), p_text(self.p_seeds)
        figures = f"difference {self.difference.text(3)}, corrected p {corrected}, seeds alone {seeds}"
        return f"{self.reason}; {figures}" if self.reason else figures


def label_of(row: Row) -> str:
    """A drafter's name in a legend or a table's first column."""
    injection, remedy = row.get("injection"), row.get("remedy")
    parts = [row["design"]]
    parts += [injection] if row["design"] == "kv" and injection and injection != ROPE else []
    parts += [f"{row['layers']} layers"] if row["layers"] > 1 else []
    parts += ["warm start"] if row["init"] == "warm" else []
    parts += [remedy.replace("-", " ")] if remedy else []
    return ", ".join(parts)


def variant_views(rows: Sequence[Row]) -> list[VariantView]:
    """The variants in the order of their rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "design" in row:
            groups.setdefault(tuple(row.get(key) for key in LABELS), []).append(row)
    return [_view(key, group) for key, group in groups.items() if any("seed" in row for row in group)]


def prediction_views(rows: Sequence[Row]) -> list[PredictionView]:
    """The predictions."""
    return [
        PredictionView(
            row["prediction"],
            row["verdict"],
            row.get("statement") or "",
            Estimate(*(_float(row.get(key)) for key in ("difference", "low", "high"))),
            _float(row.get("p_value")),
            _float(row.get("p_seeds")),
            row.get("reason") or "",
        )
        for row in rows
        if "prediction" in row
    ]


def _view(key: tuple[Any, ...], rows: Sequence[Row]) -> VariantView:
    design, layers, injection, init, capacity, remedy = key
    runs = [row for row in rows if "seed" in row]
    depths = sorted((row for row in rows if "alpha" in row), key=lambda row: int(row["depth"]))
    pooled = [row for row in rows if "measure" in row]
    distances: dict[str, dict[str, Estimate]] = {}
    for row in pooled:
        if "distance" in row:
            distances.setdefault(row["distance"], {})[row["measure"]] = _estimate(row)
    return VariantView(
        design=design,
        layers=int(layers),
        injection=injection or "",
        init=init,
        capacity=capacity or "",
        remedy=remedy or "",
        seeds=len({row["seed"] for row in runs}),
        alpha=tuple(Estimate(*(_float(row[key]) for key in ("alpha", "low", "high"))) for row in depths),
        agreement=tuple(
            Estimate(*(_float(row.get(key)) for key in ("agreement", "agreement_low", "agreement_high")))
            for row in depths
        ),
        measures={row["measure"]: _estimate(row) for row in pooled if "task" not in row and "distance" not in row},
        tasks={row["task"]: _estimate(row) for row in pooled if "task" in row},
        distances=distances,
        parameters=int(runs[0]["parameters"]),
        width=int(runs[0].get("intermediate_size") or 0),
        draft_ms=_median(runs, "draft_ms"),
        tokens_per_second=_median(runs, "tokens_per_second"),
        ratio=_median(runs, "ratio"),
        limits=_limits(rows),
        mismatched=sum(int(row.get("live_mismatched_prompts") or 0) for row in runs),
    )


def _limits(rows: Sequence[Row]) -> LimitsView:
    by_depth: dict[int, list[float]] = {}
    for row in rows:
        if "query_kl" in row:
            by_depth.setdefault(int(row["depth"]), []).append(float(row["query_kl"]))
    probed = [row for row in rows if "gradient_share" in row]
    last = max((row["depth"] for row in probed), default=0)
    gate = sorted((float(row["step"]), float(row["gate_mean"])) for row in rows if "step" in row and "gate_mean" in row)
    return LimitsView(
        tuple(statistics.mean(by_depth[depth]) for depth in sorted(by_depth)),
        tuple(row for row in rows if "control" in row),
        tuple(row for row in probed if row["depth"] == last),
        tuple(gate),
    )


def _estimate(row: Row) -> Estimate:
    return Estimate(*(_float(row[key]) for key in ("estimate", "low", "high")))


def _median(rows: Sequence[Row], key: str) -> float:
    values = [float(row[key]) for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)
