"""What limits a drafter, as records and as rows: query estimation error, gradients, gate, effective rank; no torch.

Records hold sums and counts, so that those of several seeds can be pooled; see
:mod:`draftgauge.diagnostics.query_error`, :mod:`draftgauge.diagnostics.gradients`,
:mod:`draftgauge.diagnostics.limits` and :mod:`draftgauge.training.reuse.tracking` for what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.judging.statistics.crossed import Counts, Floats, alpha_intervals, at_depths, difference

Row = dict[str, Any]
MEASURES = ("query_kl", "uniform_kl")
OWN, TRUE = CONTROLS = ("own query", "true query")


@dataclass(frozen=True)
class QueryErrors:
    """Sums by text, from which means and their intervals are computed.

    Attributes:
        target_layers: the ``S`` tapped layers of the target.
        positions: ``[texts, K]`` anchors that count.
        sums: measure -> ``[texts, K, N, S]`` sums over those anchors of the mean over heads, in nats. ``query_kl`` is
            from the target's distribution to the drafter's, ``uniform_kl`` to uniform attention.
        agreed: control -> ``[texts, K]`` anchors where the drafted token is the text's: with the drafter's ``own
            query``, and with the target's ``true query`` in its place. The weight of the rows' own keys is unchanged.
    """

    target_layers: tuple[int, ...]
    positions: Floats
    sums: Mapping[str, Floats]
    agreed: Mapping[str, Floats]

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> QueryErrors:
        sums, agreed = (
            {key: np.asarray(part, np.float64) for key, part in content[name].items()} for name in ("sums", "agreed")
        )
        return QueryErrors(tuple(content["target_layers"]), np.asarray(content["positions"], np.float64), sums, agreed)


@dataclass(frozen=True)
class GroupGradient:
    """The gradient of one depth's loss in one parameter group.

    Attributes:
        group: see :func:`~draftgauge.training.reuse.tracking.parameter_groups`.
        gradient_norm: of the mean gradient over the samples.
        gradient_to_weight: that norm over the norm of the weights; None where these are all zero.
        gradient_share: mean over samples of the share of positions that the loss reaches the group at.
        draft_share: of the drafted positions alone; None in results of earlier versions.
    """

    group: str
    depth: int
    gradient_norm: float
    gradient_to_weight: float | None
    gradient_share: float
    draft_share: float | None = None


@dataclass(frozen=True)
class Bottlenecks:
    """What limits one trained drafter. ``query`` is None for designs that read no keys. ``gate`` (of all depths
    together, then of each) and ``history`` (the gate over training) are empty without a gate, as for whole blocks.
    ``ranks`` holds ``group, effective_rank, full_rank`` of its projections."""

    query: QueryErrors | None
    gradients: Sequence[GroupGradient]
    gate: Sequence[Mapping[str, float]]
    history: Sequence[Mapping[str, float]]
    ranks: Sequence[Row] = ()

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Bottlenecks:
        query = None if content["query"] is None else QueryErrors.from_json(content["query"])
        gradients = [GroupGradient(**one) for one in content["gradients"]]
        return Bottlenecks(query, gradients, content["gate"], content["history"], content.get("ranks", ()))


def bottleneck_rows(seeds: Sequence[Bottlenecks], labels: Mapping[str, Any]) -> list[Row]:
    """Rows of one drafter, pooled over the seeds it was trained with; every row begins with ``labels`` and ``seeds``.

    - the query: ``depth`` (from 1)``, layer, target_layer, query_kl, uniform_kl``; ``layer`` is the drafter's,
      ``target_layer`` the one that it is compared with. Intervals, ``_low`` and ``_high``, are 95%, over texts and
      seeds.
    - the control: ``depth, control, agreement, difference``: agreement over all positions with the target's
      query in place of the drafter's, and the difference that this makes.
    - gradients: ``group, depth, gradient_norm, gradient_to_weight, gradient_share, draft_share``.
    - projections: ``group, effective_rank, full_rank``.
    - the gate: ``gate_mean, gate_open``, of all depths, of each (``depth``) and over training (``step``).
    """
    head = dict(labels) | {"seeds": len(seeds)}
    rows: list[Row] = []
    queries = [one.query for one in seeds if one.query is not None]
    if queries:
        rows += [*_query_rows(queries), *_control_rows(queries)]
    rows += _means([[asdict(gradient) for gradient in one.gradients] for one in seeds], ("group", "depth"))
    rows += _means([one.ranks for one in seeds], ("group",))
    rows += _means([one.gate for one in seeds], ("depth",))
    rows += _means([one.history for one in seeds], ("step",))
    # Records count depths from 0.
    return [head | row | ({"depth": row["depth"] + 1} if "depth" in row else {}) for row in rows]


def _query_rows(queries: Sequence[QueryErrors]) -> Iterator[Row]:
    positions = np.stack([query.positions for query in queries])
    _, depths, layers, _ = queries[0].sums["query_kl"].shape
    for layer in range(layers):
        for slot, target_layer in enumerate(queries[0].target_layers):
            kl, uniform = (
                alpha_intervals(Counts(positions, np.stack([query.sums[name][..., layer, slot] for query in queries])))
                for name in MEASURES
            )
            for depth in range(depths):
                if np.isfinite(kl[depth].estimate):
                    place = {"depth": depth, "layer": layer, "target_layer": target_layer}
                    yield place | columns("query_kl", kl[depth]) | {"uniform_kl": uniform[depth].estimate}


def _control_rows(queries: Sequence[QueryErrors]) -> Iterator[Row]:
    positions = np.stack([query.positions for query in queries])
    agreed = {name: Counts(positions, np.stack([query.agreed[name] for query in queries])) for name in CONTROLS}
    for depth, own in enumerate(alpha_intervals(agreed[OWN])):
        if np.isfinite(own.estimate):
            change = difference(agreed[TRUE], agreed[OWN], at_depths(depth, depth))
            yield {
                "depth": depth,
                "control": TRUE,
                "agreement": own.estimate + change.estimate,
                "agreement_own_query": own.estimate,
            } | columns("difference", change)


def _means(seeds: Sequence[Sequence[Mapping[str, Any]]], keys: tuple[str, ...]) -> Iterator[Row]:
    """Rows with the same keys merged into one of means over seeds; None where any is None."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for rows in seeds:
        for row in rows:
            groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    for name, members in groups.items():
        merged: Row = {key: value for key, value in zip(keys, name, strict=True) if value is not None}
        for key in members[0].keys() - set(keys):
            values = [row[key] for row in members]
            merged[key] = None if None in values else float(np.mean(values))
        yield merged
