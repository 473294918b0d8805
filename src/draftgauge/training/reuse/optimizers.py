"""The optimisers of a drafter's training; a schedule multiplies their rates by that of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftgauge.training.optimise import autocast_dtype
from draftgauge.training.reuse.request import MUON, WEIGHT_DECAY

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
