"""What limits a drafter, as records and as rows: query estimation error, gradients, gate; no torch.

Records hold sums and counts, so that those of several seeds can be pooled; see
:mod:`draftgauge.diagnostics.query_error`, :mod:`draftgauge.diagnostics.gradients` and
:mod:`draftgauge.training.reuse.gate` for what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.statistics.bootstrap import columns
from draftgauge.statistics.crossed import Counts, alpha_intervals, at_depths, difference

Floats = NDArray[np.float64]
Row = dict[str, Any]
MEASURES = ("query_kl", "total_variation", "uniform_kl", "attended_error", "cosine")
OWN, TRUE, NONE = "own query", "true query", "no query"
CONTROLS = (OWN, TRUE, NONE)


@dataclass(frozen=True)
class QueryErrors:
    """Sums by text, of which every mean is made with its interval.

    Attributes:
        target_layers: the ``S`` tapped layers of the target.
        positions: ``[texts, K]`` anchors that count.
        sums: measure -> ``[texts, K, N, S]`` sums over those anchors of the mean over heads. ``query_kl`` (nats, from
            the target's distribution to the drafter's), ``total_variation`` (0..1), ``uniform_kl`` (what a query that
            asks for nothing would have), ``attended_error`` (of the attended values, relative to the target's) and
            ``cosine`` of the queries (NaN where they live in different spaces).
        agreed: control -> ``[texts, K]`` anchors where the drafted token is the text's: with the drafter's ``own
            query``, with the target's ``true query`` in its place, and with ``no query``, which attends to all alike.
            What the rows' own keys weigh beside the prefix stays as it is.
        runs: control -> ``[texts, K]`` anchors where all tokens up to this depth are the text's.
    """

    target_layers: tuple[int, ...]
    positions: Floats
    sums: Mapping[str, Floats]
    agreed: Mapping[str, Floats]
    runs: Mapping[str, Floats]

    def to_json(self) -> Row:
        """Plain lists."""
        content: Row = {"target_layers": list(self.target_layers), "positions": self.positions.tolist()}
        for name in ("sums", "agreed", "runs"):
            content[name] = {key: part.tolist() for key, part in getattr(self, name).items()}
        return content

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> QueryErrors:
        """The inverse of :meth:`to_json`."""
        arrays = [
            {key: np.asarray(part, np.float64) for key, part in content[name].items()}
            for name in ("sums", "agreed", "runs")
        ]
        return QueryErrors(tuple(content["target_layers"]), np.asarray(content["positions"], np.float64), *arrays)


@dataclass(frozen=True)
class GroupGradient:
    """The gradient of one depth's loss in one parameter group.

    Attributes:
        group: see :func:`~draftgauge.training.reuse.statistics.parameter_groups`.
        depth: whose loss.
        norm: of the mean gradient over the samples.
        to_weight: that norm over the norm of the weights; None where these are all zero.
        share: mean over samples of the share of positions that the loss reaches the group at.
        effective_rank: of the samples' gradients; 0 where all vanish.
        samples: how many.
    """

    group: str
    depth: int
    norm: float
    to_weight: float | None
    share: float
    effective_rank: float
    samples: int


@dataclass(frozen=True)
class Bottlenecks:
    """Everything that is measured of one trained drafter.

    Attributes:
        query: None for designs that read no keys.
        gradients: by group and depth.
        gate: of all depths together and then of each (``depth``), as
            :meth:`~draftgauge.training.reuse.gate.GateFigures.row` has it; empty for designs without one.
        history: rows of the training's log, see :func:`~draftgauge.training.reuse.tracking.read_history`.
    """

    query: QueryErrors | None
    gradients: Sequence[GroupGradient]
    gate: Sequence[Mapping[str, float]]
    history: Sequence[Mapping[str, float]]

    def to_json(self) -> Row:
        """Plain lists and numbers."""
        return {
            "query": None if self.query is None else self.query.to_json(),
            "gradients": [asdict(one) for one in self.gradients],
            "gate": [dict(one) for one in self.gate],
            "history": [dict(one) for one in self.history],
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Bottlenecks:
        """The inverse of :meth:`to_json`."""
        query = content["query"]
        return Bottlenecks(
            None if query is None else QueryErrors.from_json(query),
            [GroupGradient(**one) for one in content["gradients"]],
            content["gate"],
            content["history"],
        )


def bottleneck_rows(seeds: Sequence[Bottlenecks], labels: Mapping[str, Any]) -> list[Row]:
    """Rows of one drafter, pooled over the seeds it was trained with; every row begins with ``labels``.

    - the query: ``depth, layer, target_layer, query_kl, low, high`` with the other measures of :class:`QueryErrors`;
      ``layer`` is the drafter's, ``target_layer`` the one that it is compared with. Intervals are 95%, over texts and
      seeds.
    - the controls: ``depth, control, agreement, difference, low, high``: agreement over all positions with the target's
      query (or none) in place of the drafter's, and the difference that this makes; ``survival`` and
      ``survival_own_query``: the share of all positions whose tokens up to this depth are all right.
    - gradients: ``group, depth, gradient_norm, gradient_to_weight, gradient_share, effective_rank, samples``.
    - the gate: ``gate_mean, gate_open`` and quantiles, of all depths and (with ``depth``) of each.
    - over training: ``step, group, gradient_norm, gradient_to_weight``; ``step, gate_mean, ...``; ``step, sum, part,
      rms``.
    """
    head = dict(labels) | {"seeds": len(seeds)}
    rows: list[Row] = []
    queries = [one.query for one in seeds if one.query is not None]
    if queries:
        rows += [head | row for row in (*_query_rows(queries), *_control_rows(queries))]
    rows += [head | row for row in _gradient_rows([one.gradients for one in seeds])]
    rows += [head | row for row in _means([one.gate for one in seeds], ("depth",))]
    rows += [head | row for row in _history_rows([one.history for one in seeds])]
    return rows


def _query_rows(queries: Sequence[QueryErrors]) -> Iterator[Row]:
    positions = np.stack([query.positions for query in queries])
    _, _, depths, layers, slots = np.stack([query.sums["query_kl"] for query in queries]).shape
    for layer in range(layers):
        for slot in range(slots):
            intervals = {}
            for name in MEASURES:
                sums = np.stack([query.sums[name][..., layer, slot] for query in queries])
                intervals[name] = alpha_intervals(Counts(positions, sums))
            for depth in range(depths):
                kl, error = intervals["query_kl"][depth], intervals["attended_error"][depth]
                row: Row = {"depth": depth, "layer": layer, "target_layer": queries[0].target_layers[slot]}
                row |= {"query_kl": kl.estimate, "low": kl.low, "high": kl.high} | columns("attended_error", error)
                for name in ("total_variation", "uniform_kl", "cosine"):
                    value = intervals[name][depth].estimate
                    row[name] = value if np.isfinite(value) else None
                if np.isfinite(kl.estimate):
                    yield row


def _control_rows(queries: Sequence[QueryErrors]) -> Iterator[Row]:
    positions = np.stack([query.positions for query in queries])
    counts, runs = (
        {
            control: Counts(positions, np.stack([getattr(query, name)[control] for query in queries]))
            for control in CONTROLS
        }
        for name in ("agreed", "runs")
    )
    for depth in range(positions.shape[-1]):
        measure = at_depths(depth, depth)
        own = alpha_intervals(counts[OWN])[depth]
        if not np.isfinite(own.estimate):
            continue
        survival = {control: alpha_intervals(runs[control])[depth].estimate for control in CONTROLS}
        for control in (TRUE, NONE):
            change = difference(counts[control], counts[OWN], measure)
            yield {
                "depth": depth,
                "control": control,
                "agreement": own.estimate + change.estimate,
                "agreement_own_query": own.estimate,
                "difference": change.estimate,
                "low": change.low,
                "high": change.high,
                "survival": survival[control],
                "survival_own_query": survival[OWN],
            }


def _gradient_rows(seeds: Sequence[Sequence[GroupGradient]]) -> Iterator[Row]:
    named = {"norm": "gradient_norm", "to_weight": "gradient_to_weight", "share": "gradient_share"}
    rows = [[{named.get(key, key): value for key, value in asdict(one).items()} for one in part] for part in seeds]
    yield from _means(rows, ("group", "depth"))


def _history_rows(seeds: Sequence[Sequence[Mapping[str, float]]]) -> Iterator[Row]:
    """The log's flat columns as rows of their own."""
    norm, weight, rms = "gradient_norm/", "weight_rms/", "rms/"
    for logged in _means(seeds, ("step",)):
        step = {"step": logged["step"]}
        for key, value in logged.items():
            if key.startswith(norm):
                group = key.removeprefix(norm)
                relative = logged[f"gradient_rms/{group}"] / max(logged[f"{weight}{group}"], 1e-12)
                yield step | {"group": group, "gradient_norm": value, "gradient_to_weight": relative}
            elif key.startswith(rms):
                total, _, part = key.removeprefix(rms).rpartition("/")
                yield step | {"sum": total, "part": part, "rms": value}
        gate = {key: value for key, value in logged.items() if key.startswith("gate_")}
        if gate:
            yield step | gate


def _means(seeds: Sequence[Sequence[Mapping[str, Any]]], keys: tuple[str, ...]) -> Iterator[Row]:
    """Rows of the same keys as one, whose other figures are means over seeds."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for rows in seeds:
        for row in rows:
            groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    for name, members in groups.items():
        labels = {key: value for key, value in zip(keys, name, strict=True) if value is not None}
        yield labels | {key: _mean([row[key] for row in members]) for key in members[0] if key not in keys}


def _mean(values: Sequence[float | None]) -> float | None:
    """None where any is unknown."""
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if len(measured) == len(values) else None
