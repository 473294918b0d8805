"""How far the gate of a hybrid drafter is open, padding left out: KVShot's third bottleneck (arXiv 2604.26412)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.blocks import GatedDelta

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
