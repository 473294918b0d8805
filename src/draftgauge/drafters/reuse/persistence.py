"""Drafters on disk: safetensors and JSON that say what they are and which target they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.artefacts import Artefact
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError, ModelError, warn
from draftgauge.core.files import atomic_write_bytes, file_sha256, require_writable
from draftgauge.core.parts import UNCOMPRESSED, current_compression
from draftgauge.drafters.reuse.building import attach
from draftgauge.drafters.reuse.config import ReuseConfig, reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import fingerprint, was_sampled

DESCRIPTION = "drafter.json"
WEIGHTS = "drafter.safetensors"
DRAFTER = Artefact(
    "draftgauge-reuse-drafter",
    1,
    "trained drafter",
    "copy the folder that training wrote again, or train it again",
    error=ModelError,
)
OF_THE_TARGET = ("target_family", "hidden_size", "query_heads", "kv_heads", "head_dim", "vocabulary")
DRAFT_TOKENS = "d2t"  # among the weights, where there is a draft vocabulary


def target_fingerprint(module: PreTrainedModel) -> str:
    return fingerprint(module.config.name_or_path or module, texts=False)


def is_drafter(folder: str | Path) -> bool:
    return (Path(folder) / DESCRIPTION).is_file()


def is_mtp_head(folder: str | Path) -> bool:
    return is_drafter(folder) and read_config(Path(folder)).traits.own_layer


def save_drafter(folder: Path, net: ReuseNet, extra: Mapping[str, Any]) -> None:
    """Write a drafter: its trainable weights, its configuration, and JSON values that say how it was made.

    The embedding is the target's, and not among the weights.

    A kill leaves the former drafter or the new one; one whose two files do not belong together is refused when loaded.
    """
    assert net.config.target_fingerprint, "a drafter that is kept must say which target it is for"
    require_writable(folder)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    if net.d2t is not None:
        weights[DRAFT_TOKENS] = net.d2t.cpu()
    atomic_write_bytes(folder / WEIGHTS, save(weights))
    description = {
        "config": to_mapping(net.config),
        "weights_sha256": file_sha256(folder / WEIGHTS),
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "extra": dict(extra),
    }
    DRAFTER.write(folder / DESCRIPTION, description)


def read_description(folder: Path) -> dict[str, Any]:
    if not is_drafter(folder):
        raise ModelError(
            f"{folder} holds no trained drafter ({DESCRIPTION} is missing): give the folder that training wrote"
        )
    return DRAFTER.read(folder / DESCRIPTION)


def trained_depths(description: Mapping[str, Any]) -> int | None:
    return description["extra"].get("request", {}).get("depths")


def trained_prompts(description: Mapping[str, Any]) -> Path | None:
    prompts = description["extra"].get("request", {}).get("prompts")
    return None if prompts is None else Path(prompts)


def trained_compression(description: Mapping[str, Any]) -> str:
    return str(current_compression(description["extra"].get("request", {}).get("compression", UNCOMPRESSED)))


def drafter_fingerprint(folder: Path) -> str:
    description = read_description(folder)
    config = {name: value for name, value in description["config"].items() if name != "target_source"}
    return hashlib.sha256(json.dumps([config, description["weights_sha256"]], sort_keys=True).encode()).hexdigest()


def read_config(folder: Path) -> ReuseConfig:
    try:
        return from_mapping(ReuseConfig, read_description(folder)["config"], f"{folder / DESCRIPTION}: config")
    except DraftgaugeError as error:
        raise ModelError(str(error)) from error


def load_drafter(folder: str | Path, target: CachedModel, dtype: torch.dtype | None = None) -> ReuseNet:
    """Load a drafter for a target, onto its device, ready to draft; by default in the dtype of its activations.

    A target of the same network but other weights, such as a fine-tuned one, is warned of.

    Raises:
        ModelError: for a target of another network, or files that are damaged.
    """
    if target.module is None:
        raise ModelError(
            f"the drafter in {folder} reads what its target's layers compute, and a GGUF or OpenVINO target hides it: "
            "name the model that the file was made from, or draft with a language model or prompt_lookup"
        )
    path = Path(folder)
    config = read_config(path)
    weights = read_weights(path)
    made_for, this = config.target_source or config.target_family, reuse_config(target.module.config, "control")
    for name in OF_THE_TARGET:
        if getattr(config, name) != getattr(this, name):
            raise ModelError(
                f"the drafter in {path} was trained for another target, {made_for}: its {name.replace('_', ' ')} is "
                f"{getattr(config, name)}, this one's {getattr(this, name)}; load that target, or train a drafter for "
                "this one"
            )
    known = config.target_fingerprint
    if known != target_fingerprint(target.module) and not was_sampled(known, target.module.config.name_or_path):
        warn(
            f"the drafter in {path} was trained on other weights than this target's, those of {made_for}: outputs "
            "stay the target's, fewer drafted tokens may be accepted"
        )
    net = attach(config, target.module, weights.pop(DRAFT_TOKENS, None))
    if differing := sorted(net.state_dict().keys() ^ weights.keys()):
        raise ModelError(
            f"{path} does not hold the weights of its configuration, {differing[0]} among them: another version of "
            "draftgauge trained it; train it again"
        )
    net.load_state_dict(weights)
    for parameter in net.parameters():
        parameter.data = parameter.data.to(dtype or target.spec.dtype)
    return net.eval().requires_grad_(False)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """A drafter's weights by name, and its :data:`DRAFT_TOKENS` where it has a draft vocabulary."""
    path = folder / WEIGHTS
    if not path.is_file() or file_sha256(path) != read_description(folder)["weights_sha256"]:
        raise ModelError(
            f"{path} is missing or not the one that {DESCRIPTION} describes: save or copy the drafter again"
        )
    try:
        weights: dict[str, Tensor] = load(path.read_bytes())
    except SafetensorError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    return weights
