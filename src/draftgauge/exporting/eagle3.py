"""A trained ``hidden`` drafter as an EAGLE-3 checkpoint, as vLLM, SGLang and speculators load it.

The network is that of EAGLE-3 (Li et al. 2025, arXiv 2503.01840), so exporting renames its weights and changes none:
queries, keys and values read ``[embedding; state]`` side by side, which here are two linears whose outputs are added.
The embedding is the target's, which the engines take from the target itself.
"""

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
from draftgauge.drafters.reuse.persistence import DRAFT_TOKENS, drafter_fingerprint, read_config, read_weights

DESIGN = "hidden"
MODEL = "model.safetensors"
CONFIG = "config.json"
ORIGIN = "draftgauge.json"
LLAMA_CPP_TAPS = 3

_BLOCK, _LAYER = "blocks.0.", "midlayer."
_ATTENTION = f"{_BLOCK}self_attention."
_RENAMED = {
    "fuse.weight": "fc.weight",
    f"{_BLOCK}token_norm.weight": f"{_LAYER}input_layernorm.weight",
    f"{_BLOCK}state_norm.weight": f"{_LAYER}hidden_norm.weight",
    f"{_ATTENTION}output.weight": f"{_LAYER}self_attn.o_proj.weight",
    f"{_BLOCK}mlp_norm.weight": f"{_LAYER}post_attention_layernorm.weight",
    f"{_BLOCK}mlp.down.weight": f"{_LAYER}mlp.down_proj.weight",
    "norm.weight": "norm.weight",
    "head.weight": "lm_head.weight",
}


def export_eagle3(folder: Path, out: Path) -> dict[str, Tensor]:
    """Write a drafter as an EAGLE-3 checkpoint and return its tensors by name.

    ``draftgauge.json`` (where it came from) is written first and ``config.json`` last: a killed export leaves
    a folder that the next one knows as its own, and that no engine loads.
    """
    config = read_config(folder)
    check_exportable(config)
    tensors = eagle3_tensors(config, read_weights(folder))
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
    atomic_write_bytes(out / MODEL, save(tensors, metadata={"format": "pt"}))
    atomic_write_text(out / CONFIG, json.dumps(eagle3_config(config, tensors["fc.weight"].dtype), indent=1) + "\n")
    return tensors


def check_exportable(config: ReuseConfig) -> None:
    """Refuse a drafter that has no place in the EAGLE-3 layout, saying why."""
    if config.block:
        raise DraftgaugeError(
            "an EAGLE-3 drafter goes token by token, and this one proposes whole blocks: train with "
            f"`--recipe ttt --reuse {DESIGN}` to export, or run this drafter with draftgauge itself"
        )
    if config.design != DESIGN:
        reads = (
            "it reads the target's keys and values, as only the served assistants of the Gemma 4 family do"
            if config.traits.reads_kv
            else "it does not read the target's hidden states, which an EAGLE-3 drafter starts from"
        )
        raise DraftgaugeError(
            f"the {config.design} design has no EAGLE-3 layout, and no serving engine loads it: {reads}. "
            f"Train with `--reuse {DESIGN}` to export, or run this drafter with draftgauge itself"
        )
    if config.embedding_scale != 1 or config.rope_kind:
        what = "scales its token embeddings" if config.embedding_scale != 1 else "has several rotary embeddings"
        raise DraftgaugeError(
            f"a target of the family {config.target_family} {what}, which the engines' EAGLE-3 drafters do not do: "
            "they would draft something else than draftgauge does"
        )


def llama_cpp_lacks(config: ReuseConfig) -> str | None:
    """What of a drafter llama.cpp does not compute (``src/models/eagle3.cpp``); None where it computes all of it.

    Its converter refuses norms of tapped layers and says nothing of ``norm_output``, which it then leaves out.
    """
    lacks = []
    if config.norm_before_fc:
        lacks.append("a norm for each tapped layer (train with --llama-cpp)")
    if config.norm_output:
        lacks.append("states normalised from depth to depth (train with --llama-cpp)")
    if len(config.hidden_layers) != LLAMA_CPP_TAPS:
        lacks.append(f"{len(config.hidden_layers)} tapped layers (it takes {LLAMA_CPP_TAPS})")
    return " and ".join(lacks) or None


def eagle3_tensors(config: ReuseConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors of a drafter's weights.

    ``d2t`` holds offsets, the target's id minus the draft's own; ``t2d`` marks the target's ids that can be drafted.
    Tapped layers are in ascending order, as engines hand their states over whatever order the configuration has.
    """
    left = dict(weights)
    tensors = {new: left.pop(old) for old, new in _RENAMED.items()}
    order = sorted(range(len(config.hidden_layers)), key=config.hidden_layers.__getitem__)
    by_tap = tensors["fc.weight"].split(config.hidden_size, 1)
    tensors["fc.weight"] = torch.cat([by_tap[tap] for tap in order], 1)
    for place, tap in enumerate(order if config.norm_before_fc else ()):
        tensors[f"fc_norm.{place}.weight"] = left.pop(f"tap_norms.{tap}.weight")
    joined = torch.cat((left.pop(f"{_ATTENTION}from_token.weight"), left.pop(f"{_ATTENTION}from_state.weight")), 1)
    heads = (config.query_heads, config.kv_heads, config.kv_heads)
    parts = joined.split([count * config.head_dim for count in heads])
    tensors |= {f"{_LAYER}self_attn.{name}_proj.weight": part for name, part in zip("qkv", parts, strict=True)}
    gate, up = left.pop(f"{_BLOCK}mlp.gate_up.weight").chunk(2)
    tensors |= {f"{_LAYER}mlp.gate_proj.weight": gate, f"{_LAYER}mlp.up_proj.weight": up}
    if DRAFT_TOKENS in left:
        ids = left.pop(DRAFT_TOKENS).long()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(config.vocabulary, dtype=torch.bool).index_fill_(0, ids, True)
    assert not left, f"weights without a name in EAGLE-3: {sorted(left)}"
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def eagle3_config(config: ReuseConfig, dtype: torch.dtype) -> dict[str, Any]:
    """``config.json`` of the checkpoint.

    Layers are counted twice. In ``eagle_aux_hidden_state_layer_ids`` 0 is the embedding and ``i`` the output of layer
    ``i - 1`` (vLLM, speculators); SGLang reads ``eagle_config`` and adds the 1 itself. ``norm_before_fc``, a norm for
    each tapped layer, is ``fc_norm`` there; their ``norm_before_fc`` is one norm over all layers together.
    """
    rope = dict(config.rope)
    scaled = rope.get("rope_type", "default") != "default"
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.query_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocabulary,
        "draft_vocab_size": config.logits,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "rope_theta": rope.get("rope_theta"),
        "rope_scaling": rope if scaled else None,
        "max_position_embeddings": config.context,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "norm_before_fc": False,
        "fc_norm": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "num_aux_hidden_states": len(config.hidden_layers),
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in sorted(config.hidden_layers)],
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": sorted(config.hidden_layers),
        },
    }
