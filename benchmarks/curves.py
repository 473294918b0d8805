"""Cost curves made of measured ones: several as one, and imagined ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from draftgauge.traces.costs import TABLES, CostCurve, PolicySeconds, RepeatSeconds, SignalSeconds

Record = TypeVar("Record", SignalSeconds, RepeatSeconds)


def mean_curve(curves: Sequence[CostCurve]) -> CostCurve:
    """The mean of curves that were measured at the same lengths and contexts."""
    tables = {name: _mean([getattr(curve, name) for curve in curves]) for name in (*TABLES, "plain", "catch_up")}
    signals = _mean_record(SignalSeconds, [curve.signals for curve in curves])
    repeat = _mean_record(RepeatSeconds, [curve.repeat for curve in curves])
    overhead = float(np.mean([curve.overhead for curve in curves]))
    decisions = tuple(_mean_decision(name, curves) for name in (each.policy for each in curves[0].decisions))
    return replace(curves[0], **tables, signals=signals, repeat=repeat, overhead=overhead, decisions=decisions)


def imagined(costs: CostCurve, draft: float, verify: float) -> CostCurve:
    """A drafted token costs ``draft`` and each further verified one ``verify`` of verifying one token."""
    lengths = np.arange(costs.gamma_max + 1)
    one = np.asarray(costs.verify)[:, :1]
    verified, drafted = (tuple(map(tuple, (one * each).tolist())) for each in (1 + verify * lengths, draft * lengths))
    tables = dict.fromkeys(("verify", "verify_low", "verify_high"), verified)
    tables |= dict.fromkeys(("draft", "draft_low", "draft_high"), drafted)
    return replace(costs, **tables, overhead=0.0, plain=tuple(one[:, 0].tolist()), catch_up=())


def _mean_record(kind: type[Record], records: Sequence[Record]) -> Record:
    """Of records of seconds."""
    names = [entry.name for entry in fields(kind)]
    return kind(**{name: float(np.mean([getattr(record, name) for record in records])) for name in names})


def _mean_decision(policy: str, curves: Sequence[CostCurve]) -> PolicySeconds:
    """Over the curves that have this policy's decisions."""
    times = [seconds for curve in curves if (seconds := curve.deciding(policy)) is not None]
    token, step, reading = np.mean(times, axis=0).tolist()
    return PolicySeconds(policy, token, step, reading)


def _mean(tables: Sequence[Any]) -> Any:
    """Of tables or of rows."""
    values = np.mean(tables, axis=0)
    return tuple(map(tuple, values.tolist())) if values.ndim == 2 else tuple(values.tolist())
