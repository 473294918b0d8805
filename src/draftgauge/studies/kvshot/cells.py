"""The configuration of a study and its cells: a row of its table (a variant of drafter) trained with one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftgauge.core.artefacts import Artefact
from draftgauge.core.errors import DraftgaugeError
from draftgauge.training.reuse.request import TrainingSpec

RESULT_NAME = "result.json"
ERROR_NAME = "error.txt"
DRAFTER_FOLDER = "drafter"
CURVE_FOLDER = "curve"
ANSWERS_NAME = "answers.jsonl"
FEATURES_NAME = "features"
TEXTS_NAME = "held-out.json"
VALIDATION_NAME = "validation.json"
EQUAL_PARAMETERS, EQUAL_WIDTH = "equal parameters", "equal width"
KEPT = Artefact("draftgauge-study", 1, "result of a study", "remove it, and it is done again")

# Remedies against a bottleneck: name -> settings of the training.
REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "kv-gradient-50": {"kv_gradient": 50.0},  # the paper's negative result
    "depths-12": {"depths": 12},  # more depths in the unroll; measured at the depths of the others
}
BLOCK = "block-wise"  # the way out that the paper names
# The same with a head. The confidence head is left out: it says only when a policy is to stop, and the study drafts and
# verifies whole blocks.
HEADS: Mapping[str, Mapping[str, Any]] = {"block-wise-markov": {"recipe": "block", "markov_rank": 64}}
RECIPES: Mapping[str, Mapping[str, Any]] = {BLOCK: {"recipe": "block"}, **HEADS}


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        injection: how keys and values of several target layers enter; empty where none are read.
        init: ``random``, or ``warm`` from the trained ``hidden`` drafter of the same seed and capacity.
        capacity: ``equal parameters`` (the MLP's width is chosen for it) or ``equal width`` (that of the target's MLP,
            as in the paper).
        remedy: one of ``REMEDIES`` or ``RECIPES``; empty for none.
    """

    design: str
    layers: int = 1
    injection: str = ""
    init: str = "random"
    capacity: str = EQUAL_PARAMETERS
    remedy: str = ""

    @property
    def starts_from(self) -> Variant | None:
        return Variant("hidden", capacity=self.capacity) if self.init == "warm" else None

    @property
    def base(self) -> Variant:
        """The same without its remedy, or without its head."""
        return replace(self, remedy=BLOCK if self.remedy in HEADS else "")

    @property
    def tuned_as(self) -> Variant:
        return replace(self, init="random", remedy=BLOCK if self.remedy in RECIPES else "")

    @property
    def name(self) -> str:
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
        return replace(
            base,
            reuse=self.design,
            layers=self.layers,
            injection=self.injection or base.injection,
            intermediate_size=intermediate_size,
            seed=seed,
            warm_start=warm_start,
            **{**REMEDIES, **RECIPES}.get(self.remedy, {}),
        )


@dataclass(frozen=True)
class Evaluation:
    """How trained drafters are compared, on prompts that none was trained on.

    Attributes:
        prompts: a prompt file, or ``reference:SPLIT``.
        per_task: the first prompts of each task; all if None.
        live_prompts, tree_prompts, latency_prompts: how many prompts, tasks in turn, are decoded live (all if None),
            decoded with draft trees, and timed.
        bottleneck_prompts, curve_prompts: how many are probed for what limits a drafter, and measured on at every
            checkpoint.
    """

    prompts: str = "reference:test"
    per_task: int | None = None
    max_new_tokens: int = 96
    live_prompts: int | None = None
    tree_prompts: int = 16
    latency_prompts: int = 4
    bottleneck_prompts: int = 24
    curve_prompts: int = 0


@dataclass(frozen=True)
class Tuning:
    """Trials of ``steps`` steps for every row, on other prompts than drafters are compared on; see ``tuning.py``."""

    steps: int
    trials: int = 8
    prompts: str = "reference:validation"
    per_task: int | None = None


@dataclass(frozen=True)
class Study:
    """A whole study: every variant with every seed, trained alike.

    Attributes:
        variants: rows of the table. A warm one needs the ``hidden`` one of its capacity among them.
        seeds: of training, for the ``decisive`` rows that verdicts are about; the first ``other_seeds`` of them (all if
            None) for the others.
        tuning: None trains all with the settings of ``request``.
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
        return self.seeds if variant in self.decisive else self.seeds[: self.other_seeds]

    def with_seeds(self, most: int) -> Study:
        others = most if self.other_seeds is None else min(most, self.other_seeds)
        return replace(self, seeds=self.seeds[:most], other_seeds=others)

    def shared_request(self, folder: Path) -> TrainingSpec:
        cache = None if self.request.cache is None else folder / self.request.cache
        return replace(self.request, answers=folder / ANSWERS_NAME, cache=cache)


@dataclass(frozen=True)
class Cell:
    """One variant with one seed; travels to other processes.

    Attributes:
        study: the study's folder; the cell works in a folder below it.
        fingerprint: of the target.
        parameters: of the network, the head, which the block-wise recipe does not train, among them.
        depths: tokens per draft in the evaluation, the same for all cells.
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
        return cell_name(self.variant, self.request.seed)

    @property
    def folder(self) -> Path:
        return cell_folder(self.study, self.name)

    def settings(self) -> dict[str, Any]:
        """Everything that decides its result; no paths, as the study's folder may move."""
        return {
            "variant": asdict(self.variant),
            "training": training_identity(self.request),
            "evaluation": asdict(self.evaluation) | {"depths": self.depths},
            "target": self.fingerprint,
            "after": self.after,
        }

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()


def training_identity(request: TrainingSpec) -> dict[str, Any]:
    return {key: value for key, value in request.identity().items() if key not in ("target", "prompts", "warm_start")}


def cell_name(variant: Variant, seed: int) -> str:
    return f"{variant.name}-seed{seed}"


def cell_folder(study: Path, name: str) -> Path:
    return study / "cells" / name


def read_kept(path: Path, identity: Any) -> dict[str, Any] | None:
    """The file that a finished job left, None where there is none; raises ``DraftgaugeError`` for other settings."""
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
    tuned: Mapping[Variant, Mapping[str, Any]] = MappingProxyType({}),
) -> list[Cell]:
    """All cells, seed by seed, so that a stopped study has whole seeds; warm ones after those they start from."""
    base = study.shared_request(folder)
    cells = []
    for seed in study.seeds:
        for variant in sorted(study.variants, key=lambda variant: variant.init == "warm"):
            if seed not in study.seeds_of(variant):
                continue
            width, parameters = shapes[variant]
            after = cell_name(variant.starts_from, seed) if variant.starts_from else None
            start = cell_folder(folder, after) / DRAFTER_FOLDER if after else None
            request = replace(variant.request(base, width, seed, start), **tuned.get(variant.tuned_as, {}))
            depths = study.request.depths
            cells.append(Cell(variant, request, study.evaluation, folder, fingerprint, parameters, depths, after))
    return cells
