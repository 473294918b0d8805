"""Which kernels attention runs with: those that are allowed, and the one that is chosen."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias

_NAMES = {
    SDPBackend.MATH: "math",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}


_EVERY_KERNEL = nullcontext()


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU every kernel but cuDNN's, which plans anew for every exact shape: tens of milliseconds a length."""
    if device.type != "cuda":
        return _EVERY_KERNEL
    kernels: AbstractContextManager[None] = sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return kernels


def chosen_kernel(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | CausalBias | None) -> str:
    """The name of the kernel that PyTorch takes for ``[1, heads, tokens, D]``: flash, efficient, math or cudnn."""
    grouped = queries.shape[1] != keys.shape[1]
    with attention_kernels(queries.device):
        if isinstance(mask, CausalBias):
            if can_use_flash_attention(SDPAParams(queries, keys, values, None, 0.0, False, grouped)):
                return "flash"
            mask = mask._materialize(queries.device)
        choice = torch._fused_sdp_choice(queries, keys, values, mask, enable_gqa=grouped)
    return _NAMES.get(SDPBackend(choice), "other")
