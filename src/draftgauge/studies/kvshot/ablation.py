"""What a drafter's inputs and its start are worth: one setting changed at a time, a few seeds, judged on validation.

An *arm* is a training that differs from the design's own by one choice: a norm left out, all of them left out (the
original EAGLE-3), the norm before the head started at one, attention started elsewhere, another optimiser, the head
frozen, other layers tapped. All arms of a design have the same data, steps, learning rate and seeds; differences to the
design as it stands are paired by seed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text, require_writable
from draftgauge.core.progress import Progress
from draftgauge.diagnostics.held_out_loss import held_out_kl
from draftgauge.drafters.reuse import load_drafter
from draftgauge.drafters.reuse.config import DESIGNS, NORMS
from draftgauge.models.tap_rules import EAGLE_LAYERS
from draftgauge.studies.kvshot.cells import VALIDATION_NAME, Ablation, training_identity
from draftgauge.studies.kvshot.held_out import read_texts
from draftgauge.training.reuse.data import load_target
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter

FOLDER = "ablation"
AS_IT_STANDS = "as it stands"
Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One choice of a design."""

    design: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def arms(design: str, layers: int) -> list[Arm]:
    """The arms of a design, itself first; the norms of its inputs where it reads hidden states, other layers where it
    reads any and the target has ``layers`` enough.
    """
    traits = DESIGNS[design]
    chosen: list[tuple[str, Mapping[str, Any]]] = [(AS_IT_STANDS, {})]
    if traits.reads_hidden:
        chosen += [(f"without {norm}", {norm: False}) for norm in NORMS]
        chosen.append(("without the three", dict.fromkeys(NORMS, False)))
    chosen += [
        ("norm before the head started at one", {"target_norm": False}),
        ("attention started at random", {"attention_start": "random"}),
        ("attention started at itself", {"attention_start": "self"}),
        ("adamw", {"optimizer": "adamw"}),
        ("head frozen", {"freeze_head": True}),
    ]
    if (traits.reads_hidden or traits.reads_kv) and layers >= EAGLE_LAYERS:
        chosen.append(("layers of SpecForge", {"taps": "specforge"}))
        chosen.append(("layers up to the last", {"taps": (1, layers // 2, layers - 1)}))
    return [Arm(design, name, settings) for name, settings in chosen]


@dataclass(frozen=True)
class AblationJob:
    """One arm with one seed, as the executor takes it.

    Attributes:
        arm: what is changed.
        base: the training of all arms; its seed is that of the job.
        study: folder that holds the validation texts, and the results below it.
        fingerprint: of the target.
    """

    arm: Arm
    base: TrainingSpec
    study: Path
    fingerprint: str
    after: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """Of the job."""
        return f"ablation-{self.arm.design}-{self.arm.name.replace(' ', '-')}-seed{self.base.seed}"

    @property
    def path(self) -> Path:
        """Of the result."""
        return self.study / FOLDER / f"{self.name}.json"

    def request(self) -> TrainingSpec:
        """Its training; other layers have a cache of features of their own."""
        request = replace(self.base, reuse=self.arm.design, **self.arm.settings)
        if request.cache is None or request.taps == self.base.taps:
            return request
        return replace(request, cache=request.cache.with_name(f"{request.cache.name}-{request.taps}"))

    def identity(self) -> dict[str, Any]:
        """Everything that its result follows from."""
        return {"training": training_identity(self.request()), "target": self.fingerprint}

    def run(self, progress: Progress) -> None:
        """Train, measure on the validation texts, keep the result and drop the drafter."""
        request = self.request()
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        folder = self.study / FOLDER / self.name
        trained = train_drafter(
            request, folder, lambda what, done, total: progress(f"{self.name}: {what}", done, total)
        )
        target = load_target(request)
        texts, _ = read_texts(self.study / VALIDATION_NAME)
        losses = held_out_kl(load_drafter(folder, target), target.module, texts, request.depths)
        content = {"identity": self.identity(), "validation_kl": losses, "train_loss": trained.loss}
        atomic_write_text(self.path, json.dumps(content, indent=1) + "\n")
        shutil.rmtree(folder)


def ablation_jobs(
    ablation: Ablation, base: TrainingSpec, study: Path, fingerprint: str, layers: int
) -> list[AblationJob]:
    """All jobs, seed by seed, so that one that is stopped early has whole seeds.

    Args:
        ablation: its size.
        base: the training of all arms.
        study: folder of the study, with its validation texts.
        fingerprint: of the target.
        layers: of the target.
    """
    base = replace(base, steps=ablation.steps, checkpoint_every=ablation.steps)
    require_writable(study / FOLDER)
    return [
        AblationJob(arm, replace(base, seed=seed), study, fingerprint)
        for seed in ablation.seeds
        for design in ablation.designs
        for arm in arms(design, layers)
    ]


def read_ablation(job: AblationJob) -> list[float] | None:
    """Validation KL by depth of a job; None where it has not been run.

    Raises:
        DraftgaugeError: if it was found for other settings, or cannot be read.
    """
    if not job.path.exists():
        return None
    try:
        content = json.loads(job.path.read_text(encoding="utf-8"))
        if content["identity"] != json.loads(json.dumps(job.identity())):
            raise DraftgaugeError(f"{job.path} is of other settings: give this study a folder of its own")
        return [float(value) for value in content["validation_kl"]]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise DraftgaugeError(f"{job.path} cannot be read ({error}): remove it, and it is done again") from error


def ablation_rows(jobs: Sequence[AblationJob]) -> list[Row]:
    """One row for every arm that was run: ``design, ablation, seeds, steps, validation_kl, validation_kl_DEPTH,
    difference, least, most, best``.

    ``difference`` is to the design as it stands, positive where that is better: its mean over the seeds that both have,
    and the least and the most of any seed. ``best`` is true of the arm of least KL of its design, on the same seeds.
    """
    by_arm: dict[tuple[str, str], dict[int, list[float]]] = {}
    for job in jobs:
        losses = read_ablation(job)
        if losses is not None:
            by_arm.setdefault((job.arm.design, job.arm.name), {})[job.base.seed] = losses
    rows: list[Row] = []
    for (design, name), by_seed in by_arm.items():
        mean = np.mean(list(by_seed.values()), axis=0)
        row: Row = {"design": design, "ablation": name, "seeds": len(by_seed), "steps": jobs[0].base.steps}
        row |= {"validation_kl": float(mean.mean())}
        row |= {f"validation_kl_{depth}": float(value) for depth, value in enumerate(mean)}
        base = by_arm.get((design, AS_IT_STANDS), {})
        pairs = [float(np.mean(by_seed[seed]) - np.mean(base[seed])) for seed in by_seed if seed in base]
        if pairs and name != AS_IT_STANDS:
            row |= {"difference": float(np.mean(pairs)), "least": min(pairs), "most": max(pairs)}
        rows.append(row)
    best = _best(by_arm)
    return [row | {"best": (row["design"], row["ablation"]) in best} for row in rows]


def _best(by_arm: Mapping[tuple[str, str], Mapping[int, list[float]]]) -> set[tuple[str, str]]:
    """The arms of least KL of their designs, on the seeds that all arms of a design have; none where there is none."""
    best: set[tuple[str, str]] = set()
    for design in dict.fromkeys(design for design, _ in by_arm):
        arms_of_it = {key: by_seed for key, by_seed in by_arm.items() if key[0] == design}
        shared = set.intersection(*(set(by_seed) for by_seed in arms_of_it.values()))
        kls = {key: float(np.mean([by_seed[seed] for seed in shared])) for key, by_seed in arms_of_it.items() if shared}
        best |= {key for key, kl in kls.items() if kl == min(kls.values())}
    return best
