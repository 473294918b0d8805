"""What importing answers of vLLM gets wrong: of a drafter that reads the text alone only what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from draftgauge.traces.build import make_trace
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.record import make_record
from draftgauge.traces.trace import PromptInfo, Trace

LENGTH, WIDTH, PROMPTS = 200, 4, 40


def trace_of(accepted: list[NDArray[np.int64]]) -> Trace:
    """A trace in which drafts of :data:`WIDTH` tokens are accepted so far."""
    records = []
    for index, counts in enumerate(accepted):
        output = list(range(1, len(counts) + 1))
        drafts = []
        for row, count in enumerate(counts.tolist()):
            right = output[row : row + count]
            drafts.append([*right, *[0] * (WIDTH - len(right))])
        info = PromptInfo(index, str(index), "t", "", 8, len(counts), "stop")
        records.append(make_record(info, output, drafts, WIDTH))
    return make_trace(records, LENGTH)


def costs() -> CostCurve:
    verify = tuple(0.01 + 0.0005 * count for count in range(WIDTH + 1))
    return EngineCosts("vllm", (1,), (0.01,), (verify,), (tuple(0.001 * n for n in range(WIDTH + 1)),)).curve()


def errors(trace: Trace) -> list[float]:
    from imported_requests import import_errors

    return [row["error"] for row in import_errors(trace, costs(), WIDTH)]


def test_a_drafter_that_reads_the_text_alone() -> None:
    rng = np.random.default_rng(0)
    accepted = []
    for _ in range(PROMPTS):
        right = rng.random(LENGTH + WIDTH) < 0.7
        accepted.append(np.array([int(np.append(right[at : at + WIDTH], False).argmin()) for at in range(LENGTH)]))
    assert errors(trace_of(accepted)) == pytest.approx([0] * WIDTH, abs=0.01)


def test_a_drafter_that_starts_anew_comes_out_too_low_at_short_lengths() -> None:
    """Its first token is right nine times of ten wherever it starts, deeper ones every second time."""
    rng = np.random.default_rng(1)
    chances = np.array([0.9, 0.5, 0.5, 0.5])
    accepted = [
        np.array([int(np.append(rng.random(WIDTH) < chances, False).argmin()) for _ in range(LENGTH)])
        for _ in range(PROMPTS)
    ]
    found = errors(trace_of(accepted))
    assert found[-1] == pytest.approx(0, abs=0.01)
    assert found[0] < -0.05
    assert found == sorted(found)
