"""Tuning one row of the table, wherever it runs: the trials of :mod:`draftgauge.studies.kvshot.tuning`, one by one."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from draftgauge.core.errors import DivergenceError
from draftgauge.core.progress import Progress
from draftgauge.diagnostics.held_out_loss import held_out_kl
from draftgauge.drafters.reuse import load_drafter
from draftgauge.drafters.reuse.config import DESIGNS
from draftgauge.studies.kvshot.cells import VALIDATION_NAME, Tuning, Variant, training_identity
from draftgauge.studies.kvshot.held_out import read_texts
from draftgauge.studies.kvshot.tuning import SEED, TUNING_FOLDER, Trial, read_tuned, save_tuned, search, tuning_path
from draftgauge.training.reuse.data import load_target
from draftgauge.training.reuse.request import TrainingSpec, default_rate
from draftgauge.training.reuse.train import train_drafter


@dataclass(frozen=True)
class TuneJob:
    """The trials of a row, as the executor takes them.

    Attributes:
        variant: the row.
        base: its training but for what is tuned; the study's seed and steps are replaced.
        tuning: how long trials are.
        study: the study's folder.
        fingerprint: of the target.
    """

    variant: Variant
    base: TrainingSpec
    tuning: Tuning
    study: Path
    fingerprint: str
    after: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """Of the row."""
        return f"tuning-{self.variant.name}"

    @property
    def path(self) -> Path:
        """Of the file that keeps what was found."""
        return tuning_path(self.study, self.variant)

    def identity(self) -> dict[str, Any]:
        """Everything that the trials follow from."""
        return {
            "training": training_identity(self.request()),
            "per_task": self.tuning.per_task,
            "target": self.fingerprint,
        }

    def request(self) -> TrainingSpec:
        """Of a trial, but for what is tuned."""
        steps = self.tuning.steps
        return replace(self.base, steps=steps, seed=SEED, warm_start=None, checkpoint_every=steps)

    def run(self, progress: Progress) -> None:
        """Try, keep what was found, and drop the drafters that were tried."""
        if read_tuned(self.path, self.identity()) is not None:
            return
        if self.base.threads is not None:
            torch.set_num_threads(self.base.threads)
        folder = self.study / TUNING_FOLDER / self.variant.name
        target = load_target(self.base)
        texts, _ = read_texts(self.study / VALIDATION_NAME)

        def measure(trial: Trial) -> float:
            run = folder / trial.name
            try:
                train_drafter(trial.request(self.request()), run)
            except DivergenceError:
                return math.inf
            net = load_drafter(run, target)
            loss = float(np.mean(held_out_kl(net, target.module, texts, self.base.depths)))
            progress(f"{self.name}: {trial.name}", 1, 1)
            return loss

        rate = self.base.learning_rate or default_rate(target.module.config.get_text_config().hidden_size)
        tuned = search(rate, self.base.warmup, DESIGNS[self.variant.design].gated, measure)
        save_tuned(self.path, tuned, self.identity())
        shutil.rmtree(folder)
