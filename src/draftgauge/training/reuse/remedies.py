"""What may be done in training against the bottlenecks that KVShot names (arXiv 2604.26412).

- Its own keys and values learn from few positions: their gradients are multiplied. The paper did so by 50 and gained
  nothing. AdamW divides the gradient of each weight by its own size, so there a factor acts through the clipping of the
  whole gradient alone. Muon orthogonalises the matrix of queries, keys and values as one, so there it also shifts the
  update from the queries to the keys and values.
- The gate of a hybrid drafter shuts before its cross branch has learned anything: it is held open at first, or the
  cross branch is trained alone at first, everything else frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.training.reuse.gate import gates_of
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.statistics import parameter_groups

HELD_OPEN = 4.0  # logit of a gate that is held: 98% open
CROSS_BRANCH = (".chain_attention.", ".injection.", ".join.")
OWN_KEYS = (".chain_attention.keys", ".chain_attention.values")


class Remedies:
    """The remedies that a request asks for, step by step."""

    def __init__(self, net: ReuseNet, request: TrainingSpec) -> None:
        self.held_steps = round(request.gate_hold * request.steps)
        self.cross_steps = round(request.cross_first * request.steps)
        self.factor = request.kv_gradient
        self._gates = gates_of(net)
        self._others = [
            parameter
            for name, parameter in net.named_parameters()
            if not any(part in f".{name}" for part in CROSS_BRANCH)
        ]
        groups = parameter_groups(net)
        self._own = [part for name, parts in groups.items() if name.endswith(OWN_KEYS) for part in parts]

    @contextmanager
    def holding(self, step: int) -> Iterator[None]:
        """The forward passes of a step, counted from 0: with the gate held open where that is asked for."""
        with ExitStack() as hooks:
            for gate in self._gates if step < self.held_steps else ():
                hooks.enter_context(gate.register_forward_hook(_open))
            yield

    @torch.no_grad()
    def change_gradients(self, step: int) -> None:
        """What a step's gradients become before they are clipped."""
        if self.factor != 1:
            for parameter, rows in self._own:
                if parameter.grad is not None:
                    parameter.grad[rows] *= self.factor
        if step < self.cross_steps:
            for parameter in self._others:
                parameter.grad = None


@torch.no_grad()
def start_gates(net: ReuseNet, bias: float) -> None:
    for gate in gates_of(net):
        gate.bias.fill_(bias)


def _open(gate: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return torch.full_like(output, HELD_OPEN)
