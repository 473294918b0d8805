"""The steps of a training: the same order of data, loss and optimiser for every design.

A killed run ends where an uninterrupted one does. Training draws nothing at random: seed and step give the order of the
data, and the drafter has no dropout. So weights, optimiser and the step's number are the whole state.

Several processes share a step: each takes some of its parts, and all count what the whole step trains on. Gradients are
added up before they are clipped, so that each makes the same update. What one process accumulates is the same sum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from draftgauge.core.errors import DivergenceError, DraftgaugeError
from draftgauge.core.parts import generator
from draftgauge.core.progress import Progress
from draftgauge.drafters.reuse.blockwise import BlockNet, block_states
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.models.device import peak_memory_gib
from draftgauge.training.checkpoints import load_checkpoint, save_checkpoint
from draftgauge.training.optimise import Schedule, arithmetic, autocast_dtype, optimise
from draftgauge.training.reuse.answers import Conversation
from draftgauge.training.reuse.data import Batch, DataOrder, Recent, collate, draw_anchors, trained_positions
from draftgauge.training.reuse.features import FeatureSource
from draftgauge.training.reuse.loss import Figures, backward_through_depths, depth_weights, teach
from draftgauge.training.reuse.prepare import Job
from draftgauge.training.reuse.request import BLOCK, CLIP, MUON, WEIGHT_DECAY
from draftgauge.training.reuse.tracking import (
    GateWatch,
    Tracker,
    TrainResult,
    gradient_row,
    open_trackers,
    parameter_groups,
)

BETAS = (0.9, 0.95)
MUON_RATE = 4.0  # times that of the other parameters
MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of the iteration that orthogonalises
ITERATIONS = 5
ADAMW_SIZE = 0.2  # root of the mean square of AdamW's updates


def make_optimizers(net: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    """Optimisers of everything that is trained; matrices decay, and nothing else.

    ``muon`` orthogonalises the updates of the matrices of the blocks (K. Jordan, "Muon: an optimizer for hidden
    layers", 2024), scaled to the size of AdamW's; the head, norms and biases stay with AdamW.
    """
    trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
    hidden = [p for n, p in trained if name == MUON and p.ndim == 2 and not n.startswith("head.")]
    chosen = {id(p) for p in hidden}
    matrices = [p for _, p in trained if p.ndim >= 2 and id(p) not in chosen]
    others = [p for _, p in trained if p.ndim < 2]
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((matrices, WEIGHT_DECAY), (others, 0.0))
        if parameters
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=1.0, betas=BETAS, fused=True)]
    if hidden:
        optimizers.append(Muon(hidden, {"lr": MUON_RATE, "weight_decay": WEIGHT_DECAY}))
    return optimizers


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` with Nesterov momentum and updates of AdamW's size, in the precision in which the device
    multiplies. That of torch rounds to bfloat16 everywhere: on a CPU without it a step took a minute."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                momentum = state["momentum_buffer"]
                momentum.lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * ADAMW_SIZE * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with its singular values near 1, by Newton and Schulz's iteration."""
    a, b, c = QUINTIC
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide.to(autocast_dtype(matrix.device) or torch.float32)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if wide is not matrix else x


OWN_KEYS = (".chain_attention.keys", ".chain_attention.values")
TAIL = 0.1  # share of the steps, at the end, over which the final loss is averaged

Report = Callable[[Mapping[str, float]], None]
Watch = Callable[["State", ReuseNet], None]


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
class Interval:
    """Sums since the last row of the log, and the figures of its last step."""

    figures: list[Figures] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    since: float = field(default_factory=time.monotonic)
    last: dict[str, float] = field(default_factory=dict)


class Training:
    """The steps of one drafter's training."""

    def __init__(
        self, job: Job, net: ReuseNet, features: FeatureSource, conversations: list[Conversation], answers_sha256: str
    ) -> None:
        self.job, self.net, self.features, self.conversations = job, net, features, conversations
        request = job.request
        self.world = job.world
        self.order = DataOrder(conversations, request.batch, request.seed)
        self.parts = self.world.size * request.accumulation
        if self.order.batch < self.parts:
            raise DraftgaugeError(
                f"{self.order.batch} conversations cannot be split into {self.parts} parts: give more prompts"
            )
        self._recent = Recent[list[Batch]]()
        self.optimizers = make_optimizers(net, request.optimizer)
        self.schedule = Schedule(
            steps=request.steps,
            rate=lambda step: request.rate(step, job.config.hidden_size),
            clip=CLIP,
            log_every=request.log_every,
            save_every=request.checkpoint_every,
            log_first=True,
        )
        self.weights = depth_weights(request.depths, request.decay)
        self.autocast = autocast(job)
        self.groups, self.gates = parameter_groups(net), GateWatch(net)
        self.state = self._resume(answers_sha256)
        self.interval = Interval()

    def run(self, progress: Progress, report: Report, watch: Watch) -> TrainResult:
        """All steps that are left; ``watch`` sees the network before every checkpoint."""
        request, state = self.job.request, self.state
        trackers: list[Tracker] = []
        if self.world.leads:
            trackers = open_trackers(request.track, self.job.out, request.identity(), state.step)
        self.interval = Interval()
        progress("train", state.step, request.steps)

        def log(step: int, norm: float) -> None:
            row = self._row(step, norm)
            for tracker in trackers:
                tracker.log(step, row)
            report({"step": step, "steps": request.steps, **row})
            progress("train", step, request.steps)

        def save(step: int) -> None:
            if self.world.leads:
                begun = time.monotonic()
                watch(state, self.net)
                save_checkpoint(self.job.checkpoints, self.net, self.optimizers, asdict(state))
                self.interval.since += time.monotonic() - begun  # no part of a step

        try:
            optimise(self.net, self.optimizers, self.schedule, state.step, self._backward, log, save)
        finally:
            for tracker in trackers:
                tracker.close()
        return TrainResult(
            folder=self.job.out,
            design=request.reuse,
            parameters=sum(p.numel() for p in self.net.parameters() if p.requires_grad),
            steps=state.step,
            tokens=state.tokens,
            seconds=state.seconds,
            tokens_per_second=state.tokens / max(state.seconds, 1e-9),
            loss=state.tail_loss / max(1, state.tail_steps),
            peak_memory_gib=peak_memory_gib(self.job.device),
        )

    def _backward(self, step: int) -> None:
        """Add the gradients of one step, and its figures to the interval."""
        request, interval = self.job.request, self.interval
        conversations = [self.conversations[index] for index in self.order.step(step)]
        anchors = [self._anchors(step, index) for index in self.order.step(step)]
        trained = [trained_positions(anchors, conversations, depth) for depth in range(request.depths)]
        scales = [float(weight) / max(1, count) for weight, count in zip(self.weights, trained, strict=True)]
        logged = self.schedule.logged(step)
        with self.gates.watching(on=logged):
            for batch, following in pairwise([*self._batches(step), *self._batches(step + 1)[:1]]):
                interval.figures.append(self._backward_of(batch.to(self.job.device), scales, following))
        self.world.add_up([p.grad for p in self.net.parameters() if p.grad is not None])
        for name, parts in self.groups.items() if request.kv_gradient != 1 else ():
            for parameter, rows in parts if name.endswith(OWN_KEYS) else ():
                if parameter.grad is not None:
                    parameter.grad[rows] *= request.kv_gradient
        interval.tokens += trained[0]
        interval.steps += 1
        if logged:
            self.world.add_up([self.gates.sums[depth] for depth in sorted(self.gates.sums)])
            interval.last = {"learning_rate": self.schedule.rate(step)} | gradient_row(self.groups) | self.gates.row()

    def _batches(self, step: int) -> list[Batch]:
        return self._recent.get(step, self._make_batches)

    def _make_batches(self, step: int) -> list[Batch]:
        batches = []
        for part in np.array_split(self.order.step(step), self.parts)[self.world.rank :: self.world.size]:
            drawn = [self._anchors(step, index) for index in part] if self.job.request.recipe == BLOCK else None
            batches.append(collate(self.conversations, part.tolist(), self.job.request.depths, drawn))
        return batches

    def _anchors(self, step: int, index: int) -> NDArray[np.int64]:
        rng = generator(self.job.request.seed, "anchors", step, int(index))
        return draw_anchors(self.conversations[index], self.job.request.anchors, rng)

    def _backward_of(self, batch: Batch, scales: list[float], following: Batch) -> Figures:
        request = self.job.request
        with self.autocast:
            features = self.features(batch)
            self.features.prefetch(following)
            teacher = teach(features.logits, batch, self.net.t2d, self.net.d2t)
            self.gates.count_rows([batch.trained(depth) for depth in range(request.depths)])
            if batch.drawn is not None and isinstance(self.net, OwnLayerNet):
                assert features.hidden is not None
                states = self.net.unroll_from(batch.tokens, features.hidden[:, :, 0], request.depths, batch.drawn)
            elif isinstance(self.net, BlockNet):
                assert batch.drawn is not None
                states = list(block_states(self.net, batch.tokens, features, batch.drawn).unbind(2))
            else:
                states = self.net.unroll(batch.tokens, features, request.depths, batch.first)
            confidence = self.net.confidence_logits if isinstance(self.net, BlockNet) and self.net.confidence else None
            return backward_through_depths(states, self.net.logits, teacher, batch, scales, request.loss, confidence)

    def _row(self, step: int, norm: float) -> dict[str, float]:
        """The figures of the interval, which is added to the state; a new one begins."""
        request, state, interval = self.job.request, self.state, self.interval
        state.step = step
        total = sum(interval.figures[1:], start=interval.figures[0])
        self.world.add_up([total.loss, total.agreed, total.count])
        counts = total.count.clamp(min=1)
        loss, agreed = (total.loss / counts).tolist(), (total.agreed / counts).tolist()
        mean = float(sum(weight * value for weight, value in zip(self.weights.tolist(), loss, strict=True)))
        if not math.isfinite(mean + norm):
            raise DivergenceError(f"the loss is {mean} and its gradient {norm} at step {step}: lower the learning rate")
        seconds = time.monotonic() - interval.since
        state.tokens += interval.tokens
        state.seconds += seconds
        if step > request.steps * (1 - TAIL):
            state.tail_loss += mean * interval.steps
            state.tail_steps += interval.steps
        self.interval = Interval()
        return (
            interval.last
            | {"gradient_norm": norm, "loss": mean}
            | {f"loss/{depth}": value for depth, value in enumerate(loss)}
            | {f"agreement/{depth}": value for depth, value in enumerate(agreed)}
            | {"tokens_per_second": interval.tokens / seconds}
            | {"seconds_left": seconds / interval.steps * (request.steps - step)}
        )

    def _resume(self, answers_sha256: str) -> State:
        saved = load_checkpoint(self.job.checkpoints, self.net, self.optimizers)
        if saved is None:
            return State(answers_sha256=answers_sha256)
        state = State(**saved)
        if state.answers_sha256 != answers_sha256:
            raise DraftgaugeError(
                f"the run in {self.job.out} was begun with other answers than {self.job.answers} holds: "
                "choose another folder"
            )
        return state


def autocast(job: Job) -> torch.autocast:
    dtype = arithmetic(job.request.precision, job.device)
    return torch.autocast(job.device.type, dtype or torch.bfloat16, enabled=dtype is not None)
