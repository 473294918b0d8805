"""The whole study: the paper as published, and beside it what its records say."""

from __future__ import annotations

from typing import Any

from draftgauge.core.progress import Progress, silent
from draftgauge.studies.speckv import costs, heldout, measured, outcomes, predictors
from draftgauge.studies.speckv.paper import reproduce_paper
from draftgauge.studies.speckv.records import Records

Rows = list[dict[str, Any]]


def run_study(records: Records, advance: Progress = silent) -> Rows:
    """All rows: those of :func:`draftgauge.studies.speckv.paper.reproduce_paper`, then "table": "honest", told apart by
    ``finding``.

    Findings: ``tokens_per_step``, ``tokens_per_second`` and ``always_8`` (measured), ``gain_split``, ``held_out``,
    ``predicted_and_measured``, ``outcomes``, ``leave_one_task_out``, ``leave_one_compression_out``, ``cost``. Those
    that speak of seconds need the table of experiments. Intervals (``low``, ``high``) are 95% over prompts. Figures in
    percent are named so.

    Args:
        records: from :func:`draftgauge.studies.speckv.importer.read_records`.
        advance: told what is done, of how many parts.
    """
    done = iter(range(1, len(predictors.CANDIDATES) + 3))
    total = len(predictors.CANDIDATES) + 2
    paper = reproduce_paper(records)
    advance("SpecKV", next(done), total)
    expected = {}
    for name in predictors.CANDIDATES:
        expected[name] = heldout.held_out_tokens(records, name)
        advance("SpecKV", next(done), total)
    gammas = outcomes.policy_gammas(records, expected)
    timings = records.timings
    fitted = costs.fit_costs(records, timings) if timings is not None else None
    honest = [
        *measured.tokens_per_step_rows(records),
        *(measured.tokens_per_second_rows(records, timings) if timings is not None else ()),
        *(measured.always_longest_rows(records, timings) if timings is not None else ()),
        *outcomes.gain_split_rows(records, gammas, paper, fitted, timings),
        *heldout.held_out_rows(records, expected, paper),
        *heldout.prediction_rows(records, expected[predictors.FAST]),
        *outcomes.outcome_rows(records, gammas, fitted, timings),
        *heldout.leave_one_out_rows(records),
        *(costs.cost_rows(fitted) if fitted is not None else ()),
    ]
    advance("SpecKV", next(done), total)
    return [*paper, *({"table": "honest"} | row for row in honest)]
