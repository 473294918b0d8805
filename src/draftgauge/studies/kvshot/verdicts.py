"""The paper's three predictions, each put to a paired test over prompts and seeds.

The second is tested twice: at equal width as in the paper, where four layers have more than twice the parameters of
one, and at equal parameters, where their MLPs are as much narrower. The first and the third are tested at equal
parameters, and at equal width too where the study trained ``hidden`` and ``kv`` so: ``kv``, which reads less, has fewer
parameters there.

Agreement is taken over *all* output positions: acceptance given that all earlier tokens were accepted compares
different positions for every drafter, and a drafter that rarely gets deep does so where the text is easy.

Seeds and prompts are crossed random effects (:mod:`draftgauge.statistics.effects`); p-values are two-sided and
Holm-corrected for as many tests as the study allows, six at most. Beside each stands the p-value of the seeds alone. A
prediction is *supported* if its difference is positive and *contradicted* if it is negative, at a corrected p below
0.05 and with an interval that leaves out 0; else it is *undecided*, as it is where the study did not train what it is
about, and where one of the two drafters is not shown to beat, on the same measure, the control that reads nothing: what
such a drafter reuses it has not learned to use, and to compare it says nothing about reuse. Nor is anything decided by
fewer than five seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.statistics.crossed import Counts
from draftgauge.statistics.effects import EffectTest, crossed_effects
from draftgauge.statistics.paired import holm
from draftgauge.studies.kvshot.cells import Variant
from draftgauge.studies.kvshot.presets import HIDDEN, KV, KV_DEEP, NONE, at_equal_width

LEVEL = 0.05
EQUAL_P2 = "P2 at equal parameters"
WIDE_P1, WIDE_P3 = "P1 at equal width", "P3 at equal width"
Floats = NDArray[np.float64]


class Run(NamedTuple):
    """One trained drafter: counts ``[1, prompts, depths]`` over the same positions, of tokens that agree, and of drafts
    whose tokens up to there all agree.
    """

    agreed: Counts
    survived: Counts


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
    """What the paper expects, as a difference that should be positive.

    Attributes:
        name: P1, P2 or P3, with what is equal where another test of it goes by the plain name.
        statement: in words.
        measured: what is compared, and how.
        measure: of a drafter, by prompt.
        better, worse: the drafters.
        least_depths: how many depths the measure needs.
    """

    name: str
    statement: str
    measured: str
    measure: Callable[[Run], Floats]
    better: Variant
    worse: Variant
    least_depths: int


EFFECTS = "seeds and prompts as crossed random effects"
DECISIVE_SEEDS = 5
"""Fewer decide nothing: two that happen to agree would make any difference certain."""
PREDICTIONS = (
    Prediction(
        "P1",
        "KV reuse wins at depth: kv minus hidden at depths 4 to 6",
        f"agreement over all positions; {EFFECTS}",
        mean_agreement(4, 6),
        KV,
        HIDDEN,
        7,
    ),
    Prediction(
        "P2",
        "depth of the drafter matters: kv with 4 layers minus 1, at equal width",
        f"MAT over all positions; {EFFECTS}",
        mat_by_prompt,
        at_equal_width(KV_DEEP),
        at_equal_width(KV),
        1,
    ),
    Prediction(
        EQUAL_P2,
        "and for its own sake: kv with 4 layers minus 1, at equal parameters",
        f"MAT over all positions; {EFFECTS}",
        mat_by_prompt,
        KV_DEEP,
        KV,
        1,
    ),
    Prediction(
        "P3",
        "hidden states win at first: hidden minus kv at depth 0",
        f"agreement over all positions; {EFFECTS}",
        mean_agreement(0, 0),
        HIDDEN,
        KV,
        1,
    ),
)
WIDE_PREDICTIONS = tuple(
    replace(
        prediction,
        name=name,
        statement=f"{prediction.statement}, at equal width",
        better=at_equal_width(prediction.better),
        worse=at_equal_width(prediction.worse),
    )
    for prediction, name in ((PREDICTIONS[0], WIDE_P1), (PREDICTIONS[-1], WIDE_P3))
)
"""Those that are put at equal parameters, as the paper put them; asked where both drafters were trained so."""


@dataclass(frozen=True)
class Verdict:
    """An answer; ``p_value`` is corrected, ``raw_p_value`` is not, and neither is ``p_seeds``, of the seeds alone.

    ``reason`` says why there is no test, where there is none, or why it decides nothing.
    """

    prediction: Prediction
    verdict: str
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    raw_p_value: float = math.nan
    p_seeds: float = math.nan
    seeds: int = 0
    reason: str = ""


def verdicts(runs: Mapping[Variant, Mapping[int, Run]]) -> list[Verdict]:
    """Answer every prediction.

    Args:
        runs: for each variant and seed; all on the same prompts.
    """
    wide = [one for one in WIDE_PREDICTIONS if runs.get(one.better) and runs.get(one.worse)]
    predictions = [*PREDICTIONS, *wide]
    tests = [_test(prediction, runs) for prediction in predictions]
    corrected = holm([test.p_value if isinstance(test, EffectTest) else math.nan for test in tests])
    return [
        Verdict(prediction, "undecided", reason=test)
        if isinstance(test, str)
        else _answer(prediction, test, p, _useless(prediction, runs))
        for prediction, test, p in zip(predictions, tests, corrected, strict=True)
    ]


def _test(prediction: Prediction, runs: Mapping[Variant, Mapping[int, Run]]) -> EffectTest | str:
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


def _useless(prediction: Prediction, runs: Mapping[Variant, Mapping[int, Run]]) -> list[str]:
    """Which of the two drafters are not shown to beat the control, where that was trained with seeds of theirs."""
    sides = (prediction.better, prediction.worse)
    testable = [side for side in sides if len(common_seeds(runs, side, NONE)) >= 2]
    return [side.name for side in testable if not compare(prediction.measure, runs, side, NONE).low > 0]


def common_seeds(runs: Mapping[Variant, Mapping[int, Run]], one: Variant, other: Variant) -> list[int]:
    """The seeds that both were trained with."""
    return sorted(set(runs.get(one, ())) & set(runs.get(other, ())))


def compare(
    measure: Callable[[Run], Floats], runs: Mapping[Variant, Mapping[int, Run]], better: Variant, worse: Variant
) -> EffectTest:
    """What is measured of one drafter less that of the other, on the seeds that both have, two at least."""
    seeds = common_seeds(runs, better, worse)
    one, other = (np.stack([measure(runs[side][seed]) for seed in seeds]) for side in (better, worse))
    return crossed_effects(one - other)


def _answer(prediction: Prediction, test: EffectTest, p_value: float, useless: list[str]) -> Verdict:
    figures = test.estimate, test.low, test.high, p_value, test.p_value, test.p_seeds, test.seeds
    if useless:
        return Verdict(prediction, "undecided", *figures, f"not shown to beat none: {' and '.join(useless)}")
    if test.seeds < DECISIVE_SEEDS:
        few = f"{test.seeds} seeds: how much seeds differ is hardly known from fewer than {DECISIVE_SEEDS}"
        return Verdict(prediction, "undecided", *figures, few)
    verdict = "undecided"
    if p_value < LEVEL and test.low > 0:
        verdict = "supported"
    elif p_value < LEVEL and test.high < 0:
        verdict = "contradicted"
    return Verdict(prediction, verdict, *figures)
