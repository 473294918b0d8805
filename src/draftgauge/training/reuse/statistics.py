"""Gradients and weights of a drafter in training, by parameter group.

Of a hybrid drafter also how far its gate is open, padding left out: KVShot's third bottleneck (arXiv 2604.26412).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.blocks import GatedDelta

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


OPEN = 0.5


def gates_of(net: nn.Module) -> list[nn.Linear]:
    return [module.gate for module in net.modules() if isinstance(module, GatedDelta)]


class GateWatch:
    """Openness of a drafter's gates (0 shut, 1 open) by depth, over units and counted positions.

    Attributes:
        sums: depth -> float64 ``[3]``: summed openness, entries above one half, entries. They may be added up over
            processes in place.
    """

    def __init__(self, net: nn.Module) -> None:
        self._gates = gates_of(net)
        self._rows: Sequence[Tensor] = ()
        self._calls = dict.fromkeys(self._gates, 0)
        self.sums: dict[int, Tensor] = {}

    @contextmanager
    def watching(self, on: bool = True) -> Iterator[None]:
        self.sums = {}
        with ExitStack() as hooks:
            for gate in self._gates if on else ():
                hooks.enter_context(gate.register_forward_hook(self._take))
            yield

    def count_rows(self, rows: Sequence[Tensor]) -> None:
        """Which rows of the next unroll count, ``[B, R]`` bool for each of its depths."""
        self._rows = rows
        self._calls = dict.fromkeys(self._gates, 0)

    def row(self, depth: int | None = None) -> dict[str, float]:
        """``gate_mean`` and ``gate_open`` (share above one half) of a depth, or of all; empty where none was seen."""
        sums = [self.sums[one] for one in self.sums if depth in (None, one)]
        openness, above, count = (float(value) for value in sum(sums, start=torch.zeros(3, dtype=torch.float64)))
        return {"gate_mean": openness / count, "gate_open": above / count} if count else {}

    @torch.no_grad()
    def _take(self, gate: nn.Linear, inputs: object, output: Tensor) -> None:
        depth = self._calls[gate]
        self._calls[gate] += 1
        openness = output.detach()[self._rows[depth].to(output.device)].double().sigmoid()
        seen = torch.stack((openness.sum(), (openness > OPEN).sum(), openness.new_tensor(openness.numel()))).cpu()
        self.sums[depth] = self.sums.get(depth, 0) + seen
