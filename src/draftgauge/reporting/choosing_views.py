"""What the report shows of policies judged on prompts they never saw, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from draftgauge.diagnostics.calibration import Bin
from draftgauge.reporting.views import Floats, Timeline


@dataclass(frozen=True)
class JudgedPolicy:
    """One line of the table: a policy on the test prompts. Intervals are 95%, resampled by prompt.

    Attributes:
        policy: its name for readers.
        description: what it does.
        reference: whether it is there to be compared with: drafting nothing, a fixed length, the hindsight optimum.
        tokens_per_step, tokens_per_second: modelled.
        gain: low end, estimate and high end, over the best fixed length chosen on training prompts, minus 1.
        captured: likewise, of the way from that length to the hindsight optimum; None where there is none.
        p_holm: of no gain, adjusted for all policies of the table; None for references.
    """

    policy: str
    description: str
    reference: bool
    tokens_per_step: float
    tokens_per_second: float
    gain: tuple[float, float, float]
    captured: tuple[float, float, float] | None
    p_holm: float | None


@dataclass(frozen=True)
class SweepCurve:
    """A policy against the cost ratio; all ``[R]``. ``captured`` is NaN where nothing is left to be gained."""

    policy: str
    ratios: Floats
    gain: Floats
    gain_low: Floats
    gain_high: Floats
    captured: Floats


@dataclass(frozen=True)
class LengthLine:
    """The steps of one policy along one output: first token, drafted, accepted and committed tokens of each."""

    policy: str
    steps: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class LengthChart:
    """Draft lengths along one output of ``tokens`` tokens: the fixed length, the judged policy, the optimum."""

    task: str
    identifier: str
    tokens: int
    lines: tuple[LengthLine, ...]


@dataclass(frozen=True)
class ReliabilityCurve:
    """How right predicted chances of acceptance were on test prompts."""

    name: str
    bins: tuple[Bin, ...]
    calibration_error: float
    brier: float
    skill: float


@dataclass(frozen=True)
class ChoosingView:
    """Policies that choose the draft length, judged at one compression.

    Attributes:
        name: the compression.
        prompts: evaluated on.
        training_prompts: that the best fixed length was chosen on.
        best_gamma: that length.
        cost_ratio: as measured.
        optimum: gain of the hindsight optimum at each ratio of the sweep, ``[R]``.
        policies: the table, references among them.
        sweep: the policies of the charts, in the same order at every compression.
        lengths: along one output, of the best fixed length, the policy with the largest gain, the optimum.
        text: that output as that policy makes it.
        calibration: the drafter's own confidence first.
    """

    name: str
    prompts: int
    training_prompts: int
    best_gamma: int
    cost_ratio: float
    optimum: Floats
    policies: tuple[JudgedPolicy, ...]
    sweep: tuple[SweepCurve, ...]
    lengths: LengthChart
    text: Timeline
    calibration: tuple[ReliabilityCurve, ...]

    @property
    def ahead(self) -> JudgedPolicy:
        """The policy with the largest gain, references aside."""
        return max((policy for policy in self.policies if not policy.reference), key=lambda policy: policy.gain[1])
