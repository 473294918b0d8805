"""The target's rotary embedding as tables, and the rotation with its inverse."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Tables = tuple[Tensor, Tensor]
FIRST_LENGTH = 512


class RotaryTables:
    """Cosines and sines of the target's positions, ``[length, D]``, by its own rotary module: with every scaling."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tables: dict[tuple[str, torch.device, torch.dtype], Tables] = {}

    def __call__(self, length: int, like: Tensor, kind: str = "") -> Tables:
        """Tables of at least ``length`` positions with the device and dtype of ``like``.

        ``kind`` is the kind of layer in families with a rotary embedding for each.
        """
        key = (kind, like.device, like.dtype)
        tables = self._tables.get(key)
        if tables is None or len(tables[0]) < length:
            longer = max(length, FIRST_LENGTH if tables is None else 2 * len(tables[0]))
            self._tables[key] = tables = self._make(longer, like, kind)
        return tables

    @torch.compiler.disable  # made once and kept: a compiled unroll reads them
    def _make(self, length: int, like: Tensor, kind: str) -> Tables:
        with torch.inference_mode(False), torch.no_grad():
            positions = torch.arange(length, device=next(self._module.buffers()).device)
            wanted = torch.empty(0, device=positions.device)  # tells the module to answer in float32
            cos, sin = self._module(wanted, positions[None], *([kind] if kind else []))
            half = cos.shape[-1] // 2
            # rotate_half(x) * sin == roll(x, D / 2) * signed
            signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
            return cos[0].to(like.device, like.dtype), signed[0].to(like.device, like.dtype)


def rotate(x: Tensor, tables: Tables) -> Tensor:
    """Rotate ``[..., n, D]`` by the tables of its ``n`` positions, ``[n, D]`` each."""
    cos, sin = tables
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def unrotate(x: Tensor, tables: Tables) -> Tensor:
    cos, sin = tables
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, value=-1) / (cos * cos + sin * sin)


def window(tables: Tables, begin: int, end: int) -> Tables:
    return tables[0][begin:end], tables[1][begin:end]


def like(tables: Tables, x: Tensor) -> Tables:
    return tables[0].to(x.dtype), tables[1].to(x.dtype)
