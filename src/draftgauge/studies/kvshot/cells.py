"""The cells of the study: a row of its table (a variant of drafter) trained with one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftgauge.training.reuse.request import TrainingSpec

RESULT_NAME = "result.json"
ERROR_NAME = "error.txt"
DRAFTER_FOLDER = "drafter"
ANSWERS_NAME = "answers.jsonl"
FEATURES_NAME = "features"
TEXTS_NAME = "held-out.json"
VALIDATION_NAME = "validation.json"
EQUAL_PARAMETERS, EQUAL_WIDTH = "equal parameters", "equal width"


REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "kv-gradient-50": {"kv_gradient": 50.0},
    "gate-held": {"gate_hold": 0.2},
    "cross-first": {"cross_first": 0.2},
    "depths-12": {"depths": 12},
}
"""Remedy -> settings of the training: the paper's negative result; the gate held open, then freed; the cross branch
trained first, the rest frozen; more depths in the unroll (measured at the depths of the others)."""


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        design: hidden, kv, hybrid, cross or none.
        layers: of the drafter.
        injection: how keys and values of several target layers enter; empty where none are read.
        init: ``random``, or ``warm`` from the trained ``hidden`` drafter of the same seed and capacity.
        remedy: what is done in training against a bottleneck, one of ``REMEDIES``; empty for nothing.
        capacity: ``equal parameters`` (the MLP's width is chosen for it) or ``equal width`` (that of the target's MLP,
            as in the paper).
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
        ]
        parts += ["warm" if self.init == "warm" else "", "equal-width" if self.capacity == EQUAL_WIDTH else ""]
        return "-".join(part for part in (*parts, self.remedy) if part)

    def request(self, base: TrainingSpec, intermediate_size: int, seed: int, warm_start: Path | None) -> TrainingSpec:
        """How to train it; all but what is named here is the same for all variants."""
        return replace(
            base,
            reuse=self.design,
            layers=self.layers,
            injection=self.injection or base.injection,
            intermediate_size=intermediate_size,
            seed=seed,
            warm_start=warm_start,
            **REMEDIES.get(self.remedy, {}),
        )


@dataclass(frozen=True)
class Evaluation:
    """How trained drafters are compared, on prompts that none was trained on.

    Attributes:
        prompts: a prompt file, or ``reference:SPLIT``.
        per_task: the first so many prompts of each task; all if None.
        max_new_tokens: of the target's greedy outputs.
        live_prompts: how many prompts are decoded live, from every task alike; all if None.
        tree_prompts: how many are decoded with draft trees.
        latency_prompts: how many are timed.
        bottleneck_prompts: on how many it is measured what limits a drafter.
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
    """How every row is tuned before the seeds run, all with the same budget; see
    :mod:`draftgauge.studies.kvshot.tuning`.

    Attributes:
        steps: of a trial.
        prompts: a prompt file, or ``reference:SPLIT``; none that drafters are compared on.
        per_task: the first so many prompts of each task; all if None.
    """

    steps: int
    prompts: str = "reference:validation"
    per_task: int | None = None


@dataclass(frozen=True)
class Ablation:
    """How large the ablation of :mod:`draftgauge.studies.kvshot.ablation` is.

    Attributes:
        designs: whose arms are trained.
        steps: of every training.
        seeds: of every arm.
    """

    designs: tuple[str, ...] = ("hidden", "kv", "hybrid")
    steps: int = 200
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Study:
    """A whole study: every variant with every seed, trained alike.

    Attributes:
        preset: its name.
        variants: rows of the table. A warm one needs the ``hidden`` one of its capacity among them.
        seeds: of training, for the rows that verdicts are about; the first ``other_seeds`` of them for the others.
        request: of every training; target, data, loss, optimiser and steps.
        evaluation: of every drafter.
        tuning: of every variant; None trains all with the settings of ``request``.
        ablation: of norms, start and layers, judged on the prompts of the tuning; None for none.
        other_seeds: see ``seeds``; all of them if None.
        decisive: rows that get all seeds.
    """

    preset: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    request: TrainingSpec
    evaluation: Evaluation
    tuning: Tuning | None = None
    ablation: Ablation | None = None
    other_seeds: int | None = None
    decisive: tuple[Variant, ...] = ()

    def seeds_of(self, variant: Variant) -> tuple[int, ...]:
        """The seeds of one row."""
        return self.seeds if variant in self.decisive else self.seeds[: self.other_seeds]

    def with_seeds(self, most: int) -> Study:
        """The same with no more than some seeds for any row: a beginning of it, which is whole in itself."""
        ablation = self.ablation and replace(self.ablation, seeds=self.ablation.seeds[:most])
        others = most if self.other_seeds is None else min(most, self.other_seeds)
        return replace(self, seeds=self.seeds[:most], other_seeds=others, ablation=ablation)


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
        """Everything its result follows from, ready for JSON.

        Places of files are left out: the study's folder may move.
        """
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


def make_cells(
    study: Study,
    widths: Mapping[Variant, int],
    parameters: Mapping[Variant, int],
    fingerprint: str,
    folder: Path,
    tuned: Callable[[Variant, TrainingSpec], TrainingSpec] = lambda variant, request: request,
) -> list[Cell]:
    """All cells, seed by seed, so that a study that is stopped early has whole seeds; warm ones after what they start
    from.

    Args:
        study: which variants and seeds.
        widths: of each variant's MLP.
        parameters: trainable ones of each variant.
        fingerprint: of the target.
        folder: of the study.
        tuned: makes a variant's request that of its tuned settings.
    """
    base = shared_request(study, folder)
    ordered = sorted(study.variants, key=lambda variant: variant.init == "warm")
    cells = []
    for seed in study.seeds:
        for variant in ordered:
            if seed not in study.seeds_of(variant):
                continue
            after = cell_name(variant.starts_from, seed) if variant.starts_from else None
            start = cell_folder(folder, after) / DRAFTER_FOLDER if after else None
            request = tuned(variant, variant.request(base, widths[variant], seed, start))
            cells.append(
                Cell(
                    variant=variant,
                    request=request,
                    evaluation=study.evaluation,
                    study=folder,
                    fingerprint=fingerprint,
                    parameters=parameters[variant],
                    depths=study.request.depths,
                    after=after,
                )
            )
    return cells


def shared_request(study: Study, folder: Path) -> TrainingSpec:
    """The study's training with the answers and features that all cells share."""
    cache = None if study.request.cache is None else folder / study.request.cache
    return replace(study.request, answers=folder / ANSWERS_NAME, cache=cache)


def check_study(variants: Sequence[Variant]) -> None:
    """That every warm variant has what it starts from, and no name stands twice."""
    assert len({variant.name for variant in variants}) == len(variants)
    assert all(variant.starts_from is None or variant.starts_from in variants for variant in variants)
