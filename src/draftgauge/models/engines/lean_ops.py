"""The parts of the lean engine as plain functions: linears, fused and packed for the CPU where that pays, norms and
rotations.

oneDNN multiplies by weights that were laid out for it once: on one core in bfloat16, SmolLM2-135M verifies 9 tokens in
32 ms instead of 53, and decodes one in 29 instead of 41; Qwen2.5-Coder-0.5B decodes one in 148 instead of 250.
These are the operators that TorchInductor calls for frozen weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Projection = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor, Tensor], Tensor]
Norm = Callable[[Tensor], Tensor]
Rotation = Callable[[Tensor, Tensor, Tensor], object]

PACK_LIMIT = 2 << 30  # bytes of weights: packed ones are a copy, which a larger model cannot afford
PACK_FROM = 1 << 16  # elements of a weight: below, the call itself costs more than it saves
PACK_TOKENS = 8  # the number of tokens that the layout is chosen for


def packs(model: nn.Module) -> bool:
    """Whether to pack this model's linears: a small one, on a CPU whose oneDNN multiplies in its dtype."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    return _cpu_multiplies(weights[0]) and sum(weight.nbytes for weight in weights) <= PACK_LIMIT


def _cpu_multiplies(weight: Tensor) -> bool:
    """Whether it lies on a CPU whose oneDNN multiplies in its dtype."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn
    return {
        torch.float32: True,
        torch.bfloat16: operators._is_mkldnn_bf16_supported(),
        torch.float16: operators._is_mkldnn_fp16_supported(),
    }.get(weight.dtype, False)


def projection(linears: Sequence[Any], pack: bool) -> Projection:
    """One function whose outputs are those of the linears side by side.

    Args:
        linears: with the same input. Other modules than ``nn.Linear`` (quantised ones) are called as they are.
        pack: pack the fused weight if it is large enough; otherwise the linears become views of it.
    """
    if any(type(linear) is not nn.Linear for linear in linears):
        return linears[0] if len(linears) == 1 else lambda x: torch.cat([linear(x) for linear in linears], -1)
    pack = pack and sum(linear.weight.numel() for linear in linears) >= PACK_FROM
    join = _concatenate if pack else _share
    weight = join([linear.weight for linear in linears])
    bias = join([linear.bias for linear in linears]) if linears[0].bias is not None else None
    if not pack and weight.dtype == torch.bfloat16 and _cpu_multiplies(weight):
        # oneDNN's kernel for one row takes 15% longer than that for two over Qwen2.5-Coder-1.5B.
        return lambda x: F.linear(x.expand(2, -1) if len(x) == 1 else x, weight, bias)[: len(x)]
    if not pack:
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_TOKENS)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def residual(linear: Any, pack: bool, norm: Norm | None = None) -> Residual:
    """A function that adds a linear's output, normed in Gemma 2 and 3, to the residual ``x`` in place."""
    project = projection([linear], pack)
    if norm is None:
        return lambda x, inner: x.add_(project(inner))
    return lambda x, inner: x.add_(norm(project(inner)))


def _concatenate(parts: Sequence[nn.Parameter]) -> Tensor:
    return torch.cat([part.detach() for part in parts])


def _share(parts: Sequence[nn.Parameter]) -> Tensor:
    """Concatenate parameters along their rows and let each one read its part of the whole."""
    if len(parts) == 1:
        return parts[0].detach()
    whole = _concatenate(parts)
    for part, piece in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = piece
    return whole


def norm(weight: Tensor, eps: float) -> Norm:
    """RMS norm over the last dimension, times ``weight`` (``[..., dim]``, broadcast)."""
    dim = weight.shape[-1]
    if weight.ndim == 1:
        return lambda x: F.rms_norm(x, (dim,), weight, eps)
    return lambda x: F.rms_norm(x, (dim,), None, eps).mul_(weight)


def centred_norm(weight: Tensor, eps: float) -> Norm:
    """RMS norm times ``1 + weight``, in float32 up to the end whatever the model's dtype (Gemma)."""
    inner = norm(1.0 + weight.detach().float(), eps)
    return inner if weight.dtype == torch.float32 else lambda x: inner(x.float()).to(x.dtype)


def rotation(head_norm: Norm | None, head_dim: int, base: int | None) -> Rotation:
    """Normalises the heads where there is a norm (Qwen3, Gemma 3), and rotates them in place.

    A function of query and key heads ``[k, H + KV, D]`` and rotary tables, the sine signed; ``base`` says which of
    several tables ``[k, bases, D]`` to read.
    """

    def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        normed = heads if head_norm is None else head_norm(heads)
        if base is not None:
            cos, sin = cos.narrow(1, base, 1), sin.narrow(1, base, 1)
        torch.addcmul(normed * cos, normed.roll(head_dim // 2, -1), sin, out=heads)

    return rotate
