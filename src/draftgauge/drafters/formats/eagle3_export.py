"""A trained ``hidden`` drafter as an EAGLE-3 checkpoint for vLLM, SGLang, speculators and (trained for it) llama.cpp.

The network is that of EAGLE-3 (Li et al. 2025, arXiv 2503.01840), so exporting renames its weights and changes none:
queries, keys and values read ``[embedding; state]`` side by side, which here are two linears whose outputs are added.
The embedding is the target's, which the engines take from the target itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.formats.writing import (
    ascending,
    check_embedding,
    decoder_settings,
    taken_apart,
    vocabulary_map,
)
from draftgauge.drafters.reuse.config import ReuseConfig

DESIGN = "hidden"
LLAMA_CPP_TAPS = 3

_BLOCK, _LAYER = "blocks.0.", "midlayer."
_ATTENTION = f"{_BLOCK}self_attention."
_RENAMED = {
    f"{_BLOCK}token_norm.weight": f"{_LAYER}input_layernorm.weight",
    f"{_BLOCK}state_norm.weight": f"{_LAYER}hidden_norm.weight",
    f"{_ATTENTION}output.weight": f"{_LAYER}self_attn.o_proj.weight",
    f"{_BLOCK}mlp_norm.weight": f"{_LAYER}post_attention_layernorm.weight",
    f"{_BLOCK}mlp.down.weight": f"{_LAYER}mlp.down_proj.weight",
    "norm.weight": "norm.weight",
    "head.weight": "lm_head.weight",
}


def check_exportable(config: ReuseConfig) -> None:
    """Refuse a drafter that has no place in the EAGLE-3 layout, saying why."""
    if config.block:
        raise DraftgaugeError(
            "an EAGLE-3 drafter goes token by token, and this one proposes whole blocks: export it as dflash, or train "
            f"with `--recipe ttt --reuse {DESIGN}`"
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
    check_embedding(config, "EAGLE-3")


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


def checkpoint_tensors(config: ReuseConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors of a drafter's weights."""
    left = dict(weights)
    tensors = {new: left.pop(old) for old, new in _RENAMED.items()}
    tensors["fc.weight"] = ascending(config, left.pop("fuse.weight"))
    for place, layer in enumerate(sorted(config.hidden_layers) if config.norm_before_fc else ()):
        tensors[f"fc_norm.{place}.weight"] = left.pop(f"tap_norms.{config.hidden_layers.index(layer)}.weight")
    joined = torch.cat((left.pop(f"{_ATTENTION}from_token.weight"), left.pop(f"{_ATTENTION}from_state.weight")), 1)
    tensors |= taken_apart(config, joined, left.pop(f"{_BLOCK}mlp.gate_up.weight"), _LAYER)
    tensors |= vocabulary_map(config, left)
    assert not left, f"weights without a name in EAGLE-3: {sorted(left)}"
    return tensors


def checkpoint_config(config: ReuseConfig) -> dict[str, Any]:
    """``config.json`` of the checkpoint, but for the dtype.

    Layers are counted twice. In ``eagle_aux_hidden_state_layer_ids`` 0 is the embedding and ``i`` the output of layer
    ``i - 1`` (vLLM, speculators); SGLang reads ``eagle_config`` and adds the 1 itself. ``norm_before_fc``, a norm for
    each tapped layer, is ``fc_norm`` there; their ``norm_before_fc`` is one norm over all layers together.
    """
    rope = dict(config.rope)
    scaled = rope.get("rope_type", "default") != "default"
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **decoder_settings(config),
        "draft_vocab_size": config.logits,
        "rope_theta": rope.get("rope_theta"),
        "rope_scaling": rope if scaled else None,
        "mlp_bias": False,
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
