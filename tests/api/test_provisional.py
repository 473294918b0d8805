"""Advice before costs are measured: from acceptance alone, with the costs it holds at and what measures them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import draftgauge as dg
from command_line import succeeds
from draftgauge.judging.splits import design_of
from draftgauge.serving.advice import cost_ranges
from draftgauge.serving.provisional import token_cost
from draftgauge.traces.run import Run
from written_runs import GAMMA_MAX, write_run


def test_a_length_is_the_best_one_exactly_in_its_range_of_costs() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        drafted = np.append(0, np.cumsum(rng.random(6)))
        committed = 1 + np.append(0, np.cumsum(rng.random(6) * np.diff(drafted)))
        ranges = cost_ranges(committed.tolist(), drafted.tolist())
        for cost in (0.0, *rng.exponential(0.5, 20)):
            best = int(np.argmax(committed / (1 + cost * drafted)))
            holding = [
                length
                for length, of in enumerate(ranges)
                if of["best_from"] is not None
                and of["best_from"] <= cost < (math.inf if of["best_below"] is None else of["best_below"])
            ]
            assert holding == [best], (cost, ranges)
    never = cost_ranges([1.0, 1.0, 1.0], [0.0, 1.0, 2.0])  # nothing is accepted
    assert never == [{"best_from": 0.0, "best_below": None}] + 2 * [{"best_from": None, "best_below": None}]
    assert cost_ranges([1.0, 1.0], [0.0, 0.0])[0] == {"best_from": 0.0, "best_below": None}  # nothing is drafted


@pytest.mark.parametrize(
    ("engine", "measured"),
    [
        ("vllm", "`draftgauge costs --start --engine vllm --target "),
        ("llama-server", "--target TARGET.gguf --drafter DRAFT.gguf --out llama-server-costs.json`"),
        ("sglang", "write what a step takes there to sglang-costs.json"),
        ("gguf", "`draftgauge profile --target TARGET.gguf"),
    ],
)
def test_an_engine_without_costs_gets_advice_from_acceptance_and_the_command_that_settles_it(
    engine: str, measured: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", 40)
    rows = dg.advise(run, engine=engine)
    assert [row["policy"] for row in rows] == ["plain", *(f"fixed:{n}" for n in range(1, GAMMA_MAX + 1))]
    cost = token_cost(design_of(Run(run).trace).trace, Run(run).costs)
    assert cost == pytest.approx(0.3, abs=0.01)  # a drafted token takes 2 ms and its verification 1 of 10
    speeds = [row["tokens_per_step"] / (1 + cost * row["drafted_per_step"]) for row in rows]
    (best,) = (row for row in rows if row["recommended"])
    assert rows.index(best) == int(np.argmax(speeds)) > 0
    assert best["best_from"] <= cost < best["best_below"]
    assert (best["known"], best["ratio_to_plain"], best["tokens_per_second"]) == (False, None, None)
    assert f"draft with {best['policy']}" in best["verdict"]
    assert f"From {rows[0]['best_from']:.3f} on no length pays" in best["verdict"]
    assert measured in best["verdict"]
    if engine != "gguf":
        assert f"`draftgauge advise {run} --engine {engine} --costs {engine}-costs.json`" in best["verdict"]
        settings = tmp_path / "settings.json"
        shown = succeeds("advise", run, "-e", engine, "--settings", settings).stdout
        assert best["verdict"] in shown
        assert best["flags"] in shown
        assert str(rows.index(best)) in json.dumps(json.loads(settings.read_text()))
