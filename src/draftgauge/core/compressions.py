"""Names of how a model's weights are held; :mod:`draftgauge.models.compression` says what they mean."""

from __future__ import annotations

from typing import Annotated, Any

UNCOMPRESSED = "uncompressed"
COMPRESSIONS = (UNCOMPRESSED, "fp32", "fp16", "bf16", "int8", "nf4")


def current_compression(name: Any) -> Any:
    """The name that a compression has now: ``uncompressed`` was ``none``."""
    return UNCOMPRESSED if name == "none" else name


Compression = Annotated[str, current_compression]
"""Type of a field of requests and files whose value :mod:`draftgauge.core.config` reads by its current name."""
