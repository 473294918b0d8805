"""What is measured of a drafter in training: gradients by parameter group, and the scales of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.blocks import Block
from draftgauge.drafters.reuse.net import ReuseNet

Hooked = tuple[nn.Module, Callable[..., None]]

STREAM = "stream"
BALANCED = 4.0  # largest ratio of the RMS of two parts of a sum, at initialisation, that training does not warn of


def parameter_groups(net: nn.Module) -> dict[str, list[tuple[Tensor, slice]]]:
    """Rows of parameters by group: every module's weight is one, and the fused query, key and value projections are
    taken apart.

    A name is the place of the module in the drafter, e.g. ``blocks.0.chain_attention.keys``.
    """
    groups: dict[str, list[tuple[Tensor, slice]]] = {}
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


class GradientStatistics:
    """Norms of gradients and weights by parameter group."""

    def __init__(self, net: nn.Module) -> None:
        self.groups = parameter_groups(net)

    @torch.no_grad()
    def row(self) -> dict[str, float]:
        """``{"gradient_norm/GROUP", "gradient_rms/GROUP", "weight_rms/GROUP"}`` of the gradients before clipping."""
        row: dict[str, float] = {}
        for name, parts in self.groups.items():
            count = sum(parameter[rows].numel() for parameter, rows in parts)
            gradient = _norm([parameter.grad[rows] for parameter, rows in parts if parameter.grad is not None])
            row[f"gradient_norm/{name}"] = gradient
            row[f"gradient_rms/{name}"] = gradient / count**0.5
            row[f"weight_rms/{name}"] = _norm([parameter[rows] for parameter, rows in parts]) / count**0.5
        return row


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()) ** 0.5 if tensors else 0.0


@dataclass(frozen=True)
class Imbalance:
    """A sum of parts at different scales: its name, its largest and smallest part, and the ratio of their RMS."""

    sum: str
    largest: str
    smallest: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.largest} is {self.ratio:.1f} times {self.smallest} where {self.sum} adds them"


class ScaleWatch:
    """The root mean square of everything that a drafter adds up, while it is being watched.

    A part much smaller than the others of its sum is lost in it: such as the token beside hidden states that nothing
    normalises. The sums are the fused taps, the two halves of every attention's input, and every block's residual.
    """

    def __init__(self, net: ReuseNet) -> None:
        self._net = net
        self._squares: dict[tuple[str, str], list[Tensor]] = {}

    def _hooks(self) -> Iterator[Hooked]:
        """What is called with which module; made anew whenever it is needed, as it refers to this watch."""
        if self._net.fuse is not None:
            yield self._net.fuse, self._taps
        for index, block in enumerate(self._net.blocks):
            yield from self._block_hooks(f"blocks.{index}", block)

    def _block_hooks(self, name: str, block: Block) -> Iterator[Hooked]:
        for kind, attention in (("self", block.self_attention), ("chain", block.chain_attention)):
            if attention is not None and attention.from_token is not None and attention.from_state is not None:
                yield self._hook(attention.from_token, f"{name}.{kind}_attention", "token")
                yield self._hook(attention.from_state, f"{name}.{kind}_attention", "state")
        attended = block.join or block.self_attention or block.chain_attention
        assert attended is not None
        yield block, lambda module, inputs, output: self._add(f"{name}.residual", STREAM, inputs[0])
        yield self._hook(attended, f"{name}.residual", "attention")
        yield self._hook(block.mlp, f"{name}.residual", "mlp")

    def _hook(self, module: nn.Module, total: str, part: str) -> Hooked:
        return module, lambda module, inputs, output: self._add(total, part, output)

    def _taps(self, fuse: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        width = fuse.weight.shape[0]
        pieces = zip(inputs[0].detach().split(width, -1), fuse.weight.detach().split(width, -1), strict=True)
        for tap, (states, weight) in enumerate(pieces):
            self._add("fuse", f"tap {tap}", F.linear(states, weight.to(states.dtype)))

    @torch.no_grad()
    def _add(self, total: str, part: str, values: Tensor) -> None:
        self._squares.setdefault((total, part), []).append(values.detach().float().square().mean())

    @contextmanager
    def watching(self, on: bool = True) -> Iterator[None]:
        self._squares.clear()
        with ExitStack() as hooks:
            for module, hook in self._hooks() if on else ():
                hooks.enter_context(module.register_forward_hook(hook))
            yield

    def scales(self) -> dict[str, dict[str, float]]:
        scales: dict[str, dict[str, float]] = {}
        for (total, part), squares in self._squares.items():
            scales.setdefault(total, {})[part] = float(torch.stack(squares).mean()) ** 0.5
        return scales

    def row(self) -> dict[str, float]:
        """``{"rms/SUM/PART"}`` for the log."""
        return {f"rms/{total}/{part}": rms for total, parts in self.scales().items() for part, rms in parts.items()}


def imbalances(scales: Mapping[str, Mapping[str, float]]) -> list[Imbalance]:
    """The sums whose parts differ by more than :data:`BALANCED` times, the worst first.

    A residual stream may be smaller than what its block adds to it: the block has read it normalised, so nothing is
    lost. A part that starts at nothing is no part yet.
    """
    unequal = []
    for total, parts in scales.items():
        largest = max(parts, key=parts.__getitem__)
        smallest = min(
            (part for part in parts if part != STREAM and parts[part] > 0), default=largest, key=parts.__getitem__
        )
        ratio = parts[largest] / max(parts[smallest], 1e-12)
        if ratio > BALANCED:
            unequal.append(Imbalance(total, largest, smallest, ratio))
    return sorted(unequal, key=lambda one: -one.ratio)
