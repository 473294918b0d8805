"""The figures that the paper and its author's result files give, shown beside the recomputed ones.

Source: arXiv 2605.02888 and the tables published with it under the MIT licence.
"""

from __future__ import annotations

from typing import Any

POLICY_TOKENS: dict[str, dict[str, float]] = {
    "fixed-4": {"fp16": 3.67, "int8": 3.75, "nf4": 3.78, "all": 3.73},
    "fixed-best": {"fp16": 5.67, "int8": 5.84, "nf4": 5.92, "all": 5.81},
    "task-oracle": {"fp16": 2.68, "int8": 5.43, "nf4": 4.09, "all": 4.07},
    "SpecKV-fast": {"fp16": 5.68, "int8": 5.85, "nf4": 5.93, "all": 5.82},
    "SpecKV-accurate": {"fp16": 6.26, "int8": 6.36, "nf4": 6.55, "all": 6.39},
}
INTERVALS: dict[str, tuple[float, float]] = {
    "fixed-4": (3.666, 3.794),
    "fixed-best": (5.673, 5.952),
    "task-oracle": (3.949, 4.188),
    "SpecKV-fast": (5.690, 5.963),
    "SpecKV-accurate": (6.220, 6.560),
}
PREDICTORS: dict[str, dict[str, Any]] = {
    "MLP-16": {"published_correlation": 0.6853, "published_mse": 0.0896, "published_decision_ms": 0.336},
    "RF-100": {"published_correlation": 0.8345, "published_decision_ms": 21.359},
}
SIGNALS = {"mean_draft_entropy": -0.56, "mean_draft_confidence": 0.56}
"""The paper says "about 0.56" of both, without more digits."""
