"""What an OpenVINO folder is, as optimum-intel exports it, and which of them draftgauge cannot run, and why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers import PreTrainedConfig

from draftgauge.core.errors import ModelError
from draftgauge.models.folder import check_pointers, read_mapping

MODEL, WEIGHTS = "openvino_model.xml", "openvino_model.bin"
OF_IMAGES = "openvino_language_model.xml"  # of a model that sees images, beside its other parts
EXPORT = "optimum-cli export openvino --model MODEL --task text-generation-with-past FOLDER"
FIRST = "first_row"
INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}


def is_openvino(source: str | Path) -> bool:
    """Whether a folder holds an exported model, or a part of one, and no weights of transformers."""
    folder = Path(source)
    names = (MODEL, WEIGHTS, OF_IMAGES)
    return any((folder / name).is_file() for name in names) and not any(folder.glob("*.safetensors"))


def check_files(folder: Path) -> None:
    """Refuse a folder that is not the whole export of a language model."""
    if (folder / OF_IMAGES).is_file():
        raise ModelError(
            f"{folder} was exported with its parts for images, and draftgauge runs text alone: export a language model"
        )
    missing = [name for name in (MODEL, WEIGHTS, "config.json") if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {' and '.join(missing)}: copy the rest of the export, or repeat it ({EXPORT})"
        )
    check_pointers(folder)


def check_graph(model: Any, config: PreTrainedConfig, folder: Path) -> None:
    """Refuse an ``openvino.Model`` that does not take tokens and positions, or whose state cannot be rolled back."""
    inputs = {port.any_name: port.partial_shape.rank.get_length() for port in model.inputs}
    states = {variable.info.variable_id: variable.info.data_shape for variable in model.get_variables()}
    if "beam_idx" not in inputs or not states:
        raise ModelError(f"{folder} is a model without state, which starts anew at every pass: export it with {EXPORT}")
    if set(inputs) != INPUTS or inputs["position_ids"] != 2:
        odd = ", ".join(sorted(INPUTS ^ set(inputs))) or "position_ids of several dimensions"
        raise ModelError(f"{folder} takes other inputs than a language model of text ({odd}): choose another model")
    fixed = [name for name, shape in states.items() if shape.rank.get_length() != 4 or not shape[2].is_dynamic]
    if fixed:
        raise ModelError(
            f"the state of {folder} cannot be rolled back, which speculation needs ({fixed[0]} is no keys or values of "
            "single tokens): choose a model with attention in every layer"
        )
    kinds = getattr(config, "layer_types", None) or ["sliding" if getattr(config, "sliding_window", None) else "full"]
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None) or 0
    if any(not kind.startswith("full") for kind in kinds) and window < config.max_position_embeddings:
        raise ModelError(
            f"{folder} attends to windows of {window or 'some'} tokens, in which OpenVINO counts tokens that were "
            "rolled back: choose a model with full attention in every layer, or the folder it was exported from"
        )


def logits_from_a_row(model: Any) -> bool:
    """Give the graph an input :data:`FIRST`, the row from which logits are computed, and say whether that was possible.

    Of a long prompt only the last row is asked for, and the head is the largest matrix of a small model.
    """
    from openvino import opset15 as ops

    head = model.output("logits").get_node().input_value(0).get_node()
    if head.get_type_name() != "MatMul" or head.input(0).get_partial_shape().rank.get_length() != 3:
        return False
    first = ops.parameter([1], np.int64, name=FIRST)
    first.output(0).set_names({FIRST})
    end, step, rows = (ops.constant([value], np.int64) for value in (2**31 - 1, 1, 1))
    head.input(0).replace_source_output(ops.slice(head.input_value(0), first, end, step, rows).output(0))
    model.add_parameters([first])
    model.validate_nodes_and_infer_types()
    return True


def generation_settings(folder: Path) -> SimpleNamespace:
    path = folder / "generation_config.json"
    return SimpleNamespace(**(read_mapping(path) if path.is_file() else {}))
