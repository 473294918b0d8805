"""The whole study: the paper as published, and beside it what its records say.

The policies are scored on outcomes, and it is said what of the published gain is choosing. A step that drafted 8 tokens
shows the outcome of every shorter draft from the same place: min(gamma, accepted) + 1 tokens. So on the steps of the
runs at gamma 8 any choice can be scored by what happened instead of by a prediction. The controllers are those fitted
without the step's prompt. Their figures are upper bounds: as published, they see the signals of the 8 drafted tokens
whose number they choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgauge.core.progress import Progress, silent
from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics.bootstrap import Comparison
from draftgauge.studies.speckv import measured, predictors
from draftgauge.studies.speckv.measured import in_percent
from draftgauge.studies.speckv.paper import POLICIES, gammas_of, reproduce_paper
from draftgauge.studies.speckv.records import (
    ALL,
    COMPRESSIONS,
    GAMMAS,
    Floats,
    Ints,
    Mask,
    Records,
    Rows,
    of_compression,
)


def policy_gammas(records: Records, expected: Mapping[str, Floats]) -> dict[str, Ints]:
    """Policy -> ``[S]`` its gamma; controllers by ``expected``: candidate -> ``[S, 4]`` fitted without the prompt."""
    fixed = gammas_of(records)
    chosen = [np.array(GAMMAS)[expected[name].argmax(axis=1)] for name in (predictors.FAST, predictors.ACCURATE)]
    return dict(zip(POLICIES, [*fixed.T, *chosen], strict=True))


def outcome_rows(records: Records, gammas: Mapping[str, Ints], costs: Rows) -> Rows:
    """Tokens per step of every policy, by the costs also tokens/s and the gain over the compression's fastest gamma."""
    best = [measured.best_gamma(records, c) for c in range(len(COMPRESSIONS))]
    fastest = np.array(best)[records.steps.compression]
    rows: Rows = []
    for policy, gamma in gammas.items():
        for name, mask in _gamma_8(records):
            tokens = records.by_prompt(outcomes(records, gamma), mask).sum()
            row = {"finding": "outcomes", "policy": policy, "compression": name, "tokens_per_step": tokens / mask.sum()}
            seconds = records.by_prompt(step_seconds(records, gamma, costs), mask)
            row["tokens_per_second"] = tokens / seconds.sum()
            row |= in_percent("over_best_fixed", _speed_gain(records, gamma, fastest, costs, mask))
            rows.append(row)
    return rows


def gain_split_rows(records: Records, gammas: Mapping[str, Ints], paper: Rows, costs: Rows) -> Rows:
    """The gain of SpecKV-fast over fixed-4 as a product: what always drafting 8 gives, times what choosing per step
    adds, in percent.

    ``basis`` is "predicted" (the paper's scoring), "tokens_per_step" (measured) or "tokens_per_second" (always 8 as
    measured, choosing by outcomes and fitted costs).
    """
    table = [row for row in paper if row["table"] == "policies" and row["compression"] == ALL]
    said = {row["policy"]: row["expected_tokens"] for row in table}
    longer, choosing = (said[a] / said[b] - 1 for a, b in (("fixed-best", "fixed-4"), ("SpecKV-fast", "fixed-best")))
    nan = float("nan")
    rows = [_split_row("predicted", ALL, Comparison(longer, nan, nan, nan), Comparison(choosing, nan, nan, nan))]
    longest = np.full(len(records.steps.gamma), measured.LONGEST)
    chosen = gammas["SpecKV-fast"]
    for (name, mask), (_, at_8) in zip(of_compression(records.steps.compression), _gamma_8(records), strict=True):
        steps = records.by_prompt(np.ones(len(at_8)), at_8)
        ours, theirs = (records.by_prompt(outcomes(records, choice), at_8) for choice in (chosen, longest))
        choice = Speed(ours, steps).over(Speed(theirs, steps)).gain
        rows.append(_split_row("tokens_per_step", name, measured.step_gain(records, mask), choice))
    for c, (name, at_8) in enumerate(_gamma_8(records)[: len(COMPRESSIONS)]):
        faster = measured.speed_gain(records, c, measured.USUAL)
        choice = _speed_gain(records, chosen, longest, costs, at_8)
        rows.append(_split_row("tokens_per_second", name, faster, choice))
    return rows


def outcomes(records: Records, gamma: Ints) -> Ints:
    """``[S]`` tokens that a step drafted with 8 would have committed with another gamma."""
    return np.minimum(gamma, records.steps.accepted) + 1


def step_seconds(records: Records, gamma: Ints, costs: Rows) -> Floats:
    """``[S]`` seconds by the fitted costs; a step at a run's end drafts no more than it did."""
    verify, draft = (
        np.array([row[key] for row in costs])[records.steps.compression] / 1e3 for key in ("verify_ms", "draft_ms")
    )
    return np.asarray(verify + draft * np.minimum(gamma, records.steps.drafted))


def _gamma_8(records: Records) -> list[tuple[str, Mask]]:
    longest = records.steps.gamma == measured.LONGEST
    return [(name, mask & longest) for name, mask in of_compression(records.steps.compression)]


def _speed_gain(records: Records, gamma: Ints, base: Ints, costs: Rows, mask: Mask) -> Comparison:
    ours, theirs = (
        Speed(
            records.by_prompt(outcomes(records, choice), mask),
            records.by_prompt(step_seconds(records, choice, costs), mask),
        )
        for choice in (gamma, base)
    )
    return ours.over(theirs).gain


def _split_row(basis: str, compression: str, longer: Comparison, choosing: Comparison) -> dict[str, object]:
    row: dict[str, object] = {"finding": "gain_split", "basis": basis, "compression": compression}
    for name, part in (("longer", longer), ("choosing", choosing)):
        row[f"{name}_percent"] = 100 * part.estimate
        if not np.isnan(part.p_value):
            row |= in_percent(name, part) | {f"{name}_p_value": part.p_value}
    return row | {"total_percent": 100 * ((1 + longer.estimate) * (1 + choosing.estimate) - 1)}


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
    gammas = policy_gammas(records, expected)
    costs = measured.cost_rows(records)
    honest = [
        *measured.tokens_per_step_rows(records),
        *measured.speed_rows(records),
        *gain_split_rows(records, gammas, paper, costs),
        *predictors.held_out_rows(records, expected, paper),
        *predictors.prediction_rows(records, expected[predictors.FAST]),
        *outcome_rows(records, gammas, costs),
        *costs,
    ]
    advance("SpecKV", parts, parts)
    return [*paper, *({"table": "honest"} | row for row in honest)]


def improvement(rows: Sequence[Mapping[str, Any]]) -> str:
    row = next(row for row in rows if row["table"] == "improvement")
    p = "p < 0.001" if row["p_value"] < 0.001 else f"p = {row['p_value']:.3f}"
    return f"+{row['percent']:.1f}%, {p} ({row['resamples']:,} paired resamples of steps)"
