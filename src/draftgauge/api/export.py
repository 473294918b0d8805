"""A trained drafter in the format of serving engines."""

from __future__ import annotations

import os
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import remove_temporaries
from draftgauge.core.verb import verb
from draftgauge.drafters.formats import dflash, eagle3
from draftgauge.drafters.formats.writing import ORIGIN, write_checkpoint
from draftgauge.drafters.mtp import files as mtp
from draftgauge.drafters.reuse.persistence import read_config, read_description, read_weights, trained_depths
from draftgauge.models.folder import resolve_source
from draftgauge.requests import ExportRequest


@verb(ExportRequest)
def export(request: ExportRequest) -> list[dict[str, Any]]:
    """Write a trained drafter as serving engines load it.

    Returns:
        One row: format, drafter, folder, tensors, parameters, target, and the depths that the drafter was trained for
        (None if unknown). ``llama_cpp_lacks`` is why llama.cpp cannot run an EAGLE-3 drafter, None where it can.

    Raises:
        ModelError: if the folder holds no drafter, or a damaged one.
        DraftgaugeError: if the format has no place for a drafter of its design, or the folder cannot be written
            or holds something else.
    """
    if os.path.realpath(request.out) == os.path.realpath(request.drafter):
        raise DraftgaugeError(f"{request.out} is the drafter itself: choose another folder for the checkpoint")
    if request.out.is_dir():
        remove_temporaries(request.out)  # of an export that was killed before it left more
    if request.out.is_dir() and any(request.out.iterdir()) and not (request.out / ORIGIN).exists():
        raise DraftgaugeError(f"{request.out} holds files that no export left: choose an empty folder")
    config = read_config(request.drafter)
    format_ = request.format or ("mtp" if config.traits.own_layer else "dflash" if config.block else "eagle3")
    layout = {"eagle3": eagle3, "dflash": dflash, "mtp": mtp}[format_]
    layout.check_exportable(config)
    tensors = layout.checkpoint_tensors(config, read_weights(request.drafter))
    write_checkpoint(request.drafter, request.out, config, tensors, layout.checkpoint_config(config))
    source = config.target_source
    return [
        {
            "format": format_,
            "drafter": str(request.drafter),
            "folder": str(request.out),
            "tensors": len(tensors),
            "parameters": sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point()),
            "target": str(resolve_source(source)) if source else None,
            "depths": trained_depths(read_description(request.drafter)),
            "llama_cpp_lacks": eagle3.llama_cpp_lacks(config) if format_ == "eagle3" else None,
        }
    ]
