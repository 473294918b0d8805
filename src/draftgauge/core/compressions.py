"""Names of how a model's weights are held; :mod:`draftgauge.models.compression` says what they mean."""

from __future__ import annotations

from typing import Annotated, Any

UNCOMPRESSED = "uncompressed"
INT8_WEIGHT, INT8_DYNAMIC, INT4 = "int8-weight", "int8-dynamic", "int4"
WEIGHT_ONLY = (INT8_WEIGHT, INT8_DYNAMIC, INT4)  # of PyTorch's own CPU kernels, activations between them in bfloat16
COMPRESSIONS = (UNCOMPRESSED, "fp32", "fp16", "bf16", "int8", INT8_WEIGHT, INT8_DYNAMIC, "nf4", INT4)

COMPRESSED_BEFORE = ("gguf", "openvino")  # how engines are called whose files hold weights as they were made

# 0, 1, 2 for 16 bits a weight or more, 8 and 4, of the names that say it.
LEVELS = {
    **dict.fromkeys((UNCOMPRESSED, "fp32", "fp16", "bf16"), 0),
    **dict.fromkeys(("int8", INT8_WEIGHT, INT8_DYNAMIC, "bnb-int8", "fp8", "fbgemm_fp8", "eetq"), 1),
    **dict.fromkeys(("nf4", INT4, "bnb-nf4", "bnb-fp4", "awq", "mxfp4"), 2),
}


def held_as(compression: str, engine: str) -> str:
    """The compression; empty of a GGUF file or an OpenVINO folder, which are named without one."""
    return "" if engine.startswith(COMPRESSED_BEFORE) else compression


def current_compression(name: Any) -> Any:
    """The name that a compression has now: ``uncompressed`` was ``none``."""
    return UNCOMPRESSED if name == "none" else name


Compression = Annotated[str, current_compression]
"""Type of a field of requests and files whose value :mod:`draftgauge.core.config` reads by its current name."""
