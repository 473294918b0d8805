"""Checkpoints that describe themselves: tensors in safetensors, everything else in JSON, replaced atomically."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text

LATEST = "latest.json"


def save_checkpoint(
    folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], state: dict[str, Any]
) -> Path:
    """Write weights, optimiser states and a JSON state; the newest finished checkpoint is the one that counts."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / f"step-{state['step']:07d}"
    shutil.rmtree(checkpoint, ignore_errors=True)
    checkpoint.mkdir()
    # Tied weights share storage, which safetensors refuses: each storage is written once, as parameters() lists it.
    save_file(
        {name: p.detach().contiguous() for name, p in model.named_parameters()}, checkpoint / "weights.safetensors"
    )
    tensors: dict[str, Tensor] = {}
    for n, optimizer in enumerate(optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"{n}.{index}.{key}": torch.as_tensor(value).contiguous() for key, value in values.items()}
    save_file(tensors, checkpoint / "optimizers.safetensors")
    (checkpoint / "state.json").write_text(json.dumps(state, indent=1))
    atomic_write_text(folder / LATEST, json.dumps({"checkpoint": checkpoint.name}))
    for old in folder.glob("step-*"):
        if old != checkpoint:
            shutil.rmtree(old, ignore_errors=True)
    return checkpoint


def load_checkpoint(
    folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any] | None:
    """Restore the folder's newest checkpoint in place and return its JSON state; None if it has no checkpoint.

    Raises:
        DraftgaugeError: if a file of it is missing or damaged.
    """
    if not (folder / LATEST).exists():
        return None
    try:
        checkpoint = folder / json.loads((folder / LATEST).read_text())["checkpoint"]
        weights = load_file(checkpoint / "weights.safetensors")
        tensors = load_file(checkpoint / "optimizers.safetensors")
        state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DraftgaugeError(
            f"the checkpoint in {folder} cannot be read ({error}): remove that folder, and the training begins anew"
        ) from error
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    for n, optimizer in enumerate(optimizers):
        current = optimizer.state_dict()
        current["state"] = {}
        for key, value in tensors.items():
            owner, index, name = key.split(".", 2)
            if int(owner) == n:
                current["state"].setdefault(int(index), {})[name] = value
        optimizer.load_state_dict(current)
    return state
