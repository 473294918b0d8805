"""At another cost ratio only drafting costs something else, and everything is chosen anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies import make_policy
from draftgauge.policies.base import Policy
from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying.cost_sweep import at_cost_ratio
from draftgauge.replaying.evaluate import best_fixed_gamma, evaluate_design
from draftgauge.replaying.simulate import Replay, replay
from draftgauge.replaying.splits import Design, design_of
from draftgauge.traces.costs import CostCurve
from synthetic import synthetic_trace

GAMMA_MAX = 6
MakeCosts = Callable[..., CostCurve]


@pytest.fixture(scope="module")
def design() -> Design:
    return design_of(synthetic_trace(4, prompts=36, length=50, gamma_max=GAMMA_MAX))


@pytest.fixture(scope="module")
def costs(linear_costs: MakeCosts) -> CostCurve:
    return linear_costs(GAMMA_MAX)


def arms(costs: CostCurve) -> dict[str, Policy | Replay]:
    return {name: make_policy(name, GAMMA_MAX, costs) for name in ("hf-heuristic", "cumulative-confidence", "fixed:5")}


@pytest.mark.parametrize("ratio", [0.02, 0.2, 0.75])
def test_drafting_is_scaled_and_verifying_stays(costs: CostCurve, ratio: float) -> None:
    swept = at_cost_ratio(replace(costs, catch_up=(0.0, 0.001, 0.004)), ratio)
    swept.validate()
    assert costs.cost_ratio() == pytest.approx(0.2)  # 2 ms a token of a verification of 10 ms
    assert swept.cost_ratio() == pytest.approx(ratio)
    assert np.array(swept.draft) == pytest.approx(np.array(costs.draft) * ratio / 0.2)
    assert swept.catch_up == pytest.approx((0.0, 0.001 * ratio / 0.2, 0.004 * ratio / 0.2))
    assert (swept.verify, swept.plain) == (costs.verify, costs.plain)


@pytest.mark.parametrize("ratio", [0.0, -0.1, float("inf"), float("nan")])
def test_a_ratio_that_cannot_be_is_refused(costs: CostCurve, ratio: float) -> None:
    with pytest.raises(DraftgaugeError, match="above 0"):
        at_cost_ratio(costs, ratio)


def test_baselines_are_always_there_and_gains_are_over_the_length_chosen_on_training_prompts(
    design: Design, costs: CostCurve
) -> None:
    rows = {row["policy"]: row for row in evaluate_design(design, costs, arms) if row["task"] == "all"}
    assert design.train is not None
    best = best_fixed_gamma(design.train, costs)
    assert list(rows) == list(
        dict.fromkeys(["no-draft", f"fixed:{best}", "hf-heuristic", "cumulative-confidence", "fixed:5", "hindsight"])
    )
    assert {(row["split"], row["best_fixed_gamma"], row["best_fixed_from"]) for row in rows.values()} == {
        ("test", best, "train")
    }
    base = replay(design.trace, FixedLength(best), costs).tokens_per_second
    outcome = replay(design.trace, make_policy("cumulative-confidence", GAMMA_MAX), costs)
    assert rows["cumulative-confidence"]["gain"] == pytest.approx(outcome.tokens_per_second / base - 1)
    assert {name for name, row in rows.items() if row["p_holm"] is not None} == {
        "hf-heuristic",
        "cumulative-confidence",
    }
