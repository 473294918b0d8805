"""How far to draft: what a policy is, the policies, and their names."""

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, Signal, SignalArrays, StatelessPolicy, Step
from draftgauge.policies.registry import POLICIES, expand_policy, make_policy

__all__ = [
    "POLICIES",
    "Policy",
    "Reads",
    "Signal",
    "SignalArrays",
    "SignalName",
    "StatelessPolicy",
    "Step",
    "expand_policy",
    "make_policy",
]
