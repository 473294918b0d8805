"""What checkpoints for serving engines have in common: how they are written, and how weights are taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_bytes, atomic_write_text, require_writable
from draftgauge.core.provenance import command_line, environment, timestamp
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.persistence import DRAFT_TOKENS, drafter_fingerprint

MODEL = "model.safetensors"
CONFIG = "config.json"
ORIGIN = "draftgauge.json"


def write_checkpoint(
    folder: Path, out: Path, config: ReuseConfig, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> None:
    """Write the drafter in ``folder`` as a checkpoint with these tensors and this ``config.json``.

    ``draftgauge.json`` (where it came from) is written first and ``config.json`` last. So a killed export leaves a
    folder that the next one knows as its own, and that no engine loads.
    """
    require_writable(out)
    origin = {
        "command": command_line(),
        "created": timestamp(),
        "drafter": str(folder),
        "drafter_fingerprint": drafter_fingerprint(folder),
        "target": config.target_source,
        "target_fingerprint": config.target_fingerprint,
        "environment": environment(),
    }
    atomic_write_text(out / ORIGIN, json.dumps(origin, indent=1) + "\n")
    (out / CONFIG).unlink(missing_ok=True)
    own = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    atomic_write_bytes(out / MODEL, save(own, metadata={"format": "pt"}))
    dtype = str(next(each.dtype for each in tensors.values() if each.is_floating_point())).removeprefix("torch.")
    atomic_write_text(out / CONFIG, json.dumps({**settings, "dtype": dtype}, indent=1) + "\n")


def check_embedding(config: ReuseConfig, layout: str) -> None:
    """Refuse the drafter of a target whose embeddings a layout does not have."""
    partial = config.rope.get("partial_rotary_factor") not in (None, 1) or "mrope_section" in config.rope
    if config.embedding_scale != 1 or config.rope_kind or partial:
        what = "scales its token embeddings" if config.embedding_scale != 1 else "has several rotary embeddings"
        what = "rotates a part of each head" if partial else what
        raise DraftgaugeError(
            f"a target of the family {config.target_family} {what}, which the engines' {layout} drafters do not do: "
            "they would draft something else than draftgauge does"
        )


def ascending(config: ReuseConfig, fuse: Tensor) -> Tensor:
    """The fusing weight for tapped layers in ascending order, as engines hand their states over."""
    by_layer = dict(zip(config.hidden_layers, fuse.split(config.hidden_size, 1), strict=True))
    return torch.cat([by_layer[layer] for layer in sorted(by_layer)], 1)


def taken_apart(config: ReuseConfig, heads: Tensor, gate_up: Tensor, layer: str) -> dict[str, Tensor]:
    """A layer's queries, keys and values, and the halves of its SwiGLU."""
    counts = (config.query_heads, config.kv_heads, config.kv_heads)
    parts = *heads.split([count * config.head_dim for count in counts]), *gate_up.chunk(2)
    names = ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
    return {f"{layer}{name}_proj.weight": part for name, part in zip(names, parts, strict=True)}


def vocabulary_map(config: ReuseConfig, left: dict[str, Tensor]) -> dict[str, Tensor]:
    """The draft vocabulary, taken out of the weights that are left, where there is one. ``d2t`` holds offsets, the
    target's id minus the draft's own; ``t2d`` marks the target's ids that can be drafted."""
    if DRAFT_TOKENS not in left:
        return {}
    ids = left.pop(DRAFT_TOKENS).long()
    drafted = torch.zeros(config.vocabulary, dtype=torch.bool).index_fill_(0, ids, True)
    return {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}


def decoder_settings(config: ReuseConfig) -> dict[str, Any]:
    """The decoder of a drafter in the words of transformers."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.query_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.layers,
        "vocab_size": config.vocabulary,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": dict(config.rope),
        "max_position_embeddings": config.context,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
