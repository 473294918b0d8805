"""The policies scored on outcomes, and what of the published gain is choosing.

A step that drafted 8 tokens shows the outcome of every shorter draft from the same place: min(gamma, accepted) + 1
tokens. So on the steps of the runs at gamma 8 any choice can be scored by what happened instead of by a prediction. The
controllers are those fitted without the step's prompt. They still look at the signals of the 8 drafted tokens whose
number they choose, as published, which no running decoder could: their figures are upper bounds. Places are those that
the walk at gamma 8 visits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.statistics.bootstrap import Comparison
from draftgauge.statistics.paired import paired_gain
from draftgauge.studies.speckv import measured, predictors
from draftgauge.studies.speckv.costs import StepCost
from draftgauge.studies.speckv.paper import POLICIES, gammas_of
from draftgauge.studies.speckv.records import ALL, COMPRESSIONS, GAMMAS, Floats, Ints, Records, Timings

Rows = list[dict[str, Any]]
Mask = NDArray[np.bool_]


def policy_gammas(records: Records, expected: Mapping[str, Floats]) -> dict[str, Ints]:
    """Policy -> ``[S]`` its gamma; controllers by ``expected``: candidate -> ``[S, 4]`` fitted without the prompt."""
    fixed = gammas_of(records)
    chosen = [np.array(GAMMAS)[expected[name].argmax(axis=1)] for name in (predictors.FAST, predictors.ACCURATE)]
    return dict(zip(POLICIES, [fixed[:, 0], fixed[:, 1], fixed[:, 2], *chosen], strict=True))


def outcome_rows(
    records: Records,
    gammas: Mapping[str, Ints],
    costs: Sequence[StepCost] | None = None,
    timings: Timings | None = None,
) -> Rows:
    """Tokens a step of every policy; with costs also tokens/s and the gain over the compression's fastest gamma."""
    rows: Rows = []
    for policy, gamma in gammas.items():
        for name, mask in _gamma_8(records):
            tokens, steps = (
                records.by_prompt(outcomes(records, gamma), mask),
                records.by_prompt(np.ones(len(mask)), mask),
            )
            row = {
                "finding": "outcomes",
                "policy": policy,
                "compression": name,
                "tokens_per_step": tokens.sum() / steps.sum(),
            }
            if costs is not None and timings is not None:
                seconds = records.by_prompt(step_seconds(records, gamma, costs), mask)
                gain = _speed_gain(records, gamma, _fastest(records, timings), costs, mask)
                row |= {
                    "tokens_per_second": tokens.sum() / seconds.sum(),
                    "over_best_fixed_percent": 100 * gain.estimate,
                }
                row |= {"over_best_fixed_low": 100 * gain.low, "over_best_fixed_high": 100 * gain.high}
            rows.append(row)
    return rows


def gain_split_rows(
    records: Records,
    gammas: Mapping[str, Ints],
    paper: Rows,
    costs: Sequence[StepCost] | None = None,
    timings: Timings | None = None,
) -> Rows:
    """The gain of SpecKV-fast over fixed-4 as a product: what always drafting 8 gives, times what choosing per step
    adds, in percent.

    ``basis`` is "predicted" (the paper's scoring), "tokens_per_step" (measured) or "tokens_per_second" (always 8 as
    measured, choosing by outcomes and fitted costs).
    """
    said = {
        row["policy"]: row["expected_tokens"]
        for row in paper
        if row["table"] == "policies" and row["compression"] == ALL
    }
    longer = said["fixed-best"] / said["fixed-4"] - 1
    rows = [_split_row("predicted", ALL, longer, said["SpecKV-fast"] / said["fixed-best"] - 1)]
    longest = np.full(len(records.steps.gamma), measured.LONGEST)
    chosen = gammas["SpecKV-fast"]
    for name, mask in measured.of_compression(records.steps.compression):
        choosing = _token_gain(records, chosen, longest, mask & (records.steps.gamma == measured.LONGEST))
        rows.append(_split_row("tokens_per_step", name, measured.step_gain(records, mask), choosing))
    if costs is not None and timings is not None:
        for c, (name, mask) in enumerate(_gamma_8(records)[: len(COMPRESSIONS)]):
            faster = measured.speed_gain(records, timings, c, measured.USUAL)
            rows.append(
                _split_row("tokens_per_second", name, faster, _speed_gain(records, chosen, longest, costs, mask))
            )
    return rows


def outcomes(records: Records, gamma: Ints) -> Ints:
    """``[S]`` tokens that a step drafted with 8 would have committed with another gamma."""
    return np.minimum(gamma, records.steps.accepted) + 1


def step_seconds(records: Records, gamma: Ints, costs: Sequence[StepCost]) -> Floats:
    """``[S]`` seconds by the fitted costs; a step at a run's end drafts no more than it did."""
    verify, draft = (
        np.array(values)[records.steps.compression] for values in ([c.verify for c in costs], [c.draft for c in costs])
    )
    return np.asarray(verify + draft * np.minimum(gamma, records.steps.drafted))


def _gamma_8(records: Records) -> list[tuple[str, Mask]]:
    longest = records.steps.gamma == measured.LONGEST
    return [(name, mask & longest) for name, mask in measured.of_compression(records.steps.compression)]


def _fastest(records: Records, timings: Timings) -> Ints:
    best = np.array([measured.best_gamma(records, timings, c) for c in range(len(COMPRESSIONS))])
    return best[records.steps.compression]


def _token_gain(records: Records, gamma: Ints, base: Ints, mask: Mask) -> Comparison:
    steps = records.by_prompt(np.ones(len(mask)), mask)
    ours, theirs = (records.by_prompt(outcomes(records, choice), mask) for choice in (gamma, base))
    return paired_gain(ours, steps, theirs, steps)


def _speed_gain(records: Records, gamma: Ints, base: Ints, costs: Sequence[StepCost], mask: Mask) -> Comparison:
    sides = [(outcomes(records, choice), step_seconds(records, choice, costs)) for choice in (gamma, base)]
    ours, theirs = ([records.by_prompt(values, mask) for values in side] for side in sides)
    return paired_gain(ours[0], ours[1], theirs[0], theirs[1])


def _split_row(
    basis: str, compression: str, longer: Comparison | float, choosing: Comparison | float
) -> dict[str, Any]:
    row: dict[str, Any] = {"finding": "gain_split", "basis": basis, "compression": compression}
    total = 1.0
    for name, part in (("longer", longer), ("choosing", choosing)):
        estimate = part.estimate if isinstance(part, Comparison) else part
        total *= 1 + estimate
        row[f"{name}_percent"] = 100 * estimate
        if isinstance(part, Comparison):
            row |= {f"{name}_low": 100 * part.low, f"{name}_high": 100 * part.high, f"{name}_p_value": part.p_value}
    return row | {"total_percent": 100 * (total - 1)}
