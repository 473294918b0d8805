"""Equal tuning: before the seeds run, every row of the table gets the same number of trials on validation prompts.

First come four learning rates, then, at the best of them, two other warm-ups. Then come two other starts of the gate,
or for designs without a gate two rates beside the best. A study may stop after the rates. Trials are shorter than the
study's own trainings, have a seed of their own, and are judged by the mean KL over all depths. A warm-started drafter,
or one with a remedy or a head, takes over what was tuned for the same drafter without.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftgauge.core.errors import DivergenceError
from draftgauge.core.files import require_writable_file
from draftgauge.core.progress import Progress
from draftgauge.core.prompts import first_per_task, for_judging, in_turn, prompts_sha256, read_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts, text_batches
from draftgauge.drafters.reuse.config import DESIGNS
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import load_drafter, target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.device import torch_threads
from draftgauge.models.taps import batch_features
from draftgauge.models.tokenizer import encode_with, keep_ends
from draftgauge.studies.kvshot.cells import KEPT, VALIDATION_NAME, Tuning, Variant, read_kept, training_identity
from draftgauge.training.reuse.data import load_target
from draftgauge.training.reuse.prepare import target_config
from draftgauge.training.reuse.request import TrainingSpec, default_rate
from draftgauge.training.reuse.train import train_drafter


def make_texts(
    path: Path,
    prompts: Path,
    per_task: int | None,
    target: CachedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: DecodingSettings,
    progress: Progress,
) -> None:
    """Decode the first ``per_task`` prompts of each task (all if None) unless the file ``path`` is there."""
    identity = {
        "target_fingerprint": target_fingerprint(target.module),
        "prompts_sha256": prompts_sha256(prompts),
        "per_task": per_task,
        "max_new_tokens": settings.max_new_tokens,
    }
    if read_kept(path, identity) is not None:
        return
    longest = target.spec.context - settings.max_new_tokens
    chosen = in_turn(first_per_task(for_judging(read_prompts(prompts)), per_task))
    asked = keep_ends([(prompt.task, encode_with(tokenizer, prompt)) for prompt in chosen], longest)
    texts = greedy_texts(target, asked, settings, progress)
    KEPT.write(path, {"identity": identity, "texts": [asdict(text) for text in texts]})


def read_texts(path: Path) -> list[HeldOutText]:
    return [HeldOutText(tuple(row["prompt"]), tuple(row["output"]), row["task"]) for row in KEPT.read(path)["texts"]]


FACTORS = (0.5, 1.0, 2.0, 4.0)  # of the default learning rate
WARMUPS = (0.02, 0.15)
GATE_STARTS = (-2.0, 2.0)
BESIDE = (2**-0.5, 2**0.5)
TRIALS = len(FACTORS) + len(WARMUPS) + len(GATE_STARTS)
SEED = 10_000


@dataclass(frozen=True)
class Trial:
    """One training of a row: its peak learning rate, warm-up (a share of the steps) and the bias of the gate."""

    learning_rate: float
    warmup: float
    gate_start: float = 0.0

    @property
    def name(self) -> str:
        return f"rate{self.learning_rate:.3g}-warmup{self.warmup:g}-gate{self.gate_start:g}"


@dataclass(frozen=True)
class Tuned:
    """What was tried for a row, in order, and the validation KL of each trial, infinite where it diverged."""

    trials: tuple[Trial, ...]
    losses: tuple[float, ...]

    @property
    def chosen(self) -> Trial:
        return self.trials[int(np.argmin(self.losses))]

    def rows(self, labels: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {**labels, "trial": number, **asdict(trial), "validation_kl": _finite(loss), "chosen": trial == self.chosen}
            for number, (trial, loss) in enumerate(zip(self.trials, self.losses, strict=True))
        ]


def search(rate: float, warmup: float, gated: bool, measure: Callable[[Trial], float], most: int = TRIALS) -> Tuned:
    """Run ``most`` trainings, whatever the design.

    Args:
        rate: centre of the searched learning rates.
        measure: validation loss of a trial, infinite or NaN where it diverged; called once for each.
    """
    trials: list[Trial] = []
    losses: list[float] = []

    def attempt(candidates: Iterator[Trial]) -> Trial:
        for trial in list(candidates)[: most - len(trials)]:
            trials.append(trial)
            loss = measure(trial)
            losses.append(loss if math.isfinite(loss) else math.inf)
        return trials[int(np.argmin(losses))]

    best = attempt(Trial(factor * rate, warmup) for factor in FACTORS)
    if min(losses) == math.inf:
        rates = ", ".join(f"{trial.learning_rate:.2g}" for trial in trials)
        raise DivergenceError(f"every trial of the tuning diverged, at learning rates of {rates}")
    best = attempt(replace(best, warmup=other) for other in WARMUPS)
    if gated:
        attempt(replace(best, gate_start=start) for start in GATE_STARTS)
    else:
        attempt(replace(best, learning_rate=factor * best.learning_rate) for factor in BESIDE)
    return Tuned(tuple(trials), tuple(losses))


def distinct(variants: Sequence[Variant]) -> list[Variant]:
    return list(dict.fromkeys(variant.tuned_as for variant in variants))


def tuning_path(study: Path, variant: Variant) -> Path:
    return study / "tuning" / f"{variant.tuned_as.name}.json"


def save_tuned(path: Path, tuned: Tuned, identity: Mapping[str, Any]) -> None:
    require_writable_file(path)
    losses = [_finite(loss) for loss in tuned.losses]
    KEPT.write(path, {"identity": identity, "trials": [asdict(trial) for trial in tuned.trials], "losses": losses})


def read_tuned(path: Path, identity: Mapping[str, Any]) -> Tuned | None:
    content = read_kept(path, identity)
    if content is None:
        return None
    losses = (math.inf if loss is None else loss for loss in content["losses"])
    return Tuned(tuple(Trial(**trial) for trial in content["trials"]), tuple(losses))


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


@dataclass(frozen=True)
class TuneJob:
    """The trials of a row, as the executor takes them.

    Attributes:
        base: training of the row; seed, steps and what is tuned are replaced.
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
        return f"tuning-{self.variant.name}"

    def request(self) -> TrainingSpec:
        steps = self.tuning.steps
        return replace(self.base, steps=steps, seed=SEED, warm_start=None, checkpoint_every=steps)

    def identity(self) -> dict[str, Any]:
        training = training_identity(self.request())
        tuning = {"per_task": self.tuning.per_task, "trials": self.tuning.trials}
        return {"training": training, "target": self.fingerprint} | tuning

    def read(self) -> Tuned | None:
        return read_tuned(tuning_path(self.study, self.variant), self.identity())

    def run(self, progress: Progress) -> None:
        """Run the trials, keep the result, and remove the trained drafters."""
        if self.read() is not None:
            return
        path = tuning_path(self.study, self.variant)
        texts = read_texts(self.study / VALIDATION_NAME)

        def measure(trial: Trial) -> float:
            run = path.with_suffix("") / trial.name
            try:
                train_drafter(replace(self.request(), **asdict(trial)), run)
            except DivergenceError:
                return math.inf
            target = load_target(self.base)  # not before: training has one of its own
            loss = float(np.mean(held_out_kl(load_drafter(run, target), target.module, texts, self.base.depths)))
            progress(f"{self.name}: {trial.name}", 1, 1)
            return loss

        rate = self.base.learning_rate or default_rate(target_config(self.base).get_text_config().hidden_size)
        with torch_threads(self.base.threads):
            tuned = search(rate, self.base.warmup, DESIGNS[self.variant.design].gated, measure, self.tuning.trials)
        save_tuned(path, tuned, self.identity())
        shutil.rmtree(path.with_suffix(""))


@torch.inference_mode()
def held_out_kl(net: ReuseNet, module: PreTrainedModel, texts: Sequence[HeldOutText], depths: int) -> list[float]:
    """Mean KL from the target's distribution to the drafter's at each depth, in nats, over all output positions.

    With a draft vocabulary both are distributions over it.
    """
    totals, counts = [0.0] * depths, [0] * depths
    for batch in text_batches(texts, depths, next(net.parameters()).device):
        features = batch_features(module, batch.tokens, net.config.tap_plan)
        begin = batch.begin
        for depth, states in enumerate(net.unroll(batch.tokens, features, depths, begin)):
            row, anchor = batch.counted(depth, begin + states.shape[1])[:, begin:].nonzero(as_tuple=True)
            taught = features.logits[row, begin + anchor + 1 + depth]
            taught = (taught if net.d2t is None else taught[:, net.d2t]).float().log_softmax(-1)
            guessed = (
                net.logits(states[row, anchor], batch.tokens[row, begin + anchor + 1 + depth]).float().log_softmax(-1)
            )
            totals[depth] += float((taught.exp() * (taught - guessed)).sum())
            counts[depth] += len(row)
    return [total / max(1, count) for total, count in zip(totals, counts, strict=True)]
