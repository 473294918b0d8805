"""Gradients by parameter group, and how far the gate of a hybrid drafter is open: two of the bottlenecks that KVShot names, measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.blocks import GatedDelta


def parameter_groups(net: nn.Module) -> dict[str, list[tuple[Tensor, slice]]]:
    """Rows of parameters by group: every module's weight is one, and the fused query, key and value projections are taken apart.

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
            head = len(linear.weight) // (module.query_heads + 2 * module.kv_heads)
            bounds = (0, module.query_heads * head, (module.query_heads + module.kv_heads) * head, len(linear.weight))
            for part, begin, end in zip(("queries", "keys", "values"), bounds[:-1], bounds[1:], strict=True):
                groups.setdefault(f"{name}.{part}", []).append((linear.weight, slice(begin, end)))
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
        """``{"gradient_norm/GROUP", "gradient_rms/GROUP", "weight_rms/GROUP"}`` of the gradients as they stand, before clipping."""
        found: dict[str, float] = {}
        for name, parts in self.groups.items():
            count = sum(parameter[rows].numel() for parameter, rows in parts)
            gradient = _norm([parameter.grad[rows] for parameter, rows in parts if parameter.grad is not None])
            found[f"gradient_norm/{name}"] = gradient
            found[f"gradient_rms/{name}"] = gradient / count**0.5
            found[f"weight_rms/{name}"] = _norm([parameter[rows] for parameter, rows in parts]) / count**0.5
        return found


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()) ** 0.5 if tensors else 0.0


class GateWatch:
    """The mean openness of the gates of a hybrid drafter while it is being watched."""

    def __init__(self, net: nn.Module) -> None:
        self._gates = [module.gate for module in net.modules() if isinstance(module, GatedDelta)]
        self._seen: list[Tensor] = []

    @contextmanager
    def watching(self, on: bool = True) -> Iterator[None]:
        """Take note of every pass through a gate, if ``on``."""
        self._seen.clear()
        handles = [gate.register_forward_hook(self._take) for gate in self._gates] if on else []
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def mean(self) -> float | None:
        """Mean over units and passes, 0 shut and 1 open; None for designs without a gate."""
        return float(torch.stack(self._seen).mean()) if self._seen else None

    def _take(self, gate: nn.Module, inputs: object, output: Tensor) -> None:
        self._seen.append(output.detach().float().sigmoid().mean())
