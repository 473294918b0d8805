"""Tiny OpenVINO folders: a stored export of optimum-intel, and the same with other weights."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from transformers import PreTrainedModel

from tiny import tiny_model

# `optimum-cli export openvino --weight-format fp32` (optimum-intel 2.2, OpenVINO 2026.4.1) of `twin()`
STORED = Path(__file__).parent / "models" / "openvino_tiny.zip"
MODEL, WEIGHTS = "openvino_model.xml", "openvino_model.bin"


def need_openvino() -> Any:
    for name in ("openvino_genai", "openvino"):
        module = pytest.importorskip(name, reason="needs OpenVINO: pip install 'draftgauge[openvino]'")
    return module


def twin() -> PreTrainedModel:
    """The transformers model that was exported."""
    return tiny_model("qwen2", hidden_size=32, intermediate_size=48, head_dim=8, max_position_embeddings=96)


def stored_folder(folder: Path, noise: float = 0.0) -> Path:
    """The export in a folder, with noise on its matrices: a draft that is right now and then."""
    with zipfile.ZipFile(STORED) as archive:
        archive.extractall(folder)
    weights = np.frombuffer((folder / WEIGHTS).read_bytes(), np.uint8).copy()
    generator = np.random.default_rng(0)
    for layer in ElementTree.parse(folder / MODEL).iter("layer"):
        if layer.get("type") == "Const" and layer.get("name", "").startswith("self."):
            data = layer.find("data")
            assert data is not None
            begin, size = int(data.get("offset", 0)), int(data.get("size", 0))
            values = weights[begin : begin + size].view(np.float32)
            values += noise * values.std() * generator.standard_normal(len(values)).astype(np.float32)
    (folder / WEIGHTS).write_bytes(weights.tobytes())
    return folder
