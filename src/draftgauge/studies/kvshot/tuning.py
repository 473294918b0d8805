"""Equal tuning: before the seeds run, every row of the table gets the same number of trials on validation prompts.

First four learning rates; then, at the best of them, two other warm-ups; then two other starts of the gate where a
design has one, and two rates beside the best where it has none. Trials are shorter than the study's own trainings, of
one seed that is none of the study's, and judged by the mean KL over all depths on the validation prompts. A
warm-started drafter, or one with a remedy, takes over what was tuned for the same drafter without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DivergenceError
from draftgauge.core.files import require_writable_file
from draftgauge.studies.kvshot.cells import KEPT, Variant, read_kept
from draftgauge.training.reuse.request import TrainingSpec

FACTORS = (0.5, 1.0, 2.0, 4.0)  # of the default learning rate
WARMUPS = (0.02, 0.15)
GATE_STARTS = (-2.0, 2.0)
BESIDE = (2**-0.5, 2**0.5)
TRIALS = len(FACTORS) + len(WARMUPS) + len(GATE_STARTS)
TUNING_FOLDER = "tuning"
SEED = 10_000


@dataclass(frozen=True)
class Trial:
    """One training of a row: its peak learning rate, warm-up (a share of the steps) and the bias of the gate."""

    learning_rate: float
    warmup: float
    gate_start: float = 0.0

    def request(self, base: TrainingSpec) -> TrainingSpec:
        """A training with these settings."""
        return replace(base, learning_rate=self.learning_rate, warmup=self.warmup, gate_start=self.gate_start)

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"rate{self.learning_rate:.3g}-warmup{self.warmup:g}-gate{self.gate_start:g}"


@dataclass(frozen=True)
class Tuned:
    """What was tried for a row, in order, and the validation KL of each trial, infinite where it diverged."""

    trials: tuple[Trial, ...]
    losses: tuple[float, ...]

    @property
    def chosen(self) -> Trial:
        """The one of the least loss."""
        return self.trials[min(range(len(self.losses)), key=self.losses.__getitem__)]

    def rows(self, labels: Mapping[str, Any]) -> list[dict[str, Any]]:
        """``trial, learning_rate, warmup, gate_start, validation_kl, chosen``, one a trial; None for the KL of one that
        diverged.
        """
        return [
            {**labels, "trial": number, **asdict(trial), "validation_kl": _finite(loss), "chosen": trial == self.chosen}
            for number, (trial, loss) in enumerate(zip(self.trials, self.losses, strict=True))
        ]


def search(default_rate: float, warmup: float, gated: bool, measure: Callable[[Trial], float]) -> Tuned:
    """Spend the budget: ``TRIALS`` trainings, whatever the design.

    Args:
        default_rate: learning rate around which is searched.
        warmup: of the first trials.
        gated: whether the design has a gate.
        measure: validation loss of a trial, infinite or NaN where it diverged; called once for each.

    Raises:
        DivergenceError: if the trials of all learning rates diverge.
    """
    trials: list[Trial] = []
    losses: list[float] = []

    def attempt(candidates: Iterator[Trial]) -> Trial:
        for trial in list(candidates):
            trials.append(trial)
            loss = measure(trial)
            losses.append(loss if math.isfinite(loss) else math.inf)
        return trials[min(range(len(losses)), key=losses.__getitem__)]

    best = attempt(Trial(factor * default_rate, warmup) for factor in FACTORS)
    if min(losses) == math.inf:
        rates = ", ".join(f"{trial.learning_rate:.2g}" for trial in trials)
        raise DivergenceError(f"every trial of the tuning diverged, at learning rates of {rates}")
    best = attempt(replace(best, warmup=other) for other in WARMUPS)
    if gated:
        attempt(replace(best, gate_start=start) for start in GATE_STARTS)
    else:
        attempt(replace(best, learning_rate=factor * best.learning_rate) for factor in BESIDE)
    assert len(trials) == TRIALS
    return Tuned(tuple(trials), tuple(losses))


def tuned_as(variant: Variant) -> Variant:
    """The row whose tuning a row takes over."""
    return replace(variant, init="random", remedy="")


def distinct(variants: Sequence[Variant]) -> list[Variant]:
    """The rows that are tuned themselves, each once."""
    return list(dict.fromkeys(tuned_as(variant) for variant in variants))


def tuning_path(study: Path, variant: Variant) -> Path:
    """Where the tuning of a row is kept."""
    return study / TUNING_FOLDER / f"{tuned_as(variant).name}.json"


def save_tuned(path: Path, tuned: Tuned, identity: Mapping[str, Any]) -> None:
    """Keep what was found, and of what."""
    require_writable_file(path)
    losses = [_finite(loss) for loss in tuned.losses]
    KEPT.write(path, {"identity": identity, "trials": [asdict(trial) for trial in tuned.trials], "losses": losses})


def read_tuned(path: Path, identity: Mapping[str, Any]) -> Tuned | None:
    """What was found before; None where nothing was.

    Raises:
        DraftgaugeError: if it was found for other settings, or cannot be read.
    """
    content = read_kept(path, identity)
    if content is None:
        return None
    losses = (math.inf if loss is None else loss for loss in content["losses"])
    return Tuned(tuple(Trial(**trial) for trial in content["trials"]), tuple(losses))


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
