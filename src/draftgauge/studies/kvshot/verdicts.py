"""The paper's three predictions, each put to a paired test over prompts and seeds.

P-values are two-sided, from the bootstrap over prompts and seeds, and Holm-corrected for there being three. A
prediction is *supported* if its difference is positive and *contradicted* if it is negative, at a corrected p below
0.05 and with an interval that leaves out 0; else it is *undecided*, as it is where the study did not train what it is
about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from draftgauge.statistics.bootstrap import Comparison
from draftgauge.statistics.crossed import Counts, Measure, at_depths, difference, mean_accepted
from draftgauge.statistics.paired import holm
from draftgauge.studies.kvshot.cells import Variant
from draftgauge.studies.kvshot.presets import HIDDEN, KV, KV_DEEP

LEVEL = 0.05
RESAMPLES = 10_000


@dataclass(frozen=True)
class Prediction:
    """What the paper expects, as a difference that should be positive.

    Attributes:
        name: P1, P2 or P3.
        statement: in words.
        measure: of both drafters.
        better, worse: the drafters.
        least_depths: how many depths the measure needs.
    """

    name: str
    statement: str
    measure: Measure
    better: Variant
    worse: Variant
    least_depths: int


PREDICTIONS = (
    Prediction(
        "P1", "KV reuse wins at depth: mean alpha of depths 4 to 6, kv minus hidden", at_depths(4, 6), KV, HIDDEN, 7
    ),
    Prediction(
        "P2",
        "depth of the drafter matters: MAT of kv with 4 layers minus 1, at equal parameters",
        mean_accepted,
        KV_DEEP,
        KV,
        1,
    ),
    Prediction("P3", "hidden states win at first: alpha of depth 0, hidden minus kv", at_depths(0, 0), HIDDEN, KV, 1),
)


@dataclass(frozen=True)
class Verdict:
    """An answer; ``p_value`` is corrected, ``raw_p_value`` is not.

    ``reason`` says why there is no test, where there is none.
    """

    prediction: Prediction
    verdict: str
    difference: float
    low: float
    high: float
    p_value: float
    raw_p_value: float
    reason: str = ""


def verdicts(counts: Mapping[Variant, Mapping[int, Counts]]) -> list[Verdict]:
    """Answer every prediction.

    Args:
        counts: for each variant and seed, the teacher-forced counts of the same prompts.
    """
    tests = [_test(prediction, counts) for prediction in PREDICTIONS]
    corrected = holm([test.p_value if isinstance(test, Comparison) else math.nan for test in tests])
    return [_answer(prediction, test, p) for prediction, test, p in zip(PREDICTIONS, tests, corrected, strict=True)]


def _test(prediction: Prediction, counts: Mapping[Variant, Mapping[int, Counts]]) -> Comparison | str:
    """The comparison on the seeds that both drafters have, or why there is none."""
    sides = (prediction.better, prediction.worse)
    missing = [side.name for side in sides if not counts.get(side)]
    if missing:
        return f"not run: {' and '.join(missing)}"
    seeds = sorted(set(counts[sides[0]]) & set(counts[sides[1]]))
    if not seeds:
        return "no seed in common"
    better, worse = (Counts.stack([counts[side][seed] for seed in seeds]) for side in sides)
    if better.reached.shape[-1] < prediction.least_depths:
        return f"drafts of {better.reached.shape[-1]} tokens are too short for it"
    comparison = difference(better, worse, prediction.measure, RESAMPLES)
    return comparison if math.isfinite(comparison.p_value) else "too few drafts got so deep"


def _answer(prediction: Prediction, test: Comparison | str, p_value: float) -> Verdict:
    if isinstance(test, str):
        return Verdict(prediction, "undecided", math.nan, math.nan, math.nan, math.nan, math.nan, test)
    verdict = "undecided"
    if p_value < LEVEL and test.low > 0:
        verdict = "supported"
    elif p_value < LEVEL and test.high < 0:
        verdict = "contradicted"
    return Verdict(prediction, verdict, test.estimate, test.low, test.high, p_value, test.p_value)
