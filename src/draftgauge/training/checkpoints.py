"""Checkpoints: tensors in safetensors, state in JSON, a checksum of each file; the newest whole one counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draftgauge.core.artefacts import Artefact, read_json
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import explained, file_sha256, sync_tree

LATEST = "latest.json"
WEIGHTS, OPTIMIZERS, STATE = FILES = ("weights.safetensors", "optimizers.safetensors", "state.json")
REMEDY = "remove the folder of checkpoints, and the training begins anew"
CHECKPOINT = Artefact("draftgauge-checkpoint", 1, "note of the newest checkpoint", REMEDY)


def save_checkpoint(
    folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], state: dict[str, Any]
) -> None:
    """Write weights, optimiser states and a JSON state; then remove the checkpoint before."""
    checkpoint = folder / f"step-{state['step']:07d}"
    # Tied weights share storage, which safetensors refuses: each storage is written once, as parameters() lists it.
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    moments: dict[str, Tensor] = {}
    for n, optimizer in enumerate(optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            moments |= {f"{n}.{index}.{key}": torch.as_tensor(value).contiguous() for key, value in values.items()}
    with explained(checkpoint):
        shutil.rmtree(checkpoint, ignore_errors=True)
        checkpoint.mkdir(parents=True)
        save_file(weights, checkpoint / WEIGHTS)
        save_file(moments, checkpoint / OPTIMIZERS)
        (checkpoint / STATE).write_text(json.dumps(state, indent=1))
        sync_tree(checkpoint)
    digests = {name: file_sha256(checkpoint / name) for name in FILES}
    CHECKPOINT.write(folder / LATEST, {"checkpoint": checkpoint.name, "files": digests})
    for old in folder.glob("step-*"):
        if old != checkpoint:
            shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any] | None:
    """Restore the folder's newest checkpoint in place and return its JSON state; None if it has no checkpoint."""
    if not (folder / LATEST).exists():
        return None
    latest = CHECKPOINT.read(folder / LATEST)
    checkpoint = folder / latest["checkpoint"]
    for name, digest in latest["files"].items():
        path = checkpoint / name
        if not path.is_file() or file_sha256(path) != digest:
            raise DraftgaugeError(f"{path} is missing or does not match its checksum: {REMEDY}")
    weights, tensors = load_file(checkpoint / WEIGHTS), load_file(checkpoint / OPTIMIZERS)
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
    return read_json(checkpoint / STATE)
