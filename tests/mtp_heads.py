"""Tiny random targets with MTP heads in their folders, in the layouts of their families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.drafters.mtp.families import COUNTS, MtpFamily, family_of
from draftgauge.drafters.mtp.head import head_class, head_config
from draftgauge.models.base import layer_count
from tiny_families import tiny_family

SMALL = [(2, "num_hidden_layers n_layers num_layers"), (8, "vocab_size")]


def head_tensors(target: PreTrainedModel, heads: int = 1, seed: int = 1) -> dict[str, Tensor]:
    """Random tensors of MTP heads, in the names of the target's family, as its layers are written to files."""
    text = target.config.get_text_config()
    _, family = family_of(text.model_type)
    tensors: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for number in range(heads):
            tensors |= _head(target, family, number)
    return tensors


def _head(target: PreTrainedModel, family: MtpFamily, number: int) -> dict[str, Tensor]:
    text = target.config.get_text_config()
    layers, width = layer_count(text), text.hidden_size
    config = head_config(text, family)
    decoder = head_class(target, config)(config)
    around = 0.0 if family.one_plus else 1.0
    tensors: dict[str, Tensor] = {}
    for part, name in family.named(number, layers).items():
        tensors[f"{name}.weight"] = around + 0.1 * torch.randn(width)
        if part == "projection":  # the state goes on, so that some drafts are right where the target repeats itself
            token, state = 0.02 * torch.randn(width, width), 2 * torch.eye(width)
            tensors[f"{name}.weight"] = torch.cat((state, token) if family.hidden_first else (token, state), 1)
    for name, weight in decoder.state_dict().items():
        if name.startswith("layers."):
            if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                weight = 0.2 * weight
            _, at, rest = name.split(".", 2)
            written = f"transformer_layer.{rest}" if text.model_type == "longcat_flash" and "mlp" in rest else rest
            for key, each in as_written(f"{family.prefixes(number, layers)[int(at)]}{written}", weight):
                tensors[key] = each.clone()
    return tensors


def as_written(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    """Experts that lie together in transformers' modules are written one by one."""
    start = name.rpartition(".")[0]
    if name.endswith("experts.gate_up_proj"):
        return [
            (f"{start}.{index}.{part}_proj.weight", half)
            for index, expert in enumerate(weight)
            for part, half in zip(("gate", "up"), expert.chunk(2), strict=True)
        ]
    if name.endswith("experts.down_proj") or name.endswith("experts.up_proj"):
        part = name.rpartition(".")[2]
        return [(f"{start}.{index}.{part}.weight", expert) for index, expert in enumerate(weight)]
    return [(name, weight)]


def save_with_heads(
    folder: Path, kind: str, heads: int = 1, announced: int | None = None, outer: str = "", **changes: Any
) -> PreTrainedModel:
    """Write a tiny target of a type, and MTP heads beside its weights in the same file."""
    changes = ({"num_hidden_layers": 4} if kind.startswith(("qwen3_", "mellum")) else {}) | changes
    target = tiny_family(kind, sizes=SMALL + [(value, name) for name, value in changes.items()])
    text = target.config.get_text_config()
    for count in COUNTS:
        if hasattr(text, count):
            setattr(text, count, announced or heads)
    family = family_of(text.model_type)[1]
    for name, other in family.from_settings.items():
        if name == "layer_types" and set(text.layer_types) == {"full_attention"}:
            setattr(text, other, ["full_attention"] * heads)  # rotary tables are of the kinds that the target has
        elif getattr(text, other, None) is None:
            setattr(text, other, family.settings[name] * heads)
    target.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    added = {f"{outer}{name}": tensor for name, tensor in head_tensors(target, heads).items()}
    save_file(tensors | added, folder / "model.safetensors", metadata={"format": "pt"})
    return target
