"""A checkpoint as a network for its target: its kind, weights checked, what is borrowed, and the vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.core.errors import ModelError
from draftgauge.drafters.formats.decoder import DrafterNet, Weights
from draftgauge.drafters.formats.dflash import DFlashLayout, DFlashNet
from draftgauge.drafters.formats.dflash2 import DFlash2Layout, DFlash2Net
from draftgauge.drafters.formats.dspark import DSparkLayout, DSparkNet
from draftgauge.drafters.formats.eagle3 import Eagle3Layout, Eagle3Net
from draftgauge.drafters.formats.files import read_tensors
from draftgauge.drafters.formats.layout import DRAFTED, EMBEDDING, FUSE, HEAD, MASK_STATE, TO_TARGET, Layout
from draftgauge.drafters.formats.peagle import PEagleLayout, PEagleNet
from draftgauge.drafters.formats.settings import MASKS, Settings
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import specforge_taps

FORMATS = (
    "EAGLE-3 and P-EAGLE (SafeAILab, SGLang, DeepSpec, speculators), DFlash, DFlash2 and DSpark (z-lab, SpecForge, "
    "DeepSpec, speculators)"
)
FAMILIES: dict[str, tuple[type[Eagle3Layout | DFlashLayout], type[DrafterNet]]] = {
    "eagle3": (Eagle3Layout, Eagle3Net),
    "peagle": (PEagleLayout, PEagleNet),
    "dflash": (DFlashLayout, DFlashNet),
    "dflash2": (DFlash2Layout, DFlash2Net),
    "dspark": (DSparkLayout, DSparkNet),
}
_BLOCKS = ("dflash", "dflash2", "dspark")
PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of weights that need no scales
SHOWN = 6  # names that a message lists
_UNUSED = ("verifier_", "rotary_emb.")  # of training, and tables that are computed


def read_layout(config: Mapping[str, Any], where: str) -> Layout:
    """The layout of a checkpoint, ``where`` naming it in messages."""
    decoder, nested = config.get("transformer_layer_config") or config, config.get("dflash_config") or {}
    reader, kind = Settings(config, decoder, nested, where), config.get("speculators_model_type")
    names = " ".join(config.get("architectures") or ()).lower()
    block = next((name for name in _BLOCKS if f"{name}draftmodel" in names or f"{name}model" in names), None)
    if kind in FAMILIES:
        return FAMILIES[str(kind)][0].read(reader)
    if kind is None and block is not None:
        of_dspark = block != "dflash2" and ("markov_rank" in nested or reader.get("projector_type") == "dspark")
        return FAMILIES["dspark" if of_dspark else block][0].read(reader)
    if kind is None and ("eagle3" in names or "peagle" in names or not any(n in names for n in ("eagle", *_BLOCKS))):
        parallel = "peagle" in names or any(reader.get(name) is not None for name in MASKS)
        return FAMILIES["peagle" if parallel else "eagle3"][0].read(reader)
    own_code = "; its own Python code (auto_map) is not run" if "auto_map" in config else ""
    raise ModelError(
        f"{where} is a drafter of a format that is not read here (speculators_model_type {kind!r}, architectures "
        f"{config.get('architectures')!r}){own_code}. These are: {FORMATS}"
    )


def build_net(source: str | Path, layout: Layout, target: CachedModel, allow_pickle: bool = False) -> DrafterNet:
    """Load a drafter for a target, onto its device and in the dtype of its activations."""
    if target.module is None:
        raise ModelError(
            f"{source} reads its target's hidden states, which a GGUF or OpenVINO target hides: name the model it was "
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
    return FAMILIES[layout.family][1](layout, weights, embed, head, to_target)


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
            named[plain] = tensor.flatten() if plain == MASK_STATE else tensor
    return named


def check_weights(source: str | Path, layout: Layout, tensors: Mapping[str, Tensor], target_width: int) -> None:
    """Refuse weights that lack some of a layout's, have others, or are of other shapes, quantised or not finite."""
    wanted, optional = layout.shapes(tensors, target_width)
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


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:SHOWN]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
