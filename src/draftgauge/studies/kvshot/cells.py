"""The configuration of a study and its cells: a row of its table (a variant of drafter) trained with one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftgauge.core.artefacts import Artefact
from draftgauge.core.errors import DraftgaugeError
from draftgauge.training.reuse.request import TrainingSpec

RESULT_NAME = "result.json"
ERROR_NAME = "error.txt"
DRAFTER_FOLDER = "drafter"
ANSWERS_NAME = "answers.jsonl"
FEATURES_NAME = "features"
TEXTS_NAME = "held-out.json"
VALIDATION_NAME = "validation.json"
EQUAL_PARAMETERS, EQUAL_WIDTH = "equal parameters", "equal width"
KEPT = Artefact("draftgauge-study", 1, "result of a study", "remove it, and it is done again")

REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "kv-gradient-50": {"kv_gradient": 50.0},  # the paper's negative result
    "depths-12": {"depths": 12},  # more depths in the unroll; measured at the depths of the others
}
"""What is done against a bottleneck -> settings of the training."""
NORMS = ("norm_before_fc", "norm_before_residual", "norm_output")
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    **{f"without-{norm.replace('_', '-')}": {norm: False} for norm in NORMS},
    "without-norms": dict.fromkeys(NORMS, False),
    "head-norm-at-one": {"target_norm": False},
    "attention-random": {"attention_start": "random"},
    "attention-self": {"attention_start": "self"},
    "adamw": {"optimizer": "adamw"},
    "head-frozen": {"freeze_head": True},
}
"""One choice of a design changed -> settings of the training."""


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        design: hidden, kv, hybrid, cross or none.
        layers: of the drafter.
        injection: how keys and values of several target layers enter; empty where none are read.
        init: ``random``, or ``warm`` from the trained ``hidden`` drafter of the same seed and capacity.
        capacity: ``equal parameters`` (the MLP's width is chosen for it) or ``equal width`` (that of the target's MLP,
            as in the paper).
        remedy: what is changed in training, one of ``REMEDIES`` or ``ABLATIONS``; empty for nothing.
    """

    design: str
    layers: int = 1
    injection: str = ""
    init: str = "random"
    capacity: str = EQUAL_PARAMETERS
    remedy: str = ""

    @property
    def starts_from(self) -> Variant | None:
        """The variant that a warm start needs."""
        return Variant("hidden", capacity=self.capacity) if self.init == "warm" else None

    @property
    def name(self) -> str:
        """Short, unique, fit for a folder."""
        parts = [
            self.design,
            self.injection if self.design == "kv" else "",
            f"{self.layers}-layers" if self.layers > 1 else "",
            "warm" if self.init == "warm" else "",
            "equal-width" if self.capacity == EQUAL_WIDTH else "",
            self.remedy,
        ]
        return "-".join(part for part in parts if part)

    def request(
        self, base: TrainingSpec, intermediate_size: int | None = None, seed: int = 0, warm_start: Path | None = None
    ) -> TrainingSpec:
        """How to train it; all but what is named here is the same for all variants."""
        return replace(
            base,
            reuse=self.design,
            layers=self.layers,
            injection=self.injection or base.injection,
            intermediate_size=intermediate_size,
            seed=seed,
            warm_start=warm_start,
            **{**REMEDIES, **ABLATIONS}.get(self.remedy, {}),
        )


@dataclass(frozen=True)
class Evaluation:
    """How trained drafters are compared, on prompts that none was trained on.

    Attributes:
        prompts: a prompt file, or ``reference:SPLIT``.
        per_task: the first so many prompts of each task; all if None.
        max_new_tokens: of the target's greedy outputs.
        live_prompts: how many prompts are decoded live, from every task alike; all if None.
        tree_prompts, latency_prompts, bottleneck_prompts: how many are decoded with draft trees, timed, and probed for
            what limits a drafter.
    """

    prompts: str = "reference:test"
    per_task: int | None = None
    max_new_tokens: int = 96
    live_prompts: int | None = None
    tree_prompts: int = 16
    latency_prompts: int = 4
    bottleneck_prompts: int = 24


@dataclass(frozen=True)
class Tuning:
    """How every row is tuned before the seeds run, see :mod:`draftgauge.studies.kvshot.tuning`: trials of ``steps``
    steps, on other prompts than drafters are compared on."""

    steps: int
    prompts: str = "reference:validation"
    per_task: int | None = None


@dataclass(frozen=True)
class Study:
    """A whole study: every variant with every seed, trained alike.

    Attributes:
        preset: its name.
        variants: rows of the table. A warm one needs the ``hidden`` one of its capacity among them.
        seeds: of training, for the ``decisive`` rows that verdicts are about; the first ``other_seeds`` of them (all if
            None) for the others.
        request: of every training; target, data, loss, optimiser and steps.
        evaluation: of every drafter.
        tuning: of every variant; None trains all with the settings of ``request``.
    """

    preset: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    request: TrainingSpec
    evaluation: Evaluation
    tuning: Tuning | None = None
    other_seeds: int | None = None
    decisive: tuple[Variant, ...] = ()

    def __post_init__(self) -> None:
        assert len({variant.name for variant in self.variants}) == len(self.variants)

    def seeds_of(self, variant: Variant) -> tuple[int, ...]:
        """The seeds of one row."""
        return self.seeds if variant in self.decisive else self.seeds[: self.other_seeds]

    def with_seeds(self, most: int) -> Study:
        """The same with no more than some seeds for any row: a beginning of it, which is whole in itself."""
        others = most if self.other_seeds is None else min(most, self.other_seeds)
        return replace(self, seeds=self.seeds[:most], other_seeds=others)

    def shared_request(self, folder: Path) -> TrainingSpec:
        """The study's training with the answers and features that all cells share."""
        cache = None if self.request.cache is None else folder / self.request.cache
        return replace(self.request, answers=folder / ANSWERS_NAME, cache=cache)


@dataclass(frozen=True)
class Cell:
    """One variant with one seed; travels to other processes.

    Attributes:
        variant: row of the table.
        request: its training, seed and width included.
        evaluation: what is measured afterwards.
        study: the study's folder; the cell works in one of its own below it.
        fingerprint: of the target.
        parameters: trainable ones.
        depths: tokens a draft in measuring, the same for all cells.
        after: the cell that this one starts from.
    """

    variant: Variant
    request: TrainingSpec
    evaluation: Evaluation
    study: Path
    fingerprint: str
    parameters: int
    depths: int
    after: str | None = None

    @property
    def name(self) -> str:
        """Of the cell and of its folder."""
        return cell_name(self.variant, self.request.seed)

    @property
    def folder(self) -> Path:
        """Where its drafter and its result are."""
        return cell_folder(self.study, self.name)

    def settings(self) -> dict[str, Any]:
        """Everything its result follows from, ready for JSON; not places of files, as the study's folder may move."""
        return {
            "variant": asdict(self.variant),
            "training": training_identity(self.request),
            "evaluation": asdict(self.evaluation) | {"depths": self.depths},
            "target": self.fingerprint,
            "after": self.after,
        }

    def digest(self) -> str:
        """Hash of the settings: a result counts only where it is the same."""
        return hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()


def training_identity(request: TrainingSpec) -> dict[str, Any]:
    """What a training's result follows from, ready for JSON, but for places of files and its target."""
    return {key: value for key, value in request.identity().items() if key not in ("target", "prompts", "warm_start")}


def cell_name(variant: Variant, seed: int) -> str:
    """``variant-seedN``."""
    return f"{variant.name}-seed{seed}"


def cell_folder(study: Path, name: str) -> Path:
    """Folder of a cell of the study in ``study``."""
    return study / "cells" / name


def read_kept(path: Path, identity: Any) -> dict[str, Any] | None:
    """What a job left in a file of kind :data:`KEPT`; None where it has not been done.

    Raises:
        DraftgaugeError: if it was done with other settings, or cannot be read.
    """
    if not path.exists():
        return None
    content = KEPT.read(path)
    if content.get("identity") != json.loads(json.dumps(identity)):
        raise DraftgaugeError(
            f"{path} is of other settings (preset, steps, prompts or target): give this study a folder of its own"
        )
    return content


def make_cells(
    study: Study,
    shapes: Mapping[Variant, tuple[int, int]],
    fingerprint: str,
    folder: Path,
    tuned: Callable[[Variant, TrainingSpec], TrainingSpec] = lambda variant, request: request,
) -> list[Cell]:
    """All cells, seed by seed, so that a study that is stopped early has whole seeds; warm ones after what they start
    from.

    Args:
        study: which variants and seeds.
        shapes: of each variant: the width of its MLP, and its trainable parameters.
        fingerprint: of the target.
        folder: of the study.
        tuned: makes a variant's request that of its tuned settings.
    """
    base = study.shared_request(folder)
    cells = []
    for seed in study.seeds:
        for variant in sorted(study.variants, key=lambda variant: variant.init == "warm"):
            if seed not in study.seeds_of(variant):
                continue
            width, parameters = shapes[variant]
            after = cell_name(variant.starts_from, seed) if variant.starts_from else None
            start = cell_folder(folder, after) / DRAFTER_FOLDER if after else None
            request = tuned(variant, variant.request(base, width, seed, start))
            depths = study.request.depths
            cells.append(Cell(variant, request, study.evaluation, folder, fingerprint, parameters, depths, after))
    return cells
