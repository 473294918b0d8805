"""The whole study: the paper as published, and beside it what its records say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgauge.core.progress import Progress, silent
from draftgauge.studies.speckv import measured, outcomes, predictors
from draftgauge.studies.speckv.paper import reproduce_paper
from draftgauge.studies.speckv.records import Records, Rows


def run_study(records: Records, advance: Progress = silent) -> Rows:
    """All rows: those of :func:`draftgauge.studies.speckv.paper.reproduce_paper`, then "table": "honest", told apart by
    ``finding``.

    Findings: ``tokens_per_step``, ``tokens_per_second`` and ``always_8`` (measured), ``gain_split``, ``held_out``,
    ``predicted_and_measured``, ``outcomes``, ``cost``. Intervals (``low``, ``high``) are 95% over prompts.
    """
    parts = len(predictors.CANDIDATES) + 2
    paper = reproduce_paper(records)
    advance("SpecKV", 1, parts)
    expected = {}
    for done, name in enumerate(predictors.CANDIDATES, start=2):
        expected[name] = predictors.held_out_tokens(records, name)
        advance("SpecKV", done, parts)
    gammas = outcomes.policy_gammas(records, expected)
    costs = measured.cost_rows(records)
    honest = [
        *measured.tokens_per_step_rows(records),
        *measured.speed_rows(records),
        *outcomes.gain_split_rows(records, gammas, paper, costs),
        *predictors.held_out_rows(records, expected, paper),
        *predictors.prediction_rows(records, expected[predictors.FAST]),
        *outcomes.outcome_rows(records, gammas, costs),
        *costs,
    ]
    advance("SpecKV", parts, parts)
    return [*paper, *({"table": "honest"} | row for row in honest)]


def improvement(rows: Sequence[Mapping[str, Any]]) -> str:
    row = next(row for row in rows if row["table"] == "improvement")
    p = "p < 0.001" if row["p_value"] < 0.001 else f"p = {row['p_value']:.3f}"
    return f"+{row['percent']:.1f}%, {p} ({row['resamples']:,} paired resamples of steps)"
