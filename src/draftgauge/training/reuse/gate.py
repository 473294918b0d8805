"""How far the gate of a hybrid drafter is open, padding left out: KVShot's third bottleneck (arXiv 2604.26412)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.blocks import GatedDelta

BINS = 200
OPEN = 0.5
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class GateFigures:
    """Openness of a gate, 0 shut and 1 open, over units and positions.

    Attributes:
        mean: over all of them.
        open: share of them above one half.
        quantiles: at ``QUANTILES``, within a bin of 1 / ``BINS``.
        count: entries that were seen.
    """

    mean: float
    open: float
    quantiles: tuple[float, ...]
    count: int

    def row(self) -> dict[str, float]:
        """``gate_mean``, ``gate_open``, ``gate_q05`` and so on."""
        names = [f"gate_q{round(100 * q):02d}" for q in QUANTILES]
        return {"gate_mean": self.mean, "gate_open": self.open} | dict(zip(names, self.quantiles, strict=True))


def gates_of(net: nn.Module) -> list[nn.Linear]:
    """The gates of a drafter, block by block; none but of a hybrid one."""
    return [module.gate for module in net.modules() if isinstance(module, GatedDelta)]


class GateWatch:
    """The gates of a drafter while they are being watched: sums and a histogram, so that any amount can be taken in."""

    def __init__(self, net: nn.Module) -> None:
        self._gates = gates_of(net)
        self._rows: Sequence[Tensor] = ()
        self._calls = dict.fromkeys(self._gates, 0)
        self._clear()

    def _clear(self) -> None:
        self._sum: dict[int, Tensor] = {}
        self._bins: dict[int, Tensor] = {}
        self._open: dict[int, Tensor] = {}

    @contextmanager
    def watching(self, on: bool = True) -> Iterator[None]:
        self._clear()
        with ExitStack() as hooks:
            for gate in self._gates if on else ():
                hooks.enter_context(gate.register_forward_hook(self._take))
            yield

    def count_rows(self, rows: Sequence[Tensor]) -> None:
        """Which rows of the next unroll count, ``[B, R]`` bool for each of its depths: those that are no padding."""
        self._rows = rows
        self._calls = dict.fromkeys(self._gates, 0)

    def sums(self) -> list[Tensor]:
        """The sums that the figures are made of, to be added to in place for figures over several processes."""
        return [sums[depth] for sums in (self._sum, self._open, self._bins) for depth in sorted(sums)]

    def figures(self, depth: int | None = None) -> GateFigures | None:
        """The figures of a depth, or of all together; None without a gate, or where nothing was seen."""
        depths = [depth] if depth is not None else sorted(self._bins)
        if not depths or any(one not in self._bins for one in depths):
            return None
        bins = torch.stack([self._bins[one] for one in depths]).sum(0)
        count = int(bins.sum())
        if not count:
            return None
        shares = bins.cumsum(0) / count
        levels = torch.searchsorted(shares, torch.tensor(QUANTILES, dtype=shares.dtype)).clamp(max=BINS - 1)
        return GateFigures(
            mean=float(sum(self._sum[one] for one in depths)) / count,
            open=float(sum(self._open[one] for one in depths)) / count,
            quantiles=tuple(((levels + 0.5) / BINS).tolist()),
            count=count,
        )

    @torch.no_grad()
    def _take(self, gate: nn.Linear, inputs: object, output: Tensor) -> None:
        depth = self._calls[gate]
        self._calls[gate] += 1
        assert depth < len(self._rows), "say which rows count before every unroll"
        openness = output.detach()[self._rows[depth].to(output.device)].float().sigmoid()
        for sums, value in (
            (self._sum, openness.sum(dtype=torch.float64)),
            (self._open, (openness > OPEN).sum()),
            (self._bins, torch.histc(openness, BINS, 0, 1).double()),
        ):
            sums[depth] = sums.get(depth, 0) + value.cpu()
