"""Cost curves made of measured ones: several as one, and imagined ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftgauge.traces.costs import CostCurve


def mean_curve(curves: Sequence[CostCurve]) -> CostCurve:
    """The mean of curves that were measured at the same lengths and contexts."""
    tables = {name: _mean([getattr(c, name) for c in curves]) for name in ("verify", "draft", "plain", "catch_up")}
    return replace(curves[0], **tables, signals=float(np.mean([curve.signals for curve in curves])))


def imagined(costs: CostCurve, draft: float, verify: float) -> CostCurve:
    """A drafted token costs ``draft`` and each further verified one ``verify`` of verifying one token."""
    lengths = np.arange(costs.gamma_max + 1)
    one = np.asarray(costs.verify)[:, :1]
    verified, drafted = (tuple(map(tuple, (one * each).tolist())) for each in (1 + verify * lengths, draft * lengths))
    return replace(costs, verify=verified, draft=drafted, plain=tuple(one[:, 0].tolist()), catch_up=())


def _mean(tables: Sequence[Any]) -> Any:
    """Of tables or of rows."""
    values = np.mean(tables, axis=0)
    return tuple(map(tuple, values.tolist())) if values.ndim == 2 else tuple(values.tolist())
