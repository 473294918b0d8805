"""A checkpoint as a network for its target: weights checked, what is borrowed of the target, and the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.core.errors import ModelError
from draftgauge.drafters.formats.decoder import DrafterNet, Weights
from draftgauge.drafters.formats.dflash import DFlashNet
from draftgauge.drafters.formats.eagle3 import Eagle3Net
from draftgauge.drafters.formats.files import read_tensors
from draftgauge.drafters.formats.layouts import DFlashLayout, Eagle3Layout, Layout
from draftgauge.drafters.formats.shapes import DRAFTED, EMBEDDING, FUSE, HEAD, TO_TARGET, check_weights
from draftgauge.models.base import CachedModel
from draftgauge.models.tap_rules import specforge_taps

_UNUSED = ("verifier_", "rotary_emb.")  # of training, and tables that are computed


def build_net(source: str | Path, layout: Layout, target: CachedModel, allow_pickle: bool = False) -> DrafterNet:
    """Load a drafter for a target, onto its device and in the dtype of its activations."""
    if target.module is None:
        raise ModelError(
            f"{source} reads its target's hidden states, and a GGUF target shows none: name the model that it was "
            "converted from, or draft with a language model or prompt_lookup"
        )
    text = target.module.config.get_text_config()
    tensors = _by_name(read_tensors(source, allow_pickle))
    layout = replace(layout, taps=layout.taps or specforge_taps(text.num_hidden_layers))
    if isinstance(layout, Eagle3Layout):  # flat configurations leave these out
        layout = replace(
            layout,
            norm_before_fc=layout.norm_before_fc or "input_norm.weight" in tensors,
            fc_norm=layout.fc_norm or "fc_norm.0.weight" in tensors,
        )
    check_target(source, layout, tensors, target)
    check_weights(source, layout, tensors, text.hidden_size)
    ids = target_ids(source, layout, tensors)
    device, dtype = target.spec.device, target.spec.dtype
    held = {name: tensor.to(device, dtype) for name, tensor in tensors.items() if name not in (TO_TARGET, DRAFTED)}
    # DFlash calls the target's layer, which in Gemma's family scales its table; EAGLE-3 takes the table as it is
    layer, whole = target.module.get_input_embeddings(), isinstance(layout, DFlashLayout) and EMBEDDING not in held
    embed = layer if whole else partial(F.embedding, weight=held.get(EMBEDDING, layer.weight.detach()))
    # of a target on several devices the head may lie on another one than the states
    head = held[HEAD] if HEAD in held else target.module.get_output_embeddings().weight.detach().to(device)
    weights, to_target = Weights(held, layout.decoder), None if ids is None else ids.to(device)
    kind: type[DrafterNet] = Eagle3Net if isinstance(layout, Eagle3Layout) else DFlashNet
    return kind(layout, weights, embed, head, to_target)


def check_target(source: str | Path, layout: Layout, tensors: Mapping[str, Tensor], target: CachedModel) -> None:
    """Refuse a target of other layers, width or vocabulary than a drafter was made for."""
    text = target.module.config.get_text_config()
    layers, width, vocabulary = text.num_hidden_layers, text.hidden_size, target.spec.vocabulary
    # check_weights says what is missing
    fused = tensors[FUSE].shape[-1] if FUSE in tensors else width * len(layout.taps)
    per_tap, left = divmod(fused, len(layout.taps))
    if left:
        raise ModelError(
            f"{source}: {FUSE} takes in {fused} numbers, which the {len(layout.taps)} target layers of its config.json "
            "do not share evenly: the two are of different checkpoints"
        )
    least = max(layout.taps) + 1
    if per_tap != width or (layout.target_layers or layers) != layers or least > layers:
        made_for = f"{layout.target_layers}" if layout.target_layers else f"at least {least}"
        raise ModelError(
            f"{source} was made for a target of {made_for} layers and width {per_tap}, this one has {layers} and "
            f"{width}: load the target that it was made for"
        )
    if least == layers:
        raise ModelError(
            f"{source} reads the target's last layer, of which engines give states before or after the final norm: "
            "drafters that read layers below it are run"
        )
    if layout.decoder.vocabulary != vocabulary:
        raise ModelError(
            f"{source} was made for a target of {layout.decoder.vocabulary} tokens, this one has {vocabulary}: "
            "load the target that it was made for"
        )
    borrowed = [name for name in (EMBEDDING, HEAD) if name not in tensors]
    if layout.maps_vocabulary and HEAD in borrowed:
        raise ModelError(f"{source} drafts {layout.draft_vocabulary} of {vocabulary} tokens and has no {HEAD} for them")
    if borrowed and layout.decoder.hidden_size != width:
        raise ModelError(
            f"{source} has no {' and no '.join(borrowed)}, and cannot take the target's: they are of width {width}, "
            f"not {layout.decoder.hidden_size}"
        )


def target_ids(source: str | Path, layout: Layout, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """``[V]`` the target's ids of the tokens that are drafted; None where all are."""
    if TO_TARGET not in tensors:
        return None
    ids = torch.arange(layout.draft_vocabulary) + tensors[TO_TARGET].long()
    inside = int(ids.min()) >= 0 and int(ids.max()) < layout.decoder.vocabulary
    if not inside or len(ids.unique()) < len(ids):
        raise ModelError(
            f"{source}: {TO_TARGET} does not map its {len(ids)} tokens to as many of the target's "
            f"{layout.decoder.vocabulary}: it must hold offsets, the target's id less the drafter's own"
        )
    if DRAFTED in tensors and not torch.equal(tensors[DRAFTED].bool().nonzero()[:, 0], ids.sort().values):
        raise ModelError(
            f"{source}: {TO_TARGET} and {DRAFTED} name different tokens, so one of them is of another checkpoint: "
            "download it again"
        )
    return ids


def _by_name(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by speculators' names; ``midlayer`` of SafeAILab and SGLang is the first layer."""
    named = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix("model.")
        plain = f"layers.0.{plain.removeprefix('midlayer.')}" if plain.startswith("midlayer.") else plain
        if plain in named:
            raise ModelError(f"{plain} is there twice, under two names: the checkpoint was put together of two")
        if not plain.startswith(_UNUSED) and not plain.endswith("rotary_emb.inv_freq"):
            named[plain] = tensor
    return named
