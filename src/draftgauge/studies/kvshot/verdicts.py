"""The paper's three predictions, each put to a paired test over prompts and seeds.

The second is tested at equal parameters, and at equal width as in the paper, where four layers have over twice the
parameters of one. The first and the third are tested at equal parameters, and at equal width too where the study
trained ``hidden`` and ``kv`` so.

Agreement is taken over *all* output positions. Acceptance given earlier acceptance compares different positions for
every drafter, and a drafter that rarely drafts deep does so where the text is easy.

Seeds and prompts are crossed random effects (:mod:`draftgauge.studies.kvshot.verdicts`); p-values are two-sided and
Holm-corrected for all tests. A prediction is *supported* (its difference positive) or *contradicted* (negative) at a
corrected p below 0.05 with an interval that excludes 0. Otherwise it is *undecided*, as with fewer than five seeds, an
untrained drafter, or one not shown to beat the control that reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from draftgauge.judging.statistics.bootstrap import CONFIDENCE, all_signs, columns, holm
from draftgauge.judging.statistics.crossed import Counts, Floats
from draftgauge.studies.kvshot.cells import Variant
from draftgauge.studies.kvshot.presets import CONTROL, HIDDEN, KV, KV_DEEP, at_equal_width

MOST_FLIPPED = 16  # seeds whose signs are all enumerated


class EffectTest(NamedTuple):
    """A mean difference over seeds and prompts with its 95% interval, and two two-sided p-values of there being none.

    Attributes:
        p_value: seeds and prompts as crossed random effects.
        p_seeds: from flipping the signs of the seeds' means; at least ``2 / 2**seeds``.
    """

    estimate: float
    low: float
    high: float
    p_value: float
    p_seeds: float
    seeds: int


def crossed_effects(differences: ArrayLike) -> EffectTest:
    """Test that the mean of differences is 0.

    Args:
        differences: ``[seeds, prompts]``.

    Returns:
        NaN for interval and p-values where there are fewer than two seeds or prompts: how much they vary is unknown.
    """
    d = np.asarray(differences, np.float64)
    seeds, prompts = d.shape
    mean = float(d.mean())
    if seeds < 2 or prompts < 2:
        return EffectTest(mean, float("nan"), float("nan"), float("nan"), float("nan"), seeds)
    by_seed, by_prompt = d.mean(1), d.mean(0)
    rest = d - by_seed[:, None] - by_prompt + mean
    squares = np.array([prompts * by_seed.var(ddof=1), seeds * by_prompt.var(ddof=1), 0.0])
    freedom = np.array([seeds - 1, prompts - 1, (seeds - 1) * (prompts - 1)])
    squares[2] = (rest**2).sum() / freedom[2]
    # Never below what either effect alone makes it: an estimated component may come out negative.
    total = max(squares[0] + squares[1] - squares[2], squares[0], squares[1])
    p_seeds = sign_flip(by_seed)
    if total <= 0:
        return EffectTest(mean, mean, mean, 1.0 if mean == 0 else 0.0, p_seeds, seeds)
    degrees = max(1.0, total**2 / float((squares**2 / freedom).sum()))
    error = (total / (seeds * prompts)) ** 0.5
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * error
    return EffectTest(mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, degrees)), p_seeds, seeds)


def sign_flip(values: ArrayLike) -> float:
    """Two-sided p-value that the mean of values is 0, by flipping their signs in all ways (Fisher 1935); exact."""
    x = np.asarray(values, np.float64)
    assert 0 < len(x) <= MOST_FLIPPED
    flipped = np.abs(all_signs(len(x)) @ x)
    return float((flipped >= abs(x.sum()) - 1e-12 * np.abs(x).sum()).mean())


LEVEL = 0.05
DECISIVE_SEEDS = 5  # fewer decide nothing: two that happen to agree would make any difference certain
EQUAL_P2 = "P2 at equal parameters"
WIDE_P1, WIDE_P3 = "P1 at equal width", "P3 at equal width"


class Run(NamedTuple):
    """One trained drafter: counts ``[1, prompts, depths]`` over the same positions, of tokens that agree, and of drafts
    whose tokens up to that depth all agree."""

    agreed: Counts
    survived: Counts


Runs = Mapping[Variant, Mapping[int, Run]]


def mean_agreement(first: int, last: int) -> Callable[[Run], Floats]:
    """``[prompts]``, whose mean is the agreement over all positions, averaged over these depths."""
    return lambda run: _by_prompt(run.agreed)[:, first : last + 1].mean(-1)


def mat_by_prompt(run: Run) -> Floats:
    """``[prompts]``, whose mean is MAT over all positions."""
    return np.asarray(1 + _by_prompt(run.survived).sum(-1))


def _by_prompt(counts: Counts) -> Floats:
    """``[prompts, depths]``, whose mean over prompts is the rate over all positions of all prompts."""
    positions = counts.reached[0].mean(0)
    return np.divide(counts.accepted[0], positions, out=np.full(counts.accepted[0].shape, np.nan), where=positions > 0)


@dataclass(frozen=True)
class Prediction:
    """What the paper expects: that ``measure`` (``[prompts]`` of a drafter) of ``better`` less that of ``worse`` is
    positive; the measure needs ``least_depths`` depths."""

    name: str
    statement: str
    measure: Callable[[Run], Floats]
    better: Variant
    worse: Variant
    least_depths: int = 1


P1 = Prediction(
    "P1", "KV reuse wins at depth: kv minus hidden at depths 5 to 7, agreement", mean_agreement(4, 6), KV, HIDDEN, 7
)
P2 = Prediction(
    "P2",
    "depth of the drafter matters: kv with 4 layers minus 1, at equal width, MAT",
    mat_by_prompt,
    at_equal_width(KV_DEEP),
    at_equal_width(KV),
)
P3 = Prediction(
    "P3", "hidden states win at first: hidden minus kv at depth 1, agreement", mean_agreement(0, 0), HIDDEN, KV
)
BY_ITSELF = "and for its own sake: kv with 4 layers minus 1, at equal parameters, MAT"
PREDICTIONS = (P1, P2, replace(P2, name=EQUAL_P2, statement=BY_ITSELF, better=KV_DEEP, worse=KV), P3)
WIDE_PREDICTIONS = tuple(
    replace(
        prediction,
        name=name,
        statement=f"{prediction.statement}, at equal width",
        better=at_equal_width(prediction.better),
        worse=at_equal_width(prediction.worse),
    )
    for prediction, name in ((P1, WIDE_P1), (P3, WIDE_P3))
)
"""Tested only where both drafters were trained at equal width."""


def verdict_rows(runs: Runs) -> list[dict[str, Any]]:
    """Answer every prediction from runs on the same prompts: ``prediction, statement, verdict, difference`` (with
    ``_low`` and ``_high``)``, seeds, p_value, p_seeds, uncorrected_p_value, reason``.

    ``p_value`` is corrected, ``p_seeds`` of the seeds alone is not; ``reason`` says why there is no test, or why it
    decides nothing.
    """
    wide = [one for one in WIDE_PREDICTIONS if runs.get(one.better) and runs.get(one.worse)]
    predictions = [*PREDICTIONS, *wide]
    tests = [_test(prediction, runs) for prediction in predictions]
    corrected = holm([test.p_value if isinstance(test, EffectTest) else math.nan for test in tests])
    rows: list[dict[str, Any]] = []
    for prediction, test, p_value in zip(predictions, tests, corrected, strict=True):
        row: dict[str, Any] = {"prediction": prediction.name, "statement": prediction.statement}
        if isinstance(test, str):
            rows.append(row | {"verdict": "undecided", "reason": test, "p_value": None})
            continue
        verdict, reason = "undecided", _undecidable(prediction, test, runs)
        if reason is None and p_value < LEVEL:
            verdict = "supported" if test.low > 0 else "contradicted" if test.high < 0 else verdict
        found = {"seeds": test.seeds, "p_value": p_value, "p_seeds": test.p_seeds, "uncorrected_p_value": test.p_value}
        difference = columns("difference", test)
        rows.append(row | {"verdict": verdict} | difference | found | {"reason": reason})
    return rows


def _test(prediction: Prediction, runs: Runs) -> EffectTest | str:
    """The test on the seeds that both drafters have, or why there is none."""
    sides = (prediction.better, prediction.worse)
    missing = [side.name for side in sides if not runs.get(side)]
    if missing:
        return f"not run: {' and '.join(missing)}"
    seeds = common_seeds(runs, *sides)
    if len(seeds) < 2:
        return "fewer than two seeds in common: how much seeds differ is unknown"
    depths = runs[sides[0]][seeds[0]].agreed.reached.shape[-1]
    if depths < prediction.least_depths:
        return f"drafts of {depths} tokens are too short for it"
    test = compare(prediction.measure, runs, *sides)
    return test if math.isfinite(test.p_value) else "too few positions have a token so deep"


def _undecidable(prediction: Prediction, test: EffectTest, runs: Runs) -> str | None:
    """Why a test decides nothing: a drafter that is not shown to beat the control, or too few seeds."""
    sides = (prediction.better, prediction.worse)
    testable = [side for side in sides if len(common_seeds(runs, side, CONTROL)) >= 2]
    useless = [side.name for side in testable if not compare(prediction.measure, runs, side, CONTROL).low > 0]
    if useless:
        return f"not shown to beat control: {' and '.join(useless)}"
    if test.seeds < DECISIVE_SEEDS:
        return f"{test.seeds} seeds: how much seeds differ is hardly known from fewer than {DECISIVE_SEEDS}"
    return None


def common_seeds(runs: Runs, one: Variant, other: Variant) -> list[int]:
    return sorted(set(runs.get(one, ())) & set(runs.get(other, ())))


def compare(measure: Callable[[Run], Floats], runs: Runs, better: Variant, worse: Variant) -> EffectTest:
    seeds = common_seeds(runs, better, worse)
    one, other = (np.stack([measure(runs[side][seed]) for seed in seeds]) for side in (better, worse))
    return crossed_effects(one - other)
