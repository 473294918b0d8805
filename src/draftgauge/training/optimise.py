"""The loop over optimiser steps, whatever is trained: rates, gradients, clipping, and when to log and to save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Schedule:
    """What happens at which step; steps are counted from 0.

    Attributes:
        rate: what the learning rate of every parameter group is multiplied by at a step.
        clip: largest norm of the gradient.
        log_every: steps between rows of the log. The step before a checkpoint ends a row too, so that a checkpoint
            holds whole rows, and so does the last one.
        save_every: steps between checkpoints; the last step saves too.
        log_first: whether the first step ends a row by itself.
    """

    steps: int
    rate: Callable[[int], float]
    clip: float
    log_every: int
    save_every: int
    log_first: bool = False

    def saved(self, step: int) -> bool:
        return step + 1 == self.steps or (step + 1) % self.save_every == 0

    def logged(self, step: int) -> bool:
        return self.saved(step) or (step + 1) % self.log_every == 0 or (self.log_first and step == 0)


def optimise(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    schedule: Schedule,
    done: int,
    backward: Callable[[int], None],
    log: Callable[[int, float], None],
    save: Callable[[int], None],
) -> None:
    """Take all steps that are left.

    Args:
        optimizers: with a state restored, if any; the rates of their groups are those that the schedule multiplies.
        backward: adds the gradients of a step to the parameters.
        log: told the steps done and the norm of the last gradient before clipping, where a row ends.
        save: told the steps done, where a checkpoint is due.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    base = [group["lr"] for group in groups]
    for step in range(done, schedule.steps):
        for group, rate in zip(groups, base, strict=True):
            group["lr"] = rate * schedule.rate(step)
        backward(step)
        norm = nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if schedule.logged(step):
            log(step + 1, float(norm))
        if schedule.saved(step):
            save(step + 1)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """bfloat16 where the hardware multiplies it natively, else None (train in float32)."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return torch.bfloat16 if supported else None


def arithmetic(precision: str, device: torch.device) -> torch.dtype | None:
    """What a training at precision auto, fp32 or bf16 multiplies in; None is float32."""
    return {"auto": autocast_dtype(device), "fp32": None, "bf16": torch.bfloat16}[precision]
