"""Training one drafter: the same order of data, loss and optimiser for every design; a killed run ends where an uninterrupted one does.

Nothing is drawn at random while training: the order of the data follows from the seed and the step's number, and the drafter has no
dropout. So weights, optimiser and the step's number are the whole state.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse.building import frequent_tokens, new_net, warm_start
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import (
    is_drafter,
    load_drafter,
    read_description,
    save_drafter,
    target_fingerprint,
)
from draftgauge.models.base import CachedModel
from draftgauge.training.allocator import keep_freed_memory
from draftgauge.training.checkpoints import load_checkpoint, save_checkpoint
from draftgauge.training.loop import autocast_dtype
from draftgauge.training.memory import peak_memory_gib
from draftgauge.training.reuse.answers import Answers, Conversation, Progress
from draftgauge.training.reuse.batches import Batch, DataOrder, collate, usable
from draftgauge.training.reuse.data import answers_of, load_target, token_counts
from draftgauge.training.reuse.features import CachedFeatures, FeatureSource, OnlineFeatures, cache_identity, make_cache
from draftgauge.training.reuse.loss import (
    Figures,
    backward_through_depths,
    compiled_loss,
    depth_weights,
    soft_cross_entropy,
    teach,
)
from draftgauge.training.reuse.prepare import Job, check, known_fingerprint, open_run
from draftgauge.training.reuse.request import TrainingSpec, TrainResult
from draftgauge.training.reuse.statistics import GateWatch, GradientStatistics
from draftgauge.training.reuse.tracking import open_trackers

BETAS = (0.9, 0.95)
TAIL = 0.1  # share of the steps, at the end, over which the final loss is averaged

Report = Callable[[Mapping[str, float]], None]


def train_drafter(
    request: TrainingSpec,
    out: Path,
    progress: Progress = lambda what, done, total: None,
    report: Report = lambda row: None,
) -> TrainResult:
    """Train a drafter and leave it in ``out``, where ``load_drafter`` finds it, beside ``run.json``, ``log.jsonl`` and checkpoints.

    The same call goes on where an interrupted one stopped; a finished run is not repeated.

    Args:
        request: see :class:`TrainingSpec`.
        out: folder of the run.
        progress: told (what, done, total).
        report: told the figures of every ``log_every`` steps: step, steps, loss, tokens_per_second, seconds_left ...

    Raises:
        DraftgaugeError: for whatever cannot be, before any work; see :func:`~draftgauge.training.reuse.prepare.check`.
    """
    job = check(request, out, known_fingerprint(request))
    finished = _finished(job)
    if finished is not None:
        return finished
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    if job.device.type == "cpu":
        keep_freed_memory()
    target = load_target(request)
    job = check(request, out, target_fingerprint(target.module))
    open_run(job)
    answers = answers_of(request, job.answers, target, progress)
    conversations = usable(answers.conversations, job.length, request.depths)
    features = _features(job, target, answers, conversations, progress)
    training = Training(job, _start(job, target, answers), features, conversations, answers.sha256)
    result = training.run(progress, report)
    save_drafter(
        out, training.net, {"request": request.identity(), "answers_sha256": answers.sha256, "result": _plain(result)}
    )
    return result


@dataclass
class State:
    """Where a run stands; with weights and optimiser, all that a checkpoint holds."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    tail_loss: float = 0.0
    tail_steps: int = 0
    answers_sha256: str = ""


@dataclass
class _Interval:
    """Sums since the last row of the log."""

    figures: list[Figures] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    since: float = field(default_factory=time.monotonic)


class Training:
    """The loop over steps."""

    def __init__(
        self, job: Job, net: ReuseNet, features: FeatureSource, conversations: list[Conversation], answers_sha256: str
    ) -> None:
        self.job, self.net, self.features, self.conversations = job, net, features, conversations
        request = job.request
        self.order = DataOrder(conversations, request.batch, request.seed)
        self.optimizer = make_optimizer(net, request.weight_decay)
        self.weights = depth_weights(request.depths, request.step_decay)
        self.autocast = _autocast(job)
        self.statistics, self.gates = GradientStatistics(net), GateWatch(net)
        self.softly = compiled_loss() if request.compile else soft_cross_entropy
        self.state = self._resume(answers_sha256)

    def run(self, progress: Progress, report: Report) -> TrainResult:
        """All steps that are left."""
        request, state = self.job.request, self.state
        trackers = open_trackers(request.track, self.job.out, request.identity(), state.step)
        interval = _Interval()
        progress("train", state.step, request.steps)
        try:
            while state.step < request.steps:
                row = self._step(state.step, interval)
                state.step += 1
                if row is not None:
                    self._flush(interval, row)
                    for tracker in trackers:
                        tracker.log(state.step, row)
                    report({"step": state.step, "steps": request.steps, **row})
                    progress("train", state.step, request.steps)
                    interval = _Interval()
                if state.step == request.steps or state.step % request.checkpoint_every == 0:
                    save_checkpoint(self.job.checkpoints, self.net, [self.optimizer], asdict(state))
        finally:
            for tracker in trackers:
                tracker.close()
        return self._result()

    def _step(self, step: int, interval: _Interval) -> dict[str, float] | None:
        """One optimiser step; a row of figures where the log wants one."""
        request = self.job.request
        rate = request.rate(step, self.job.config.hidden_size)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = np.array_split(self.order.step(step), request.accumulation)
        batches = [collate(self.conversations, part.tolist(), request.depths) for part in parts]
        trained = [sum(int(batch.trained(depth).sum()) for batch in batches) for depth in range(request.depths)]
        scales = [float(weight) / max(1, count) for weight, count in zip(self.weights, trained, strict=True)]
        logged = self._logged(step)
        with self.gates.watching(on=logged):
            interval.figures += [self._backward(batch.to(self.job.device), scales) for batch in batches]
        row = {"learning_rate": rate} | (self.statistics.row() if logged else {})
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), request.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        interval.tokens += trained[0]
        interval.steps += 1
        if not logged:
            return None
        gate = self.gates.mean()
        return row | {"gradient_norm": float(norm)} | ({} if gate is None else {"gate": gate})

    def _backward(self, batch: Batch, scales: list[float]) -> Figures:
        request = self.job.request
        with self.autocast:
            features = self.features(batch)
            teacher = teach(features.logits, batch, request.depths, self.net.t2d, self.net.d2t)
            states = self.net.unroll_states(batch.tokens, features, request.depths, batch.first)
            return backward_through_depths(states, self.net.logits, teacher, batch, scales, request.loss, self.softly)

    def _logged(self, step: int) -> bool:
        """Whether a step, counted from 0, ends a row of the log; those before a checkpoint do, so that a checkpoint holds whole rows."""
        request = self.job.request
        every = request.log_every, request.checkpoint_every
        return step == 0 or step + 1 == request.steps or any((step + 1) % n == 0 for n in every)

    def _flush(self, interval: _Interval, row: dict[str, float]) -> None:
        """Finish a row and add the interval to the state."""
        request, state = self.job.request, self.state
        total = sum(interval.figures[1:], start=interval.figures[0])
        counts = total.count.clamp(min=1)
        loss, agreed = (total.loss / counts).tolist(), (total.agreed / counts).tolist()
        row["loss"] = float(sum(w * x for w, x in zip(self.weights.tolist(), loss, strict=True)))
        if not math.isfinite(row["loss"]):
            raise DraftgaugeError(
                f"the loss is {row['loss']} at step {state.step}: lower the learning rate, or ask for precision fp32"
            )
        row |= {f"loss/{depth}": value for depth, value in enumerate(loss)}
        row |= {f"agreement/{depth}": value for depth, value in enumerate(agreed)}
        seconds = time.monotonic() - interval.since
        state.tokens += interval.tokens
        state.seconds += seconds
        row["tokens_per_second"] = interval.tokens / seconds
        row["seconds_left"] = seconds / interval.steps * (request.steps - state.step)
        if state.step > request.steps * (1 - TAIL):
            state.tail_loss += row["loss"] * interval.steps
            state.tail_steps += interval.steps

    def _resume(self, answers_sha256: str) -> State:
        found = load_checkpoint(self.job.checkpoints, self.net, [self.optimizer])
        if found is None:
            return State(answers_sha256=answers_sha256)
        state = State(**found)
        if state.answers_sha256 != answers_sha256:
            raise DraftgaugeError(
                f"the run in {self.job.out} was begun with other answers than {self.job.answers} holds: choose another folder"
            )
        return state

    def _result(self) -> TrainResult:
        state = self.state
        return TrainResult(
            folder=self.job.out,
            design=self.job.request.reuse,
            parameters=sum(p.numel() for p in self.net.parameters()),
            steps=state.step,
            tokens=state.tokens,
            seconds=state.seconds,
            tokens_per_second=state.tokens / max(state.seconds, 1e-9),
            loss=state.tail_loss / max(1, state.tail_steps),
            peak_memory_gib=peak_memory_gib(self.job.device),
        )


def make_optimizer(net: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW in one fused pass; only matrices decay."""
    matrices = [p for p in net.parameters() if p.ndim >= 2]
    others = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=True)


def _autocast(job: Job) -> torch.autocast:
    """The precision of the arithmetic, of the target's as of the drafter's."""
    dtype = {"auto": autocast_dtype(job.device), "fp32": None, "bf16": torch.bfloat16}[job.request.precision]
    return torch.autocast(job.device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def _start(job: Job, target: CachedModel, answers: Answers) -> ReuseNet:
    """The drafter before its first step."""
    request = job.request
    tokens: Tensor | None = None
    if request.draft_vocabulary:
        tokens = frequent_tokens(token_counts(answers, job.config.vocabulary), request.draft_vocabulary)
    net = new_net(job.config, target.module, request.seed, tokens)
    if request.warm_start is not None:
        warm_start(net, load_drafter(request.warm_start, target))
    return net


def _features(
    job: Job, target: CachedModel, answers: Answers, conversations: list[Conversation], progress: Progress
) -> FeatureSource:
    if job.request.features == "online":
        return OnlineFeatures(target.module, job.plan)
    with _autocast(job):
        make_cache(
            job.cache,
            target.module,
            conversations,
            cache_identity(answers, conversations, job.length, job.cached),
            progress,
        )
    return CachedFeatures(job.cache, target.module, job.plan)


def fill_cache(request: TrainingSpec, out: Path, target: CachedModel, answers: Answers, progress: Progress) -> None:
    """Make the cache of features that a request names, if it asks for one, without training: runs that share it find it whole.

    Raises:
        DraftgaugeError: as :func:`train_drafter`.
    """
    if request.features == "cached":
        job = check(request, out, target_fingerprint(target.module))
        _features(job, target, answers, usable(answers.conversations, job.length, request.depths), progress)


def _finished(job: Job) -> TrainResult | None:
    """The result of a run that was brought to its end."""
    if not is_drafter(job.out):
        return None
    result = dict(read_description(job.out)["extra"]["result"])
    return TrainResult(**{**result, "folder": job.out})


def _plain(result: TrainResult) -> dict[str, Any]:
    """A result ready for JSON, its folder left out: folders move."""
    return json.loads(json.dumps({key: value for key, value in asdict(result).items() if key != "folder"}))
