"""How a training went: the learning curve by tokens seen and by seconds, and whom the gradients reach; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.judging.statistics.crossed import Counts, Floats, interval
from draftgauge.studies.kvshot.cells import Variant

Row = dict[str, Any]
GRADIENT, QUERIES = "gradient_rms/", "attention.queries"


class Point(NamedTuple):
    """One drafter at a checkpoint.

    Attributes:
        tokens: answer positions trained on so far.
        seconds: of training so far, on the machine that trained it.
        agreed, survived: as of a finished drafter, see :class:`draftgauge.studies.kvshot.verdicts.Run`.
    """

    tokens: int
    seconds: float
    agreed: Counts
    survived: Counts

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Point:
        agreed, survived = (Counts.of(content["positions"], content[kind]) for kind in ("agreed", "accepted"))
        return cls(content["tokens"], content["seconds"], agreed, survived)


Curve = Sequence[Point]


def mean_agreement(rates: Floats) -> Floats:
    return np.asarray(rates.mean(-1))


def tokens_per_step(survival: Floats) -> Floats:
    """Of the shares of all positions where every token up to a depth is right."""
    return np.asarray(1 + survival.sum(-1))


def curve_rows(variant: Variant, recipe: str, curves: Sequence[Curve]) -> Iterator[Row]:
    """A row per checkpoint, pooled over the seeds of a variant: ``curve`` (the recipe), ``tokens_seen, train_seconds``.
    Over all positions there are ``agreement`` (of all depths) and ``tokens_per_step``, with intervals."""
    for points in zip(*curves, strict=True):
        agreed, survived = (Counts.stack([getattr(point, kind) for point in points]) for kind in ("agreed", "survived"))
        row: Row = {"curve": recipe, "design": variant.design, "seeds": len(points)}
        row |= {
            "tokens_seen": float(np.mean([point.tokens for point in points])),
            "train_seconds": float(np.mean([point.seconds for point in points])),
        }
        row |= columns("agreement", interval(agreed, mean_agreement))
        yield row | columns("tokens_per_step", interval(survived, tokens_per_step))


def at_equal_seconds(rows: Sequence[Row], *recipes: str) -> Iterator[Row]:
    """Tokens a step of recipes after the seconds of the shortest training: read off their curves, on a straight line
    between two checkpoints."""
    for design in dict.fromkeys(row["design"] for row in rows):
        curves = [[row for row in rows if (row["curve"], row["design"]) == (each, design)] for each in recipes]
        shortest = min((curve[-1]["train_seconds"] for curve in curves if curve), default=0.0)
        if not all(curve and curve[0]["train_seconds"] <= shortest for curve in curves):
            continue  # one was not trained so far, or had no checkpoint by then
        found: Row = {"equal_seconds": shortest, "design": design}
        for recipe, curve in zip(recipes, curves, strict=True):
            seconds, tokens = ([row[key] for row in curve] for key in ("train_seconds", "tokens_per_step"))
            found[recipe] = float(np.interp(shortest, seconds, tokens))
        yield found


def gradient_rows(recipe: str, design: str, seed: int, history: Sequence[Mapping[str, float]]) -> Iterator[Row]:
    """Whether the drafter's own keys and values are trained as its queries are, the second bottleneck of KVShot. It is
    the RMS of a parameter group's gradients over that of the queries: the mean over attentions and the logged steps
    after the first. Steps whose queries had no gradient are left out."""
    for kind in ("keys", "values"):
        over = [
            row[name.removesuffix(QUERIES) + f"attention.{kind}"] / queries
            for row in history[1:]
            for name, queries in row.items()
            if name.startswith(GRADIENT) and name.endswith(QUERIES) and queries > 0
        ]
        if over:
            yield {"trained": kind, "by": recipe, "design": design, "seed": seed, "over_queries": float(np.mean(over))}
