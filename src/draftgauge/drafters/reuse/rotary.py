"""The target's rotary embedding as tables, and the rotation with its inverse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftgauge.models.base import text_decoder

Tables = tuple[Tensor, Tensor]
FIRST_LENGTH = 512
TABLES = 3  # axes of a rotary module's tables: texts, positions, numbers


class RotaryTables:
    """Cosines and sines of the target's positions, ``[length, D]``, by its own rotary module: with every scaling."""

    def __init__(self, module: nn.Module, width: int = 0) -> None:
        """``width`` is ``D``, more than what the module rotates in families that rotate a part of each head; 0 for the
        module's own.
        """
        self._module, self._width = module, width
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
            half = (self._width or cos.shape[-1]) // 2
            cos, sin = (each.narrow(-1, 0, min(half, each.shape[-1])) for each in _once(cos[0], sin[0]))
            rest = (0, half - cos.shape[-1])
            cos, sin = F.pad(cos, rest, value=1.0), F.pad(sin, rest)
            # rotate_half(x) * sin == roll(x, D / 2) * signed
            tables = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            return tables[0].to(like.device, like.dtype), tables[1].to(like.device, like.dtype)


def _once(cos: Tensor, sin: Tensor) -> Tables:
    """Every frequency of tables ``[length, n]`` once: families repeat them side by side, in turn, or not at all."""
    halves = [each.tensor_split(2, -1) for each in (cos, sin)]
    if halves[0][0].shape == halves[0][1].shape and not bool((halves[0][0] != halves[0][1]).any()):
        return halves[0][0], halves[1][0]
    return (cos, sin) if bool((cos[:, ::2] != cos[:, 1::2]).any()) else (cos[:, ::2], sin[:, ::2])


def target_rotary(target: PreTrainedModel, rope: Mapping[str, Any], kind: str, width: int) -> nn.Module:
    """The target's rotary module; where a drafter cannot call it or there is none, a plain one of this ``width``."""
    module = getattr(text_decoder(target), "rotary_emb", None)
    if isinstance(module, nn.Module):
        positions = torch.zeros(1, 2, dtype=torch.long, device=target.device)
        try:
            cos, sin = module(torch.empty(0, device=target.device), positions, *([kind] if kind else []))
        except Exception:  # it takes something else than positions, or gives something else than two tables
            cos = sin = positions
        if cos.ndim == sin.ndim == TABLES and not cos.is_complex():
            return module
    theta = rope.get("rope_theta") or LlamaConfig.default_theta
    shape = {"hidden_size": width, "num_attention_heads": 1, "head_dim": width}
    return LlamaRotaryEmbedding(LlamaConfig(**shape, rope_parameters={"rope_type": "default", "rope_theta": theta}))


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
