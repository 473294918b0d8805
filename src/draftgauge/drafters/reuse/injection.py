"""How the keys and values of several target layers become those that one drafter layer attends to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.joint import KeysValues
from draftgauge.drafters.reuse.rotary import RotaryTables, like, rotate, unrotate, window


class Injection(nn.Module):
    """Keys and values of ``S`` target layers, as cached, into one set (KVShot, arXiv 2604.26412, "KV-only").

    - ``concat``: the heads of all layers side by side, nothing to learn.
    - ``project``: a linear map from all layers' heads of a position to one layer's, for keys as cached and for values.
    - ``project-rope``: the same with the rotation taken off the keys before and put on after, since a map that mixes
      rotated components of several layers does not commute with the rotation.
    """

    def __init__(self, config: ReuseConfig) -> None:
        super().__init__()
        self.kind = config.injection
        self._rope_kind = config.rope_kind
        if self.kind != "concat":
            width = config.kv_heads * config.head_dim
            self.keys = nn.Linear(len(config.kv_layers) * width, width, bias=False)
            self.values = nn.Linear(len(config.kv_layers) * width, width, bias=False)

    @torch.no_grad()
    def select(self, slot: int) -> None:
        """Let a projection hand on the keys and values of one of the ``S`` layers as they are."""
        for linear in (self.keys, self.values):
            width = len(linear.weight)
            linear.weight.zero_()
            linear.weight[:, slot * width : (slot + 1) * width] = torch.eye(width, device=linear.weight.device)

    def forward(self, keys: Tensor, values: Tensor, begin: int, rotary: RotaryTables) -> KeysValues:
        """Join the layers.

        Args:
            keys, values: ``[B, S, KV, n, D]``, the keys rotated at their positions.
            begin: the first of the ``n`` positions.
            rotary: the target's.

        Returns:
            Keys and values ``[B, KV or S KV, n, D]``, the keys rotated at their positions.
        """
        if self.kind == "concat":
            return keys.flatten(1, 2), values.flatten(1, 2)
        if self.kind == "project":
            return _project(self.keys, keys), _project(self.values, values)
        end = begin + keys.shape[3]
        tables = window(rotary(end, keys, self._rope_kind), begin, end)
        projected = _project(self.keys, unrotate(keys, tables))
        return rotate(projected, like(tables, projected)), _project(self.values, values)


def _project(linear: nn.Linear, heads: Tensor) -> Tensor:
    """``[B, S, KV, n, D]`` to ``[B, KV, n, D]``."""
    joined: Tensor = linear(heads.permute(0, 3, 1, 2, 4).flatten(2))
    return joined.unflatten(-1, (heads.shape[2], -1)).transpose(1, 2)
