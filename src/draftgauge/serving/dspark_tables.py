"""SGLang's tables of DSpark steps (``--speculative-dspark-sps-table-path``, 0.5.23), read as costs and made of them.

A step of ``b`` requests that verifies ``m`` tokens takes ``bias + alpha(b) + theta(m)`` seconds, both linear between
probes and constant outside. The older form has steps a second by ``m``. Drafting a whole block is part of a step, and
no table holds a step without it: a served one says what drafting takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.core.artefacts import read_json
from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.traces.costs import are_seconds
from draftgauge.traces.engine_costs import EngineCosts


@dataclass(frozen=True)
class StepTable:
    """Seconds of a step in parts: ``alpha`` by requests, ``theta`` by verified tokens."""

    bias_seconds: float
    bs_probes: tuple[int, ...]
    alpha_seconds: tuple[float, ...]
    m_probes: tuple[int, ...]
    theta_seconds: tuple[float, ...]

    def seconds(self, requests: int, tokens: int) -> float:
        alpha = np.interp(requests, self.bs_probes, self.alpha_seconds)
        return self.bias_seconds + float(alpha + np.interp(tokens, self.m_probes, self.theta_seconds))


@dataclass(frozen=True)
class RateTable:
    """Steps a second by verified tokens; between samples those of the one below."""

    sample_batch_tokens: tuple[int, ...]
    sample_steps_per_sec: tuple[float, ...]
    max_batch_tokens: int

    def seconds(self, _requests: int, tokens: int) -> float:
        at = np.searchsorted(self.sample_batch_tokens, tokens, side="right") - 1
        return 1 / self.sample_steps_per_sec[max(0, int(at))]


def costs_of_table(path: Path, served: float, batches: Sequence[int], lengths: Sequence[int]) -> EngineCosts:
    """Costs from a table; ``served`` is a step without speculation at the smallest batch, in seconds."""
    document = read_json(path, "table of DSpark steps", error=TraceError)
    parts = isinstance(document, dict) and "bias_seconds" in document
    try:
        table: StepTable | RateTable = from_mapping(StepTable, document) if parts else from_mapping(RateTable, document)
        batches, columns = sorted(set(batches)), range(max(lengths) + 1)
        steps = np.array([[table.seconds(batch, batch * (1 + k)) for k in columns] for batch in batches])
        probes = (table.bs_probes, table.m_probes) if isinstance(table, StepTable) else (table.sample_batch_tokens,)
        if not are_seconds(steps.ravel().tolist()) or any(list(of) != sorted(set(of)) for of in probes):
            raise TraceError("probes must increase, and steps take a time")
    except (DraftgaugeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise TraceError(f"{path} is no table of DSpark steps as SGLang 0.5.23 writes them: {error}") from error
    most = [of[-1] for of in probes] if isinstance(table, StepTable) else [table.max_batch_tokens] * 2
    if batches[-1] > most[0] or batches[-1] * len(columns) > most[1]:
        raise TraceError(f"{path} ends at {most[0]} requests and {most[1]} tokens: name fewer --batches and --lengths")
    if not served < steps[0, 0]:
        raise TraceError(f"{path}: a step of {batches[0]} takes {steps[0, 0]:g} s with drafting, served {served:g} s")
    drafting = float(steps[0, 0]) - served
    verify = np.maximum.accumulate(steps - drafting, axis=1)
    drafted = (0.0, *(drafting for _ in columns[1:]))  # a block is drafted at once
    plain, rows = tuple(verify[:, 0].tolist()), tuple(map(tuple, verify.tolist()))
    return EngineCosts("sglang", tuple(batches), plain, rows, (drafted,) * len(batches), provenance="DSpark table")


def table_of_costs(costs: EngineCosts) -> tuple[dict[str, Any], float]:
    """A table by least squares, and the largest deviation from the costs as a share of a step."""
    rows = zip(costs.batches, costs.verify, costs.draft, strict=True)
    cells = [(b, b * (1 + k), row[k] + draft[-1]) for b, row, draft in rows for k in range(len(row))]
    requests, tokens = sorted({b for b, _, _ in cells}), sorted({m for _, m, _ in cells})
    known = [[1.0, *(b == of for of in requests[1:]), *(m == of for of in tokens[1:])] for b, m, _ in cells]
    matrix, seconds = np.array(known, np.float64), np.array([s for _, _, s in cells])
    found = np.linalg.lstsq(matrix, seconds, rcond=None)[0]
    if found[0] <= 0:
        raise TraceError("these costs fall so steeply that no table of DSpark steps holds them: measure them again")
    alpha, theta = found[1 : len(requests)].tolist(), found[len(requests) :].tolist()
    table = StepTable(float(found[0]), tuple(requests), (0.0, *alpha), tuple(tokens), (0.0, *theta))
    return vars(table), float(np.max(np.abs(matrix @ found - seconds) / seconds))
