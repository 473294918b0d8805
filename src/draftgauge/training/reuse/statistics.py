"""Gradients and weights of a drafter in training, by parameter group."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.attention import Attention

Groups = dict[str, list[tuple[Tensor, slice]]]


def parameter_groups(net: nn.Module) -> Groups:
    """Rows of parameters by group: every module's weight is one, and the fused query, key and value projections are
    taken apart.

    A name is the place of the module in the drafter, e.g. ``blocks.0.chain_attention.keys``.
    """
    groups: Groups = {}
    taken: set[int] = set()
    for name, module in net.named_modules():
        if not isinstance(module, Attention):
            continue
        for linear in (module.from_token, module.from_state):
            if linear is None:
                continue
            for part, rows in module.parts().items():
                groups.setdefault(f"{name}.{part}", []).append((linear.weight, rows))
            taken.add(id(linear.weight))
    for name, parameter in net.named_parameters():
        if parameter.requires_grad and id(parameter) not in taken:
            groups.setdefault(name.removesuffix(".weight"), []).append((parameter, slice(None)))
    return groups


@torch.no_grad()
def gradient_row(groups: Groups) -> dict[str, float]:
    """``{"gradient_norm/GROUP", "gradient_rms/GROUP", "weight_rms/GROUP"}`` of the gradients before clipping."""
    row: dict[str, float] = {}
    for name, parts in groups.items():
        count = sum(parameter[rows].numel() for parameter, rows in parts)
        gradient = _norm([parameter.grad[rows] for parameter, rows in parts if parameter.grad is not None])
        row[f"gradient_norm/{name}"] = gradient
        row[f"gradient_rms/{name}"] = gradient / count**0.5
        row[f"weight_rms/{name}"] = _norm([parameter[rows] for parameter, rows in parts]) / count**0.5
    return row


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()) ** 0.5 if tensors else 0.0
