"""The gated delta rule of hybrids (Yang et al. 2024), run for its state alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

NAMES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")  # of transformers, alike to call
_SWAPPING = RLock()


def advanced(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The state ``[B, H, K, V]`` after some tokens, written over ``initial_state``, behind a stand-in for the outputs.

    Reads the state three times whatever the number of tokens is: what they write is solved for together.

    Args:
        key: ``[B, T, H or fewer, K]``, as ``query``, which is not needed.
        value: ``[B, T, H, V]``.
        g, beta: ``[B, T, H]`` logarithm of the decay, and rate of writing.
    """
    heads = key.repeat_interleave(value.shape[2] // key.shape[2], 2).transpose(1, 2).float()
    if use_qk_l2norm_in_kernel:
        heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)
    rate, total = beta.float().mT[..., None], g.float().mT.cumsum(-1)
    if initial_state is None:
        initial_state = heads.new_zeros(*heads.shape[:2], heads.shape[-1], value.shape[-1])
    state = initial_state.float()
    kept = (total[..., None] - total[..., None, :]).tril().exp().tril()  # [B, H, T, T] of an earlier token's writing
    change = rate * (value.transpose(1, 2).float() - total.exp()[..., None] * (heads @ state))
    written = torch.linalg.solve_triangular(rate * kept * (heads @ heads.mT), change, upper=False, unitriangular=True)
    state.mul_(total[..., -1:, None].exp())
    state.flatten(0, 1).baddbmm_((heads * kept[..., -1, :, None]).mT.flatten(0, 1), written.flatten(0, 1))
    return value, state


@contextmanager
def stateful_alone(holders: list[nn.Module]) -> Iterator[bool]:
    """Inside the block these modules run the rule for its state alone; gives whether all of them compute that rule.

    One thread at a time, as the functions are those of a family's file.
    """
    files = {sys.modules[type(module).__module__] for module in holders}
    known = bool(files) and all(hasattr(file, name) for file in files for name in NAMES)
    with _SWAPPING:
        before = [(file, name, getattr(file, name)) for file in files for name in NAMES] if known else []
        for file, name, _ in before:
            setattr(file, name, advanced)
        try:
            yield known
        finally:
            for file, name, own in before:
                setattr(file, name, own)
