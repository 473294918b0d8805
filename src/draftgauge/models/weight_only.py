"""Linears whose weights have 4 or 8 bits: PyTorch's own kernels, on a CPU. Inputs have 16 bits but where said.

- ``int4``: groups of 32 along the input, each with a scale and a zero point in bfloat16, rounded to the nearest.
- ``int8-weight``: one scale for each output, symmetric.
- ``int8-dynamic``: so too, in 7 bits, and each row of the input is rounded to 8 bits with a scale of its own. FBGEMM
  multiplies integers, a few rows in about the time of one. AVX2 adds two products in 16 bits, hence the 7.

Every linear is held so, the output head among them; embeddings and norms stay in bfloat16. A head that shares its
weight with the embedding gets a copy of its own. A row of these kernels comes out the same, bit by bit, whatever the
number of rows. In float32 they are several times slower, so activations are bfloat16 on any processor.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.core.errors import warn
from draftgauge.core.parts import INT4, INT8_DYNAMIC, INT8_WEIGHT
from draftgauge.models.device import forget, private

GROUP = 32  # inputs that share a scale of int4
INT4_OUTPUTS = 16  # the int4 kernel takes multiples of this many outputs
BLOCK = 64  # outputs that the int4 kernel packs together, at most
INPUTS, ZERO = 127, 128  # of int8-dynamic: the largest rounded input, and what 0 is as an unsigned byte
AT_ONCE = 1 << 21  # weights that are quantised together: bounds the memory of what is between

KERNELS = {  # names under torch.ops
    INT4: ("aten._convert_weight_to_int4pack_for_cpu", "aten._weight_int4pack_mm_for_cpu"),
    INT8_WEIGHT: ("aten._weight_int8pack_mm",),
    INT8_DYNAMIC: ("quantized.linear_prepack", "quantized.linear_with_input_q_dq_qweight_dq_output_fp32"),
}


class WeightOnlyLinear(nn.Module):
    """``x W^T + b`` with ``W`` ``[out, in]`` of 4 or 8 bits: ``packed`` as the kernel lays it out, and its ``scales``.

    ``scales`` are ``[in / 32, out, 2]`` (scale and zero point) of int4, ``[out]`` of int8. FBGEMM's pack is no tensor.
    """

    packed: Any
    scales: Tensor

    def __init__(self, packed: Any, scales: Tensor, bias: Tensor | None, widths: tuple[int, int]) -> None:
        super().__init__()
        self.in_features, self.out_features = widths
        self.kind = (
            INT8_DYNAMIC if not isinstance(packed, Tensor) else INT4 if packed.dtype == torch.uint8 else INT8_WEIGHT
        )
        self.packed = nn.Buffer(packed) if self.kind != INT8_DYNAMIC else packed
        self.register_buffer("scales", scales)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """``[out, in]`` in the scales' dtype, made anew at every call."""
        if self.kind != INT4:
            dynamic = self.kind == INT8_DYNAMIC
            q = torch.ops.quantized.linear_unpack(self.packed)[0].int_repr() if dynamic else self.packed
            return cast(Tensor, q.to(self.scales.dtype) * self.scales[:, None])
        identity = torch.eye(self.in_features, dtype=self.scales.dtype)
        with torch.no_grad():  # the kernel alone knows its layout
            return torch.cat([self._multiply(rows) for rows in identity.split(BLOCK)]).T.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``; gradients reach ``x``, over the weight in full."""
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        outputs = self._multiply(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)
        return outputs if self.bias is None else outputs.add_(self.bias)

    def _multiply(self, rows: Tensor) -> Tensor:
        if self.kind == INT8_DYNAMIC:
            wide = rows.float()
            unit = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-9).div_(INPUTS)
            multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            return cast(Tensor, multiply(wide / unit, 1.0, ZERO, self.packed).mul_(unit).to(rows.dtype))
        rows, scales = rows.contiguous(), self.scales.contiguous()
        if self.kind == INT4:
            return cast(Tensor, torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, scales))
        return torch._weight_int8pack_mm(rows, self.packed, scales)


def joined(linears: Sequence[WeightOnlyLinear]) -> WeightOnlyLinear | None:
    """One linear whose outputs are those of these side by side, and whose weights they then read parts of.

    None where the kernel's blocks do not end where the linears do, and where a pack has no parts.
    """
    first, sizes = linears[0], [linear.out_features for linear in linears]
    of_outputs = 1 if first.kind == INT4 else 0
    if {linear.kind for linear in linears} not in ({INT4}, {INT8_WEIGHT}) or any(size % BLOCK for size in sizes[:-1]):
        return None
    packed = torch.cat([linear.packed for linear in linears])
    scales = torch.cat([linear.scales for linear in linears], of_outputs)
    bias = None if first.bias is None else torch.cat([cast(Tensor, linear.bias) for linear in linears])
    whole = WeightOnlyLinear(packed, scales, bias, (first.in_features, sum(sizes)))
    probe = torch.randn(1, first.in_features, dtype=scales.dtype, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if not torch.equal(whole(probe), torch.cat([linear(probe) for linear in linears], -1)):
            return None
    for linear, part, own in zip(linears, packed.split(sizes), scales.split(sizes, of_outputs), strict=True):
        linear.packed, linear.scales = part, own
    return whole


def quantise(model: nn.Module, compression: str) -> None:
    """Put :class:`WeightOnlyLinear` in the place of a CPU model's linears, one after the other, with one warning at
    most.

    Linears whose widths the kernel does not take stay as they are. Without the kernel the model's own dtype holds and
    multiplies the quantised weights: outputs are those of the compression, the speed is not.
    """
    lacking = [name for name in map("ops.{}".format, KERNELS[compression]) if private(name) is None]
    if compression == INT8_DYNAMIC and "fbgemm" not in torch.backends.quantized.supported_engines:
        lacking.append("backends.quantized of fbgemm")
    left = total = 0
    for parent in list(model.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is not nn.Linear:
                continue
            total += 1
            if compression == INT4 and (linear.in_features % GROUP or linear.out_features % INT4_OUTPUTS):
                left += 1
                continue
            setattr(parent, name, _in_full(linear, compression) if lacking else _packed(linear, compression))
            forget(linear.weight)
    dtype = str(cast(Any, model).get_input_embeddings().weight.dtype).removeprefix("torch.")
    bits = 4 if compression == INT4 else 8
    if lacking:
        name = "torch." + lacking[-1]
        warn(f"this PyTorch lacks {name}: {compression} weights are held in {dtype}, at {16 // bits} times the bytes")
    elif left:
        warn(
            f"{left} of {total} linears stay in {dtype}, at {16 // bits} times the bytes: the {compression} kernel "
            f"takes input widths divisible by {GROUP} and output widths by {INT4_OUTPUTS}"
        )


def _packed(linear: nn.Linear, compression: str) -> WeightOnlyLinear:
    pack: Any = torch.ops.aten._convert_weight_to_int4pack_for_cpu
    pieces = [(pack(q, 2) if compression == INT4 else q, scale) for q, scale in _quantised(linear, compression)]
    scales = torch.cat([scale for _, scale in pieces], 1 if compression == INT4 else 0)
    packed: Any = torch.cat([q for q, _ in pieces])
    del pieces
    if compression == INT8_DYNAMIC:
        chosen, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"  # to pack, no longer
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such tensors are to go; only the packed form is kept
            zeros = torch.zeros(len(packed), dtype=torch.long)
            packed = torch._make_per_channel_quantized_tensor(packed, scales.double(), zeros, 0)
            packed = torch.ops.quantized.linear_prepack(packed, None)
        torch.backends.quantized.engine = chosen
    bias = None if linear.bias is None else linear.bias.detach()
    return WeightOnlyLinear(packed, scales, bias, (linear.in_features, linear.out_features))


def _in_full(linear: nn.Linear, compression: str) -> nn.Linear:
    """The linear with the weights that the kernel would multiply by; its own weight is not written to."""
    rows: list[Tensor] = []
    for q, scales in _quantised(linear, compression):
        if compression == INT4:
            scale, zero = (part.t().float().repeat_interleave(GROUP, 1) for part in scales.unbind(-1))
            rows.append(((q.float() - 8) * scale + zero).to(linear.weight.dtype))
        else:
            rows.append((q.float() * scales.float()[:, None]).to(linear.weight.dtype))
    whole = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    whole.weight, whole.bias = nn.Parameter(torch.cat(rows), requires_grad=False), linear.bias
    return whole


def _quantised(linear: nn.Linear, compression: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Some outputs after the other, so that the integers of all never exist at once: ``[out, in]``, and scales as in
    :class:`WeightOnlyLinear`."""
    most = 63 if compression == INT8_DYNAMIC else 127
    count = max(1, AT_ONCE // linear.in_features // BLOCK) * BLOCK
    pieces = linear.weight.detach().split(count)
    return (_int4(rows) if compression == INT4 else _int8(rows, most) for rows in pieces)


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.float().unflatten(-1, (-1, GROUP))  # [out, groups, 32]
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).clamp_(min=1e-9).to(weight.dtype).float()  # as the kernel will read it
    zero = (low + 8 * scale).to(weight.dtype).float()
    q = groups.sub(zero).div_(scale).round_().add_(8).clamp_(0, 15).to(torch.int32)
    return q.flatten(1), torch.cat((scale, zero), -1).transpose(0, 1).to(weight.dtype)


def _int8(weight: Tensor, most: int) -> tuple[Tensor, Tensor]:
    exact = weight.float()
    scale = (exact.abs().amax(1) / most).clamp_(min=1e-9).to(weight.dtype)
    return exact.div(scale.float()[:, None]).round_().clamp_(-most, most).to(torch.int8), scale
