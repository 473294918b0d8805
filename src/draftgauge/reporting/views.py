"""What a report shows of one compression, as plain values that :mod:`draftgauge.reporting.collect` fills in."""

from __future__ import annotations

from dataclasses import dataclass

from draftgauge.replaying.evaluate import near_best
from draftgauge.traces.costs import CostCurve

Floats = tuple[float, ...]


@dataclass(frozen=True)
class AcceptanceCurve:
    """Acceptance by depth of one task.

    Attributes:
        task: the kind of task.
        rate: ``[G]``; entry ``d - 1`` is the chance that the token drafted at depth ``d`` is accepted, given that all
            before it were.
        low, high: ``[G]`` ends of the 95% interval, resampled by prompt. All three are NaN where too few drafts came
            that deep.
    """

    task: str
    rate: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class LivePoint:
    """Speed over plain decoding, measured beside it at one fixed draft length, with its interval where there is one."""

    gamma: int
    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SpeedCurve:
    """Modelled speed against draft length, of one task or of all prompts together.

    Attributes:
        task: the kind of task, or :data:`draftgauge.replaying.ALL_TASKS`.
        tokens_per_step, tokens_per_second: ``[G + 1]``; entry ``g`` belongs to drafting ``g`` tokens at every step.
        plain: modelled tokens/s of plain decoding.
        hindsight: modelled tokens/s of the hindsight optimum.
        held_out: modelled tokens/s if each prompt's length is the best one on all other prompts; None with a single
            prompt.
        live: measurements at fixed draft lengths.
    """

    task: str
    tokens_per_step: Floats
    tokens_per_second: Floats
    plain: float
    hindsight: float
    held_out: float | None = None
    live: tuple[LivePoint, ...] = ()

    @property
    def best_gamma(self) -> int:
        """The shortest of the fixed lengths with the most modelled tokens/s; 0 if drafting nothing is best."""
        return max(range(len(self.tokens_per_second)), key=self.tokens_per_second.__getitem__)

    @property
    def near_best(self) -> tuple[int, int]:
        """The shortest and longest length about as good as the best, see :func:`draftgauge.replaying.near_best`."""
        return near_best(self.tokens_per_second)

    @property
    def best_draft(self) -> int:
        """The best length of those that draft at all, 1 or more."""
        return max(range(1, len(self.tokens_per_second)), key=self.tokens_per_second.__getitem__)

    @property
    def best(self) -> float:
        """Modelled tokens/s at :attr:`best_gamma`."""
        return self.tokens_per_second[self.best_gamma]

    @property
    def speedups(self) -> Floats:
        """``[G + 1]`` modelled tokens/s over those of plain decoding."""
        return tuple(speed / self.plain for speed in self.tokens_per_second)

    @property
    def speedup(self) -> float:
        """Best fixed length over plain decoding."""
        return self.best / self.plain

    @property
    def hindsight_gain(self) -> float:
        """Hindsight optimum over the best fixed length, minus 1."""
        return self.hindsight / self.best - 1


@dataclass(frozen=True)
class TableRow:
    """One policy (or baseline) on one task: modelled where it was replayed, live where it was measured.

    Ratios are to plain decoding, the live one to that measured beside it, with its 95% interval from ``live_low`` to
    ``live_high``.
    """

    task: str
    policy: str
    tokens_per_step: float | None = None
    modelled_tokens_per_second: float | None = None
    modelled_ratio: float | None = None
    live_tokens_per_second: float | None = None
    live_ratio: float | None = None
    live_low: float | None = None
    live_high: float | None = None
    mismatches: int | None = None


@dataclass(frozen=True)
class TimelineToken:
    """One token of an output and how a step brought it.

    Attributes:
        text: the token's piece of the output.
        kind: "accepted" (drafted and accepted), "corrected" (the target's own after a rejection), "bonus" (the target's
            own after a full acceptance) or "plain" (nothing was drafted).
        depth: which drafted token of its step, counted from 1; None where it was not drafted.
        confidence: the drafter's top-1 probability there; of the rejected token where ``kind`` is "corrected".
        rejected: text of the rejected draft token where ``kind`` is "corrected" and its text is known.
    """

    text: str
    kind: str
    depth: int | None = None
    confidence: float | None = None
    rejected: str | None = None


@dataclass(frozen=True)
class Timeline:
    """One output, step by step, in a replay at a fixed draft length, or a changing one (``gamma`` None)."""

    task: str
    identifier: str
    gamma: int | None
    steps: tuple[tuple[TimelineToken, ...], ...]

    @property
    def tokens(self) -> int:
        """Committed tokens."""
        return sum(map(len, self.steps))


@dataclass(frozen=True)
class CompressionView:
    """Everything the report says about one compression of the target. ``speeds`` begins with all tasks together."""

    name: str
    cost: CostCurve
    prompts: int
    acceptance: tuple[AcceptanceCurve, ...]
    speeds: tuple[SpeedCurve, ...]
    rows: tuple[TableRow, ...]
    timelines: tuple[Timeline, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()

    @property
    def pooled(self) -> SpeedCurve:
        """The speed curve over all prompts."""
        return self.speeds[0]
