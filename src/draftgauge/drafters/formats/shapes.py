"""The weights that each layout has, by speculators' names, and their shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from draftgauge.core.errors import ModelError
from draftgauge.drafters.formats.layouts import DecoderSpec, DFlashLayout, Eagle3Layout, Layout

FUSE, EMBEDDING, HEAD = "fc.weight", "embed_tokens.weight", "lm_head.weight"
TO_TARGET, DRAFTED = "d2t", "t2d"  # offsets of the target's ids from the draft's; which of the target's are drafted
PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of weights that need no scales
SHOWN = 6  # names that a message lists

Shapes = dict[str, tuple[int, ...]]


def check_weights(source: str | Path, layout: Layout, tensors: Mapping[str, Tensor], target_width: int) -> None:
    """Refuse weights that lack some of a layout's, have others, or are of other shapes, quantised or not finite."""
    wanted, optional = _shapes(layout, tensors, target_width)
    missing, extra = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys() - optional.keys()
    if missing or extra:
        said = [f"lacks {_some(missing)}"] if missing else []
        said += [f"has {_some(extra)} beside what is wanted"] if extra else []
        raise ModelError(
            f"{source} is no {layout.family} checkpoint of a layout that is run here: it {' and '.join(said)}"
        )
    for name, tensor in tensors.items():
        shape = wanted.get(name) or optional[name]
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{source}: {name} is {list(tensor.shape)}, and by its config.json {list(shape)}")
        if (tensor.dtype not in PLAIN) != (name in (TO_TARGET, DRAFTED)):
            raise ModelError(f"{source}: {name} holds {tensor.dtype} numbers: give a checkpoint that is not quantised")
        if tensor.dtype in PLAIN and not tensor.sum(dtype=torch.float64).isfinite():
            raise ModelError(f"{source}: {name} holds numbers that are NaN or infinite: download the checkpoint again")


def _shapes(layout: Layout, found: Collection[str], target_width: int) -> tuple[Shapes, Shapes]:
    """Of the weights that must be there, and of those that may."""
    decoder, fused = layout.decoder, len(layout.taps) * target_width
    hidden, vocabulary, drafted = decoder.hidden_size, decoder.vocabulary, layout.draft_vocabulary
    wanted: Shapes = {FUSE: (hidden, fused), "norm.weight": (hidden,)}
    optional: Shapes = {EMBEDDING: (vocabulary, hidden), HEAD: (drafted, hidden), DRAFTED: (vocabulary,)}
    (wanted if layout.maps_vocabulary else optional)[TO_TARGET] = (drafted,)
    for layer in range(decoder.layers):
        reads_token = layer == 0 or f"layers.{layer}.hidden_norm.weight" in found
        _add_layer(wanted, optional, decoder, f"layers.{layer}.", reads_token and isinstance(layout, Eagle3Layout))
        normed = decoder.head_norms or any(f"layers.{layer}.self_attn.{name}_norm.weight" in found for name in "qk")
        wanted |= {f"layers.{layer}.self_attn.{name}_norm.weight": (decoder.head_dim,) for name in "qk" if normed}
    if isinstance(layout, Eagle3Layout):
        wanted[HEAD] = optional.pop(HEAD)
        if layout.norm_before_fc:
            wanted["input_norm.weight"] = (fused,)
        if layout.fc_norm:
            wanted |= {f"fc_norm.{tap}.weight": (target_width,) for tap in range(len(layout.taps))}
    if isinstance(layout, DFlashLayout):
        wanted["hidden_norm.weight"] = (hidden,)
        _add_heads(wanted, layout)
    return wanted, optional


def _add_layer(wanted: Shapes, optional: Shapes, decoder: DecoderSpec, prefix: str, takes_token: bool) -> None:
    hidden, dim, width = decoder.hidden_size, decoder.head_dim, decoder.intermediate_size
    inputs, queries, keys = hidden * (1 + takes_token), decoder.heads * dim, decoder.kv_heads * dim
    linears = {"self_attn.q_proj": (queries, inputs), "self_attn.o_proj": (hidden, queries)}
    linears |= {"self_attn.k_proj": (keys, inputs), "self_attn.v_proj": (keys, inputs)}
    linears |= {"mlp.gate_proj": (width, hidden), "mlp.up_proj": (width, hidden), "mlp.down_proj": (hidden, width)}
    norms = ["input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if takes_token else [])]
    wanted |= {f"{prefix}{name}.weight": shape for name, shape in linears.items()}
    wanted |= {f"{prefix}{name}.weight": (hidden,) for name in norms}
    for name, shape in linears.items():
        (wanted if name.split(".")[0] in decoder.biased else optional)[f"{prefix}{name}.bias"] = shape[:1]


def _add_heads(wanted: Shapes, layout: DFlashLayout) -> None:
    hidden, rank = layout.decoder.hidden_size, layout.markov_rank
    if layout.markov:
        wanted["markov_head.markov_w1.weight"] = (layout.decoder.vocabulary, rank)
        wanted["markov_head.markov_w2.weight"] = (layout.draft_vocabulary, rank)
    if layout.markov in ("gated", "rnn"):
        name, out, states = ("gate_proj", rank, 1) if layout.markov == "gated" else ("joint_proj", 3 * rank, 2)
        wanted |= {f"markov_head.{name}.weight": (out, hidden + states * rank), f"markov_head.{name}.bias": (out,)}
    if layout.confidence:
        inputs = hidden + (rank if layout.confidence_reads_token else 0)
        wanted |= {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:SHOWN]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
