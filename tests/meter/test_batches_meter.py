"""The meter of batches: what it makes of known prices, and that it keeps its time."""

from __future__ import annotations

import numpy as np
import pytest

from batched_models import static_pair
from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.batched import BatchRun, Pass, batched_decode
from draftgauge.meter import BatchMeterPlan, batches, measure_batches
from draftgauge.models.engines.static import StaticModel
from tiny import tokens

TEXT = tokens(200, 3).tolist()


@pytest.fixture(scope="module")
def models() -> tuple[StaticModel, StaticModel]:
    return static_pair()


def test_the_meter_finds_what_passes_cost(
    models: tuple[StaticModel, StaticModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def price(p: Pass) -> float:
        if p.records:
            return 100.0  # a graph was recorded, which is no part of what a pass costs
        if p.kind == "verify":
            return 1 + 0.1 * p.tokens
        return 0.2 + 0.05 * min(p.tokens, 2 * p.rows) + 0.03 * p.signals

    def at_known_prices(*asked: object) -> BatchRun:
        run = batched_decode(*asked)  # type: ignore[arg-type]
        run.passes = [[p._replace(seconds=price(p)) for p in step] for step in run.passes]
        run.seconds = [0.5 + sum(p.seconds for p in step) for step in run.passes]
        return run

    monkeypatch.setattr(batches, "batched_decode", at_known_prices)
    plan = BatchMeterPlan(TEXT, (3,), (24, 100), gamma_max=3, seconds=1.0)
    costs = measure_batches(models[0], models[1], plan, np.random.default_rng(0))
    costs.validate()
    assert costs.batches == (1, 3)
    for row, batch in enumerate((1, 3)):
        for verify, draft in zip(costs.verify[row], costs.draft[row], strict=True):
            assert verify == pytest.approx([1.5 + 0.1 * batch * k for k in range(1, 5)])
            assert draft == pytest.approx([0.2 + 0.05 * batch * k for k in (1, 2)])
    assert costs.signals == pytest.approx((0.03, 0.03))


def test_with_little_time_one_context_is_measured(models: tuple[StaticModel, StaticModel]) -> None:
    plan = BatchMeterPlan(TEXT, (2, 3), (24, 100), gamma_max=2, seconds=0.0)
    costs = measure_batches(models[0], models[1], plan, np.random.default_rng(0))
    costs.validate()
    assert (costs.batches, costs.gamma_max, len(costs.contexts)) == ((1, 2, 3), 2, 1)
    with pytest.raises(DraftgaugeError, match="needs more than"):
        measure_batches(models[0], models[1], BatchMeterPlan(TEXT, (2,), (24,), 30), np.random.default_rng(0))
