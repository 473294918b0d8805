"""Policies that choose the draft length, judged on prompts they never saw against the best fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.prompts import TEST, TRAIN
from draftgauge.diagnostics.calibration import (
    base_rates,
    brier,
    expected_calibration_error,
    judged,
    predicted_acceptance,
    reliability_bins,
)
from draftgauge.policies import make_policy
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FITTED_SUFFIX, load_fitted
from draftgauge.replaying import (
    ALL_TASKS,
    Design,
    Replay,
    cost_sweep,
    design_of,
    evaluate_design,
    hindsight_optimum,
    replay,
    replay_lengths,
)
from draftgauge.replaying.evaluate import HINDSIGHT, NOTHING, figure
from draftgauge.replaying.splits import MIN_PROMPTS, splits_of
from draftgauge.reporting.choosing_views import (
    ChoosingView,
    JudgedPolicy,
    LengthChart,
    LengthLine,
    ReliabilityCurve,
    SweepCurve,
)
from draftgauge.reporting.tables import describe
from draftgauge.reporting.timeline import TOKENS_SHOWN, replay_timeline, representative_prompts
from draftgauge.statistics.bootstrap import RESAMPLES
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

ALWAYS_COMPARED = ("hf-confidence", "cumulative-confidence")
"""Rules of the field that every report compares, beside the policies that were asked for."""

# Lines of the charts; more cannot be told apart.
CHARTED = 6
LENGTH_TOKENS = 96
CONFIDENCE = "drafter's confidence"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Contest:
    """What is judged, on what: the test prompts of a trace with its costs, and the specs of the policies."""

    design: Design
    costs: CostCurve
    specs: tuple[str, ...]

    @property
    def trace(self) -> Trace:
        """The test prompts."""
        return self.design.trace

    def make(self, spec: str, costs: CostCurve | None = None) -> Policy:
        """A new policy."""
        return make_policy(spec, self.trace.gamma_max, costs or self.costs)

    def arms(self, costs: CostCurve) -> dict[str, Policy | Replay]:
        """New policies by their spec."""
        return {spec: self.make(spec, costs) for spec in self.specs}

    def title(self, spec: str) -> str:
        """A policy's name for readers: fitted ones go by their file, unless two have the same name."""
        stems = [Path(other).stem for other in self.specs]
        return Path(spec).stem if spec.endswith(FITTED_SUFFIX) and stems.count(Path(spec).stem) == 1 else spec


def can_judge(trace: Trace) -> bool:
    """Whether there are enough training and test prompts, named by the prompts or divided."""
    splits = splits_of(trace)
    return all(int((splits == split).sum()) >= MIN_PROMPTS for split in (TRAIN, TEST))


def choosing_view(trace: Trace, costs: CostCurve, policies: Sequence[str], texts: Sequence[str]) -> ChoosingView:
    """Judge policies on the test prompts of a trace.

    Args:
        trace: all prompts.
        costs: of the run.
        policies: specs, beside those that every report compares.
        texts: decoded piece of every row of ``trace``.

    Raises:
        TraceError: if a split has too few prompts.
        DraftgaugeError: for an unknown policy, or one that was fitted for other drafts.
    """
    asked = dict.fromkeys([*policies, *ALWAYS_COMPARED])
    design = design_of(trace, TEST, fixed=True)
    assert design.train is not None
    this = Contest(design, costs, tuple(spec for spec in asked if spec.partition(":")[0] not in (NOTHING, "fixed")))
    rows = [row for row in evaluate_design(design, costs, this.arms) if row["task"] == ALL_TASKS]
    ahead = max((row for row in rows if row["policy"] in this.specs), key=lambda row: figure(row, "gain"))
    swept = [row for row in cost_sweep(design, costs, this.arms, resamples=RESAMPLES) if row["task"] == ALL_TASKS]
    best = int(figure(rows[0], "best_fixed_gamma"))
    return ChoosingView(
        name=trace.compression,
        prompts=len(design.trace.prompts),
        training_prompts=len(design.train.prompts),
        best_gamma=best,
        cost_ratio=costs.cost_ratio(),
        optimum=tuple(figure(row, "gain") for row in swept if row["policy"] == HINDSIGHT),
        policies=tuple(_judged(row, this) for row in rows),
        # In the order of the specs, so that a policy has the same line at every compression.
        sweep=tuple(
            _curve(this.title(spec), [row for row in swept if row["policy"] == spec]) for spec in this.specs[:CHARTED]
        ),
        **_along_a_text(this, str(ahead["policy"]), best, _texts_of(trace, design.trace, texts)),
        calibration=_calibration(this, design.train),
    )


def _judged(row: Row, this: Contest) -> JudgedPolicy:
    spec = str(row["policy"])
    return JudgedPolicy(
        policy=this.title(spec),
        description=_description(spec),
        reference=spec not in this.specs,
        tokens_per_step=row["tokens_per_step"],
        tokens_per_second=row["tokens_per_second"],
        gain=(row["gain_low"], row["gain"], row["gain_high"]),
        captured=None if row["captured"] is None else (row["captured_low"], row["captured"], row["captured_high"]),
        p_holm=row["p_holm"],
    )


def _description(spec: str) -> str:
    if not spec.endswith(FITTED_SUFFIX):
        return describe(spec)
    fitted = load_fitted(Path(spec))
    return f"{describe(fitted.policy) or fitted.policy}, fitted on {len(fitted.trained_on)} prompts"


def _curve(name: str, rows: Sequence[Row]) -> SweepCurve:
    ratios, gain, low, high, captured = (
        tuple(figure(row, key) for row in rows) for key in ("cost_ratio", "gain", "gain_low", "gain_high", "captured")
    )
    return SweepCurve(name, ratios, gain, low, high, captured)


def _along_a_text(this: Contest, spec: str, best: int, texts: Sequence[str]) -> dict[str, Any]:
    """Draft lengths along the most typical output, and that output as the policy with the largest gain makes it."""
    trace, costs = this.trace, this.costs
    prompt = representative_prompts(trace, per_task=1)[0]
    outcomes = {
        f"fixed:{best}": replay_lengths(trace, np.full(trace.positions, best), costs),
        this.title(spec): replay(trace, this.make(spec), costs),
        HINDSIGHT: hindsight_optimum(trace, costs).replay,
    }
    info = trace.prompts[prompt]
    lines = tuple(LengthLine(name, _steps(outcome, prompt)) for name, outcome in outcomes.items())
    chosen = {position: drafted for position, drafted, _, _ in lines[1].steps}
    text = replay_timeline(trace, prompt, chosen, texts, min(LENGTH_TOKENS, TOKENS_SHOWN))
    return {
        "lengths": LengthChart(info.task, info.identifier, min(info.output_tokens, LENGTH_TOKENS), lines),
        "text": text,
    }


def _steps(outcome: Replay, prompt: int) -> tuple[tuple[int, int, int, int], ...]:
    """The steps of one prompt that begin within what is shown."""
    record = outcome.record
    here = (record.prompt == prompt) & (record.position < LENGTH_TOKENS)
    columns = [values[here].tolist() for values in (record.position, record.drafted, record.accepted, record.committed)]
    return tuple(zip(*columns, strict=True))


def _texts_of(trace: Trace, part: Trace, texts: Sequence[str]) -> list[str]:
    """The decoded pieces of a part of a trace's prompts."""
    rows = {info.index: slice(*trace.offsets[i : i + 2].tolist()) for i, info in enumerate(trace.prompts)}
    return [piece for info in part.prompts for piece in texts[rows[info.index]]]


def _calibration(this: Contest, train: Trace) -> tuple[ReliabilityCurve, ...]:
    """Reliability of the drafter's confidence, and of every policy that predicts acceptance."""
    base = base_rates(train)
    predictions: dict[str, NDArray[Any]] = {CONFIDENCE: this.trace.confidence}
    for spec in this.specs:
        predicted = predicted_acceptance(this.make(spec), this.trace)
        if predicted is not None:
            predictions[this.title(spec)] = predicted
    curves = []
    for name, chances in predictions.items():
        tokens = judged(this.trace, chances)
        score = brier(tokens, base)
        curves.append(
            ReliabilityCurve(
                name, tuple(reliability_bins(tokens)), expected_calibration_error(tokens), score.score, score.skill
            )
        )
    return tuple(curves)
