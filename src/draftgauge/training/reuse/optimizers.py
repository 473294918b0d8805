"""The optimisers of a drafter's training; a schedule multiplies their rates by that of the step."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from draftgauge.training.reuse.request import ADAMW, MUON, WEIGHT_DECAY

BETAS = (0.9, 0.95)
MUON_RATE = 4.0  # times that of the other parameters


def make_optimizers(net: nn.Module, name: str, weight_decay: float = WEIGHT_DECAY) -> list[torch.optim.Optimizer]:
    """Optimisers of everything that is trained; matrices decay, and nothing else.

    ``muon`` orthogonalises the updates of the matrices of the blocks (K. Jordan, "Muon: an optimizer for hidden
    layers", 2024), scaled to the size of AdamW's; the head, norms and biases stay with AdamW.
    """
    if name == MUON and not hasattr(torch.optim, "Muon"):
        warnings.warn(f"torch {torch.__version__} has no Muon (2.9 or later has): AdamW takes its place", stacklevel=2)
        name = ADAMW
    trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
    hidden = [p for n, p in trained if name == MUON and p.ndim == 2 and not n.startswith("head.")]
    chosen = {id(p) for p in hidden}
    matrices = [p for _, p in trained if p.ndim >= 2 and id(p) not in chosen]
    others = [p for _, p in trained if p.ndim < 2]
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((matrices, weight_decay), (others, 0.0))
        if parameters
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=1.0, betas=BETAS, fused=True)]
    if hidden:
        optimizers.append(
            torch.optim.Muon(hidden, lr=MUON_RATE, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers
