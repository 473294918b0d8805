"""A trained block-wise ``hidden`` drafter as a DFlash checkpoint of speculators, as vLLM loads it.

The network is that of DFlash (arXiv 2602.06036) where it was trained with a mask token: weights are renamed, and none
is changed. Embedding and head are the target's; of the head the rows of a draft vocabulary are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from draftgauge.models.reference import resolve_source

SPECULATORS_VERSION = "0.9.0"  # whose configuration this is
_RENAMED = {"context_norm.weight": "hidden_norm.weight", "norm.weight": "norm.weight"}
_OF_LAYER = {
    "state_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.down": "mlp.down_proj",
}


def check_exportable(config: ReuseConfig) -> None:
    """Refuse a drafter that has no place in the DFlash layout, saying which setting stands against it."""
    if not config.block:
        raise DraftgaugeError("a DFlash drafter proposes whole blocks, and this one goes token by token: use eagle3")
    if config.design != "hidden":
        raise DraftgaugeError(
            f"the {config.design} design has no DFlash layout, which reads the target's hidden states and nothing else "
            "of it. Train with `--recipe block --reuse hidden` to export, or run this drafter with draftgauge itself"
        )
    if not config.dflash:
        raise DraftgaugeError(
            "this drafter was trained without --dflash: its mask is learned, its tapped layers are normalised, its "
            "queries and keys are not, and the place of the last token predicts. Train it with --dflash to export"
        )
    if config.markov_rank or config.confidence_head:
        what = "a Markov head (markov_rank)" if config.markov_rank else "a confidence head (confidence_head)"
        raise DraftgaugeError(f"this drafter has {what}, which DFlash lacks: train it without")
    check_embedding(config, "DFlash")


def checkpoint_tensors(config: ReuseConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors of a drafter's weights."""
    left = dict(weights)
    tensors = {new: left.pop(old) for old, new in _RENAMED.items()}
    tensors["fc.weight"] = ascending(config, left.pop("fuse.weight"))
    for number in range(config.layers):
        layer = f"layers.{number}."
        tensors |= {f"{layer}{new}.weight": left.pop(f"{layer}{old}.weight") for old, new in _OF_LAYER.items()}
        heads, gate_up = left.pop(f"{layer}attention.from_state.weight"), left.pop(f"{layer}mlp.gate_up.weight")
        tensors |= taken_apart(config, heads, gate_up, layer)
    head, vocabulary = left.pop("head.weight"), vocabulary_map(config, left)
    tensors |= {"lm_head.weight": head} | vocabulary if vocabulary else {}
    assert not left, f"weights without a name in DFlash: {sorted(left)}"
    return tensors


def checkpoint_config(config: ReuseConfig) -> dict[str, Any]:
    """``config.json`` of the checkpoint, but for the dtype: speculators' DFlash, whose layers are Qwen3's.

    The block has a place for the last token, which predicts nothing. Tapped layers are counted from the embedding on.
    """
    source = config.target_source
    proposal = {"proposal_type": "greedy", "speculative_tokens": config.block, "verifier_accept_k": 1}
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"accept_tolerance": 0.0}],
            "verifier": {"name_or_path": str(resolve_source(source)) if source else None, "architectures": []},
        },
        "aux_hidden_state_layer_ids": [layer + 1 for layer in sorted(config.hidden_layers)],
        "block_size": config.block + 1,
        "mask_token_id": config.mask_token,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,  # no layer has a window, but vLLM takes it for every layer
        "draft_vocab_size": config.logits,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **decoder_settings(config),
            "model_type": "qwen3",
            "layer_types": ["full_attention"] * config.layers,
            "use_sliding_window": False,
        },
    }
