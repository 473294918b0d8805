"""Linears on a CPU, laid out once for oneDNN where a measurement of some milliseconds says that this pays.

oneDNN multiplies by weights that were laid out for it once.
These are the operators that TorchInductor calls for frozen weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.core.errors import warn
from draftgauge.models.device import forget, private

Multiply = Callable[[Tensor], Tensor]

COPY_LIMIT = 2 << 30  # bytes of a model of the caller's: packed weights are a copy there, which a larger cannot afford
PACK_FROM = 1 << 16  # elements of a weight: below, the call itself costs more than it saves
PACK_TOKENS = 8  # the number of tokens that the layout is chosen for
VERIFIED = 4  # tokens of the pass that is timed beside that of one token
TIMED = 32 << 20  # bytes of weights that are timed: more than caches near a core hold
REPEATS = 6
TIMED_FROM = 16 << 20  # a smaller model is packed untimed
# Shares of the time: what is less surely faster is not chosen, so that each load chooses alike.
MARGIN, UNPACKED_MARGIN = 0.9, 0.8


class Layout(NamedTuple):
    """Whether weights are ``packed``, and whether one row is multiplied as two, which some kernels do faster."""

    packed: bool
    two: bool = False


_CHOSEN: dict[tuple[object, ...], Layout] = {}  # one choice in a process, as roundings follow from it


@dataclass
class Packing:
    """How a model's linears are held.

    Attributes:
        owned: nobody else holds the model, so weights are taken out of its linears once they are packed.
        taken: linears without their weights, and these, packed side by side.
        kept: the weight that an embedding shares with the head, which stays.
        dtype: what linears are converted to as they come, if they are not in it.
    """

    layout: Layout
    owned: bool = False
    kept: Tensor | None = None
    dtype: torch.dtype | None = None
    taken: list[tuple[Sequence[nn.Linear], Tensor]] = field(default_factory=list)

    def multiply(self, linears: Sequence[nn.Linear]) -> Multiply:
        """One function whose outputs are those of the linears side by side."""
        pack = self.layout.packed and sum(linear.weight.numel() for linear in linears) >= PACK_FROM
        for linear in linears:
            convert(linear.parameters(), self.dtype)
        parts = [linear.weight.detach() for linear in linears]
        weight = _joined([linear.weight for linear in linears], share=not pack)
        bias = None if linears[0].bias is None else _joined([linear.bias for linear in linears], share=not pack)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_TOKENS) if pack else weight
        if self.owned and packed is not parts[0]:
            for part in parts:
                forget(part)
        if not pack:
            return _plain(weight, bias, self.layout.two)
        if self.owned and linears[0].weight is not self.kept:
            for linear in linears:
                linear.weight.data = weight.new_empty(0)
            self.taken.append((linears, packed))
        return _packed(packed, bias, self.layout.two)

    def restore(self) -> None:
        """Give the linears their weights back, bit by bit; they are then held twice."""
        for linears, packed in self.taken:
            whole = packed.to_dense()
            for linear, part in zip(linears, whole.split([linear.out_features for linear in linears]), strict=True):
                linear.weight.data = part
        self.taken.clear()


def convert(weights: Iterable[nn.Parameter], dtype: torch.dtype | None) -> None:
    """Convert parameters, and let go of the mapped file as each is read; None changes nothing."""
    for weight in weights if dtype is not None else ():
        if weight.dtype != dtype:
            stored, weight.data = weight.data, weight.data.to(dtype)
            forget(stored)


def packing_of(model: nn.Module, owned: bool, dtype: torch.dtype | None = None) -> Packing:
    """How to hold the linears of a model, in ``dtype``, by what a pass over some of them takes."""
    weights = [part.weight.detach() for part in model.modules() if type(part) is nn.Linear]
    kept = model.get_input_embeddings().weight  # type: ignore[operator]
    if not weights or weights[0].device.type != "cpu":
        return Packing(Layout(packed=False))
    timed = [weight.to(dtype or weight.dtype) for weight in _some(weights)]
    can = packs(model) if not owned else _packable(weights[0].to(dtype or weights[0].dtype))
    if not timed or sum(weight.nbytes for weight in weights) < TIMED_FROM:
        return Packing(Layout(can), owned, kept, dtype)
    key = (can, timed[0].dtype, torch.get_num_threads(), *(tuple(each.shape) for each in timed))
    if key not in _CHOSEN:
        with torch.inference_mode():
            _CHOSEN[key] = _fastest(timed, can)
    return Packing(_CHOSEN[key], owned, kept, dtype)


def packs(model: nn.Module) -> bool:
    """Whether a model of the caller's may be held twice: a small one, on a CPU whose oneDNN multiplies in its dtype."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    return sum(weight.nbytes for weight in weights) <= COPY_LIMIT and _packable(weights[0])


def _packable(weight: Tensor) -> bool:
    operators = private("ops.mkldnn._reorder_linear_weight"), private("ops.mkldnn._linear_pointwise")
    return None not in operators and _cpu_multiplies(weight)


def _cpu_multiplies(weight: Tensor) -> bool:
    """Whether it lies on a CPU whose oneDNN multiplies in its dtype."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    names = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    supported = private(f"ops.mkldnn.{names.get(weight.dtype)}")
    return weight.dtype == torch.float32 or (supported is not None and bool(supported()))


def _some(weights: Sequence[Tensor]) -> list[Tensor]:
    """The first weights of layers, up to ``TIMED`` bytes, or the smallest one that is ever packed."""
    chosen: list[Tensor] = []
    worth = [weight for weight in weights if weight.numel() >= PACK_FROM]
    for weight in worth:
        if sum(each.nbytes for each in chosen) + weight.nbytes <= TIMED:
            chosen.append(weight)
    return chosen or sorted(worth, key=lambda weight: weight.nbytes)[:1]


def _fastest(weights: Sequence[Tensor], can: bool) -> Layout:
    """The layout in which one token and a pass that verifies take the least time together."""
    found: dict[Layout, tuple[float, float]] = {}  # seconds of one token and of several
    for packed in (True, False) if can else (False,):
        held = [torch.ops.mkldnn._reorder_linear_weight(each, PACK_TOKENS) for each in weights] if packed else weights
        for two in (False, True):
            through = [(_packed if packed else _plain)(each, None, two) for each in held]
            found[Layout(packed, two)] = _seconds(through, weights, 1), _seconds(through, weights, VERIFIED)
    best = Layout(packed=can)
    for layout, times in found.items():
        margin = MARGIN if layout.packed == best.packed else UNPACKED_MARGIN
        if sum(times) < margin * sum(found[best]):
            best = layout
    able, dtype = _cpu_multiplies(weights[0]), str(weights[0].dtype).removeprefix("torch.")
    if not _packable(weights[0]) and (able or weights[0].dtype != torch.float32):
        one, several = found[best]
        lacks = "this PyTorch lacks what packs weights" if able else f"oneDNN multiplies no {dtype} on this processor"
        instead = "" if able else "; fp32 packs them, int8-dynamic, int8-weight and int4 need kernels of PyTorch alone"
        warn(f"{lacks}, so weights are not packed: {VERIFIED} tokens take {several / one:.1f} times one{instead}")
    return best


def _seconds(through: Sequence[Multiply], weights: Sequence[Tensor], rows: int) -> float:
    """The sum of each weight's least time: a single multiplication is shorter than what interrupts it."""
    inputs = [weight.new_ones(rows, weight.shape[1]) for weight in weights]
    best = [float("inf")] * len(weights)
    for _ in range(REPEATS):  # over all weights in turn, so that caches do not hold the one that comes next
        for place, (multiply, x) in enumerate(zip(through, inputs, strict=True)):
            begun = time.perf_counter()
            multiply(x)
            best[place] = min(best[place], time.perf_counter() - begun)
    return sum(best)


def _plain(weight: Tensor, bias: Tensor | None, two: bool) -> Multiply:
    if two:
        return lambda x: F.linear(x.expand(2, -1) if len(x) == 1 else x, weight, bias)[: len(x)]
    return lambda x: F.linear(x, weight, bias)


def _packed(packed: Tensor, bias: Tensor | None, two: bool) -> Multiply:
    multiply: Any = torch.ops.mkldnn._linear_pointwise.default
    if two:
        return lambda x: multiply(x.repeat(2, 1) if len(x) == 1 else x, packed, bias, "none", [], "")[: len(x)]
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _joined(parts: Sequence[Tensor], share: bool) -> Tensor:
    """Parameters side by side along their rows; with ``share`` each one then reads its part of the whole."""
    if len(parts) == 1:
        return parts[0].detach()
    whole = torch.cat([part.detach() for part in parts])
    if share:
        for part, piece in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = piece
    return whole
