"""What the report of the KVShot study shows, gathered from the study's rows; no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from draftgauge.report.style import fixed, number

Row = Mapping[str, Any]
LABELS = ("design", "layers", "injection", "init", "capacity")
EQUAL_WIDTH = "equal width"


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


UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True)
class VariantView:
    """One row of the study's table, over its seeds.

    Attributes:
        design, layers, injection, init, capacity: which drafter.
        seeds: how many.
        alpha: by depth.
        measures: ``mat``, ``retention``, ``live_mat``, ``live_minus_forced``, ``tree_mat``, ``alpha_first``,
            ``alpha_deep``.
        tasks: ``mat`` by task.
        distances: ``alpha_first`` and ``alpha_deep`` by the context that a token needs.
        parameters, width: trainable ones, and the width of the MLP.
        draft_ms, tokens_per_second, ratio: medians over seeds; NaN where nothing was timed.
        mismatched: live outputs, over all seeds, that are not the plain ones.
    """

    design: str
    layers: int
    injection: str
    init: str
    capacity: str
    seeds: int
    alpha: tuple[Estimate, ...]
    measures: Mapping[str, Estimate]
    tasks: Mapping[str, Estimate]
    distances: Mapping[str, Mapping[str, Estimate]]
    parameters: int
    width: int
    draft_ms: float
    tokens_per_second: float
    ratio: float
    mismatched: int

    @property
    def label(self) -> str:
        """In a legend or a table's first column."""
        parts = [self.design]
        parts += [self.injection] if self.design == "kv" and self.injection != "project-rope" else []
        parts += [f"{self.layers} layers"] if self.layers > 1 else []
        parts += ["warm start"] if self.init == "warm" else []
        return ", ".join(parts)

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
    reason: str

    @property
    def evidence(self) -> str:
        """The numbers behind the verdict, or why there are none."""
        if self.reason:
            return self.reason
        return f"difference {self.difference.text(3)}, corrected p {number(self.p_value, 2)}"


def variant_views(rows: Sequence[Row]) -> list[VariantView]:
    """The variants in the order of their rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "design" in row:
            groups.setdefault(tuple(row.get(key) for key in LABELS), []).append(row)
    return [_view(key, group) for key, group in groups.items()]


def prediction_views(rows: Sequence[Row]) -> list[PredictionView]:
    """The predictions."""
    return [
        PredictionView(
            row["prediction"],
            row["verdict"],
            row.get("statement") or "",
            Estimate(*(_float(row.get(key)) for key in ("difference", "low", "high"))),
            _float(row.get("p_value")),
            row.get("reason") or "",
        )
        for row in rows
        if "prediction" in row
    ]


def _view(key: tuple[Any, ...], rows: Sequence[Row]) -> VariantView:
    design, layers, injection, init, capacity = key
    runs = [row for row in rows if "seed" in row]
    depths = sorted((row for row in rows if "depth" in row), key=lambda row: int(row["depth"]))
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
        seeds=len({row["seed"] for row in runs}),
        alpha=tuple(Estimate(*(_float(row[key]) for key in ("alpha", "low", "high"))) for row in depths),
        measures={row["measure"]: _estimate(row) for row in pooled if "task" not in row and "distance" not in row},
        tasks={row["task"]: _estimate(row) for row in pooled if "task" in row},
        distances=distances,
        parameters=int(runs[0]["parameters"]),
        width=int(runs[0].get("intermediate_size") or 0),
        draft_ms=_median(runs, "draft_ms"),
        tokens_per_second=_median(runs, "tokens_per_second"),
        ratio=_median(runs, "ratio"),
        mismatched=sum(int(row.get("live_mismatched_prompts") or 0) for row in runs),
    )


def _estimate(row: Row) -> Estimate:
    return Estimate(*(_float(row[key]) for key in ("estimate", "low", "high")))


def _median(rows: Sequence[Row], key: str) -> float:
    values = [float(row[key]) for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)
