"""What runs somewhere: a cell (train a drafter, measure it) and the tuning of a row; results are left in files."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from draftgauge.core.errors import DivergenceError
from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress
from draftgauge.core.provenance import timestamp
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.distance import distance_names
from draftgauge.diagnostics.evaluation import EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.held_out_loss import held_out_kl
from draftgauge.diagnostics.limits import measure_bottlenecks
from draftgauge.drafters.reuse import load_drafter
from draftgauge.drafters.reuse.config import DESIGNS
from draftgauge.models.loading import end_tokens, load_tokenizer
from draftgauge.studies.kvshot.cells import (
    DRAFTER_FOLDER,
    KEPT,
    RESULT_NAME,
    TEXTS_NAME,
    VALIDATION_NAME,
    Cell,
    Tuning,
    Variant,
    training_identity,
)
from draftgauge.studies.kvshot.held_out import read_texts
from draftgauge.studies.kvshot.tuning import (
    SEED,
    TUNING_FOLDER,
    Trial,
    Tuned,
    read_tuned,
    save_tuned,
    search,
    tuning_path,
)
from draftgauge.training.reuse.data import load_target
from draftgauge.training.reuse.request import TrainingSpec, default_rate
from draftgauge.training.reuse.tracking import read_history
from draftgauge.training.reuse.train import train_drafter

TRAINED = ("steps", "tokens", "seconds", "tokens_per_second", "loss")


@dataclass(frozen=True)
class CellJob:
    """A cell as the executor takes it."""

    cell: Cell

    @property
    def name(self) -> str:
        """Of the cell."""
        return self.cell.name

    @property
    def after(self) -> str | None:
        """The cell that this one starts from."""
        return self.cell.after

    def run(self, progress: Progress) -> None:
        """Train, evaluate, and leave the result in the cell's folder.

        A training that was interrupted resumes from its checkpoint, a finished one is not repeated.
        """
        cell, request, began = self.cell, self.cell.request, time.monotonic()
        require_writable(cell.folder)
        if request.threads is not None:
            torch.set_num_threads(request.threads)

        def report(what: str, done: int, total: int) -> None:
            progress(f"{cell.name}: {what}", done, total)

        out = cell.folder / DRAFTER_FOLDER
        trained = train_drafter(request, out, report)
        target = load_target(request)
        tokenizer = load_tokenizer(request.target, request.trust_remote_code)
        net = load_drafter(out, target)
        texts, classes = read_texts(cell.study / TEXTS_NAME)
        plan = EvaluationPlan(
            depths=cell.depths,
            settings=DecodingSettings(cell.evaluation.max_new_tokens, end_tokens=end_tokens(target, tokenizer)),
            live=cell.evaluation.live_prompts,
            tree=cell.evaluation.tree_prompts,
            latency=cell.evaluation.latency_prompts,
        )
        evaluation = evaluate_drafter(net, target, texts, classes, plan, report)
        probed = texts[: cell.evaluation.bottleneck_prompts]
        limits = measure_bottlenecks(net, target.module, probed, cell.depths, read_history(out), report)
        content = {
            "identity": cell.digest(),
            "created": timestamp(),
            "device": str(target.spec.device),
            "settings": cell.settings(),
            "training": {key: getattr(trained, key) for key in TRAINED},
            "seconds": time.monotonic() - began,
            "distances": distance_names(),
            "evaluation": evaluation.to_json(),
            "bottlenecks": limits.to_json(),
        }
        KEPT.write(cell.folder / RESULT_NAME, content)


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

    def identity(self) -> dict[str, Any]:
        """Everything that the trials follow from."""
        training = training_identity(self.request())
        return {"training": training, "per_task": self.tuning.per_task, "target": self.fingerprint}

    def request(self) -> TrainingSpec:
        """Of a trial, but for what is tuned."""
        steps = self.tuning.steps
        return replace(self.base, steps=steps, seed=SEED, warm_start=None, checkpoint_every=steps)

    def read(self) -> Tuned | None:
        """What was found before, see :func:`~draftgauge.studies.kvshot.tuning.read_tuned`."""
        return read_tuned(tuning_path(self.study, self.variant), self.identity())

    def run(self, progress: Progress) -> None:
        """Try, keep what was found, and drop the drafters that were tried."""
        if self.read() is not None:
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
            loss = float(np.mean(held_out_kl(load_drafter(run, target), target.module, texts, self.base.depths)))
            progress(f"{self.name}: {trial.name}", 1, 1)
            return loss

        rate = self.base.learning_rate or default_rate(target.module.config.get_text_config().hidden_size)
        tuned = search(rate, self.base.warmup, DESIGNS[self.variant.design].gated, measure)
        save_tuned(tuning_path(self.study, self.variant), tuned, self.identity())
        shutil.rmtree(folder)
