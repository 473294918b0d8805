"""Costs of steps from servers at fixed lengths: both parts add up to the step, whatever the draft takes alone."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.traces.engine_costs import LONGEST, costs_of_steps

STEPS = {1: [0.012, 0.013, 0.014], 4: [0.016], 8: [0.030]}
WHOLE = [0.010, 0.013, 0.014, 0.015, 0.016, 0.0195, 0.023, 0.0265, 0.030]


@pytest.mark.parametrize("draft", [(), (1e-9,), (0.0005,), (0.002,), (0.003,), (0.1,)])
def test_the_parts_add_up_to_the_step(draft: tuple[float, ...]) -> None:
    costs = costs_of_steps("llama-server", [0.010], STEPS, draft)
    drafting, verify = np.array(costs.draft[0]), np.array(costs.verify[0])
    assert (drafting + verify)[: len(WHOLE)] == pytest.approx(WHOLE)
    assert (np.diff(verify) >= 0).all()
    assert (np.diff(drafting) >= 0).all()
    assert drafting[0] == 0 < drafting[1]
    assert costs.plain == (0.010,)


def test_a_draft_served_alone_says_what_is_drafting_at_most_what_a_step_adds() -> None:
    costs = costs_of_steps("llama-server", [0.010], STEPS, [0.0005])
    assert costs.draft[0] == pytest.approx([0.0005 * length for length in range(LONGEST + 1)])
    slow = costs_of_steps("llama-server", [0.010], {4: [0.014]}, [0.003])
    assert slow.draft[0][:5] == pytest.approx([0, 0.001, 0.002, 0.003, 0.004])
    assert slow.verify[0] == pytest.approx([0.010] * (LONGEST + 1))
    level = costs_of_steps("llama-server", [0.010], {2: [0.020], 4: [0.030], 6: [0.030]}, [0.001])
    assert level.verify[0][2:7:2] == pytest.approx([0.018, 0.024, 0.024])  # whatever the line beyond 6 tokens says
    equal = costs_of_steps("llama-server", [0.010], {4: [0.009]})
    assert all(seconds > 0 for seconds in equal.draft[0][1:])
