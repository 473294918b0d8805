"""Policies of batches by name: any policy, one for each request, or a budget that they share."""

from __future__ import annotations

from draftgauge.policies.base import StepCosts
from draftgauge.policies.batch import BatchPolicy, PerRequest
from draftgauge.policies.budget_ranking import PassCosts
from draftgauge.policies.registry import make_policy
from draftgauge.policies.shared_budget import SharedBudget

SHARED_BUDGET = "shared-budget"
STOPPING = "stopping"


def make_batch_policy(
    spec: str, slots: int, gamma_max: int, costs: StepCosts | None, passes: PassCosts | None = None
) -> BatchPolicy:
    """A new policy for up to ``slots`` requests at once.

    Args:
        spec: of any policy, which then decides for each request by itself; or ``shared-budget``, which takes the
            chances of ``stopping``; or ``shared-budget:FILE``, those of a fitted file of that policy.
        slots: requests at once.
        gamma_max: longest draft.
        costs: of single requests, for policies that weigh them.
        passes: of batches, for a shared budget.

    Raises:
        DraftgaugeError: for an unknown policy, or one that batches do not have.
    """
    name, _, inner = spec.partition(":")
    if name == SHARED_BUDGET:
        assert passes is not None
        return SharedBudget([make_policy(inner or STOPPING, gamma_max, costs) for _ in range(slots)], passes)
    return PerRequest([make_policy(spec, gamma_max, costs) for _ in range(slots)])
