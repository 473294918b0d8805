"""The meter of batches: what it times, and what it makes of known prices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batched_models import CountingPool, static_pair
from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding import batch_meter
from draftgauge.decoding.batch_meter import BatchMeterPlan, measure_batches
from draftgauge.decoding.batch_samples import timed_steps
from draftgauge.decoding.batched import BatchPlan, BatchRun, Pass, batched_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.rows import StaticRows
from draftgauge.models.static_model import StaticModel
from draftgauge.policies.batch import make_batch_policy
from tiny import tokens


@pytest.fixture(scope="module")
def models() -> tuple[StaticModel, StaticModel]:
    return static_pair()


def test_steps_in_which_a_graph_is_recorded_are_no_samples(models: tuple[StaticModel, StaticModel]) -> None:
    rows = [StaticRows(model, 2, 48) for model in models]
    prompts = [tokens(length, seed=length).tolist() for length in (3, 17, 9, 5)]
    pools = [CountingPool() for _ in rows]
    for each, pool in zip(rows, pools, strict=True):
        each._pool = pool  # type: ignore[assignment]
    fixed = make_batch_policy("fixed:2", 2, 4, None)
    run = batched_decode(*rows, fixed, prompts, DecodingSettings(24), BatchPlan(2, 4, timed=True))
    recorded = [p for passes in run.passes for p in passes if p.records]
    assert len(recorded) == sum(pool.captured for pool in pools) > 2
    kept = timed_steps(run.passes, run.seconds)
    assert 0 < len(kept) == sum(not any(p.records for p in passes) for passes in run.passes) < len(run.passes)


def test_measured_costs_are_those_of_passes(models: tuple[StaticModel, StaticModel]) -> None:
    text = tokens(200, 3).tolist()
    plan = BatchMeterPlan(text, (2, 3), (24, 100), gamma_max=2, seconds=0.0)
    costs = measure_batches(models[0], models[1], plan, np.random.default_rng(0))
    costs.validate()
    assert costs.batches == (1, 2, 3)
    assert costs.gamma_max == 2
    assert np.shape(costs.verify) == (3, 2, 3)
    assert np.shape(costs.draft) == (3, 2, 2)
    assert np.shape(costs.onward) == (3, 2)
    with pytest.raises(DraftgaugeError, match="needs more than"):
        measure_batches(models[0], models[1], BatchMeterPlan(text, (2,), (24,), 30), np.random.default_rng(0))


def test_the_meter_finds_what_passes_cost(
    models: tuple[StaticModel, StaticModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes at known prices: a first pass is not a later one, what a step spends on each pass counts with it, and the
    target takes less where the shapes are those of the step before.
    """

    def price(depth: int, p: Pass) -> float:
        if p.kind == "verify":
            return 1 + 0.1 * p.tokens + (0.2 + 0.007 * p.padded if p.padded else 0.0)
        seconds = 0.1 + 0.02 * p.rows if depth else 0.2 + 0.05 * min(p.tokens, 2 * p.rows)
        return seconds + 0.03 * p.signals + 0.04 * p.gap

    def at_known_prices(*asked: Any) -> BatchRun:
        run = batched_decode(*asked)
        run.passes = [[p._replace(seconds=price(depth, p)) for depth, p in enumerate(step)] for step in run.passes]
        run.seconds = [0.5 + 0.01 * (len(step) - 1) + sum(p.seconds for p in step) for step in run.passes]
        return run

    monkeypatch.setattr(batch_meter, "batched_decode", at_known_prices)
    plan = BatchMeterPlan(tokens(200, 3).tolist(), (3,), (24, 100), gamma_max=3, seconds=0.0)
    costs = measure_batches(models[0], models[1], plan, np.random.default_rng(0))
    for row, batch in enumerate((1, 3)):
        for context in range(2):
            assert costs.verify[row][context] == pytest.approx([1 + 0.1 * batch * k for k in range(1, 5)])
            assert costs.draft[row][context] == pytest.approx([0.21 + 0.05 * batch * k for k in (1, 2)])
            assert costs.onward[row][context] == pytest.approx(0.11 + 0.02 * batch)
    assert costs.ragged_verify[0] == costs.ragged_draft[0] == (0, 0)  # a lone request has no neighbours
    assert costs.ragged_verify[1] == pytest.approx((0.2, 0.007))
    assert sum(costs.ragged_draft[1]) == pytest.approx(0.04)  # of three requests at most one is missing
    assert costs.overhead == pytest.approx((0.5, 0.5))
    assert costs.asking == pytest.approx((0.03, 0.03))
