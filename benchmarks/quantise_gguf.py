"""Quantise a GGUF file of any architecture with the package gguf: norms and biases stay as they are.

python benchmarks/quantise_gguf.py MODEL.gguf MODEL-Q8_0.gguf [--kind Q8_0] [--weights FOLDER]

With the folder of the same checkpoint its layers are quantised, not the file's. Embedding and head stay as in the file,
such as Q6_K of a Q4_K_M one, which llama-quantize chooses for Q4_0 too. For architectures whose rows keep their order,
such as Qwen2.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize
from safetensors import safe_open

BY_THE_WRITER = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def quantise(source: Path, out: Path, kind: str = "Q8_0", weights: Path | None = None) -> None:
    """Write ``source`` with all matrices as ``kind``, one of those that gguf can write (Q8_0, Q5_0, Q4_0, BF16)."""
    checkpoint = None if weights is None else safe_open(weights / "model.safetensors", "pt")
    reader, wanted = GGUFReader(source), GGMLQuantizationType[kind]
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name not in BY_THE_WRITER:
            items = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], items)
    matrices = {t.name for t in reader.tensors if len(t.shape) > 1 and (weights is None or t.name.startswith("blk."))}
    for tensor in reader.tensors:
        if tensor.name in matrices:
            held = quant_shape_to_byte_shape([int(size) for size in reversed(tensor.shape)], wanted)
            writer.add_tensor_info(tensor.name, held, np.dtype(np.uint8), math.prod(held), wanted)
        else:
            kept = None if tensor.data.dtype == np.float32 else tensor.tensor_type
            writer.add_tensor_info(tensor.name, tensor.data.shape, tensor.data.dtype, tensor.n_bytes, kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in matrices:
            if checkpoint is None:
                data = dequantize(data, tensor.tensor_type)
            else:
                data = checkpoint.get_tensor(name_in_checkpoint(tensor.name)).float().numpy()
            data = quantize(data, wanted).view(np.uint8)
        writer.write_tensor_data(data)
    writer.close()


def name_in_checkpoint(name: str) -> str:
    """Such as model.layers.0.mlp.down_proj.weight for blk.0.ffn_down.weight."""
    _, layer, part, _ = name.split(".")
    block, _, projection = part.partition("_")
    inside = f"self_attn.{'o' if projection == 'output' else projection}" if block == "attn" else f"mlp.{projection}"
    return f"model.layers.{layer}.{inside}_proj.weight"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", default="Q8_0")
    parser.add_argument("--weights", type=Path)
    given = parser.parse_args()
    quantise(given.source, given.out, given.kind, given.weights)
