"""Training on windows of tokens: a loss function, warm-up, a constant rate, a linear decay, checkpoints.

Training may have phases with windows of different lengths, one after the other or by turns, under one schedule and
with the same number of tokens a step throughout.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from draftgauge.core.errors import DraftgaugeError
from draftgauge.training.checkpoints import load_checkpoint, save_checkpoint
from draftgauge.training.optimise import Schedule, optimise

LossFunction = Callable[[Tensor], Tensor]
LOG_EVERY = 10


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train; a step accumulates micro-batches until it has seen ``step_tokens``.

    Where ``interleaved``, steps alternate between the phases in their shares instead of going through them in turn.
    """

    tokens: int
    step_tokens: int = 8192
    micro_tokens: int = 4096
    learning_rate: float = 8e-3
    embedding_rate: float = 4e-3
    weight_decay: float = 0.05
    warmup_steps: int = 60
    decay_share: float = 0.4
    clip: float = 1.0
    checkpoint_every: int = 100
    seed: int = 0
    interleaved: bool = False

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return max(1, self.tokens // self.step_tokens)

    def rate(self, step: int) -> float:
        """The factor of the learning rate at a step: linear warm-up, constant, linear decay to 2%."""
        steps = self.steps
        decay_from = steps * (1 - self.decay_share)
        decay = 1.0 if step < decay_from else 1 - 0.98 * (step - decay_from) / max(1.0, steps - decay_from)
        return min(1.0, (step + 1) / self.warmup_steps) * decay


def optimizers_for(model: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks (where this torch has it), AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    if not hasattr(torch.optim, "Muon"):
        return [
            torch.optim.AdamW(
                model.parameters(), lr=plan.embedding_rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay
            )
        ]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(
            matrices, lr=plan.learning_rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=plan.embedding_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


@dataclass(frozen=True)
class Phase:
    """A stretch of training: its windows of token ids ``[windows, length]`` and its share of all steps."""

    windows: NDArray[np.uint16]
    share: float


class Batches:
    """The micro-batches of every step, decided by seed and step alone: a resumed run sees what it would have seen."""

    def __init__(self, phases: Sequence[Phase], plan: Plan) -> None:
        self.phases, self.plan = phases, plan
        self.phase_of_step = self._interleaved() if plan.interleaved else self._in_turn()
        self.number_in_phase = np.zeros(plan.steps, np.int64)
        for phase in range(len(phases)):
            own = self.phase_of_step == phase
            self.number_in_phase[own] = np.arange(own.sum())
        self._order: dict[tuple[int, int], NDArray[np.int64]] = {}

    def _shares(self) -> NDArray[np.float64]:
        shares = np.array([phase.share for phase in self.phases])
        return shares / shares.sum()

    def _in_turn(self) -> NDArray[np.int64]:
        ends = np.round(np.cumsum(self._shares()) * self.plan.steps)
        return np.searchsorted(ends, np.arange(self.plan.steps), side="right")

    def _interleaved(self) -> NDArray[np.int64]:
        """At every step the phase that is farthest behind its share."""
        shares, done = self._shares(), np.zeros(len(self.phases))
        chosen = np.empty(self.plan.steps, np.int64)
        for step in range(self.plan.steps):
            chosen[step] = np.argmax(shares * (step + 1) - done)
            done[chosen[step]] += 1
        return chosen

    def _window(self, phase: int, index: int) -> int:
        epoch, row = divmod(index, len(self.phases[phase].windows))
        if (phase, epoch) not in self._order:
            rng = np.random.default_rng((self.plan.seed, phase, epoch))
            self._order[phase, epoch] = rng.permutation(len(self.phases[phase].windows))
        return int(self._order[phase, epoch][row])

    def step(self, step: int) -> list[NDArray[np.int64]]:
        """Token ids ``[micro-batch, length]``, one array for each micro-batch of the step."""
        number = int(self.phase_of_step[step])
        windows = self.phases[number].windows
        per_step = self.plan.step_tokens // windows.shape[1]
        first = int(self.number_in_phase[step]) * per_step
        rows = np.array([self._window(number, first + i) for i in range(per_step)])
        return [
            windows[part].astype(np.int64)
            for part in np.array_split(rows, self.plan.step_tokens // self.plan.micro_tokens)
        ]


class TrainingLog:
    """The running figures of a training: loss, tokens a second, time left; written to ``log.jsonl``."""

    def __init__(self, folder: Path, plan: Plan, report: Callable[[dict[str, float]], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.plan, self.report = folder / "log.jsonl", plan, report
        self.losses: list[Tensor] = []
        self.since, self.steps = time.monotonic(), 0

    def add(self, losses: list[Tensor]) -> None:
        self.losses += losses
        self.steps += 1

    def flush(self, step: int, state: dict[str, Any]) -> None:
        """Update the state with the steps since the last flush, write and report them."""
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        speed = self.steps * self.plan.step_tokens / seconds
        state |= {"step": step, "tokens": step * self.plan.step_tokens, "seconds": state["seconds"] + seconds}
        state["loss"] = float(torch.stack(self.losses).mean())
        self.losses.clear()
        self.steps = 0
        row = {"step": step, "steps": self.plan.steps, "loss": state["loss"], "tokens_per_second": speed}
        row["seconds_left"] = (self.plan.steps - step) * self.plan.step_tokens / speed
        with self.path.open("a") as log:
            log.write(json.dumps({k: round(v, 4) for k, v in row.items()}) + "\n")
        self.report(row)


def _check_plan(folder: Path, state: dict[str, Any], plan: Plan) -> None:
    begun = state.get("plan", {})
    off = [
        f"{name} {begun[name]} there, {value} here"
        for name, value in asdict(plan).items()
        if begun.get(name, value) != value
    ]
    if off:
        raise DraftgaugeError(
            f"{folder} holds another training ({'; '.join(off)}): choose another folder, or ask for the same"
        )


def train(
    model: nn.Module,
    loss_function: LossFunction,
    phases: Sequence[Phase],
    plan: Plan,
    folder: Path,
    report: Callable[[dict[str, float]], None] = lambda row: None,
) -> dict[str, Any]:
    """Train ``model`` in place and return the last state; an interrupted run goes on from its newest checkpoint.

    Args:
        model: what is optimised (its ``parameters()``).
        loss_function: maps token ids ``[micro-batch, length]`` (int64, on the model's device) to a scalar.
        phases: the windows to train on, one phase after the other.
        plan: tokens, rates and batch.
        folder: for checkpoints and ``log.jsonl``.
        report: told ``{"step", "steps", "loss", "tokens_per_second", "seconds_left"}`` every ten steps.

    Raises:
        DraftgaugeError: if the folder holds a training with another plan.
    """
    device = next(model.parameters()).device
    optimizers = optimizers_for(model, plan)
    state = load_checkpoint(folder, model, optimizers) or {"step": 0, "tokens": 0, "seconds": 0.0, "loss": math.nan}
    _check_plan(folder, state, plan)
    batches, log = Batches(phases, plan), TrainingLog(folder, plan, report)

    def backward(step: int) -> None:
        losses, parts = [], batches.step(step)
        for part in parts:
            loss = loss_function(torch.from_numpy(part).to(device))
            (loss / len(parts)).backward()
            losses.append(loss.detach())
        log.add(losses)

    def save(step: int) -> None:
        save_checkpoint(folder, model, optimizers, state | {"plan": asdict(plan)})

    schedule = Schedule(plan.steps, plan.rate, plan.clip, LOG_EVERY, plan.checkpoint_every)
    optimise(model, optimizers, schedule, state["step"], backward, lambda step, norm: log.flush(step, state), save)
    return state
