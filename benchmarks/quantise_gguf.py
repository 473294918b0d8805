"""Quantise a GGUF file of any architecture with the package gguf: norms and biases stay as they are.

python benchmarks/quantise_gguf.py MODEL.gguf MODEL-Q8_0.gguf [--kind Q8_0]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

BY_THE_WRITER = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def quantise(source: Path, out: Path, kind: str = "Q8_0") -> None:
    """Write ``source`` with all matrices as ``kind``, one of those that gguf can write (Q8_0, Q5_0, Q4_0, BF16)."""
    reader, wanted = GGUFReader(source), GGMLQuantizationType[kind]
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name not in BY_THE_WRITER:
            items = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], items)
    for tensor in reader.tensors:
        if len(tensor.shape) > 1:
            held = quant_shape_to_byte_shape([int(size) for size in reversed(tensor.shape)], wanted)
            writer.add_tensor_info(tensor.name, held, np.dtype(np.uint8), math.prod(held), wanted)
        else:
            writer.add_tensor_info(tensor.name, tensor.data.shape, tensor.data.dtype, tensor.n_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        matrix = len(tensor.shape) > 1
        data = quantize(dequantize(tensor.data, tensor.tensor_type), wanted) if matrix else tensor.data
        writer.write_tensor_data(data.view(np.uint8) if matrix else data)
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", default="Q8_0")
    given = parser.parse_args()
    quantise(given.source, given.out, given.kind)
