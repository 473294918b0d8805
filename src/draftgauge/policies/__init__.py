"""How far to draft: what a policy is, the policies, and their names."""

from draftgauge.policies.base import Policy, Signal, SignalArrays, StatelessPolicy, Step, needs_signals, signal_kind
from draftgauge.policies.registry import POLICIES, expand_policy, make_policy

__all__ = [
    "POLICIES",
    "Policy",
    "Signal",
    "SignalArrays",
    "StatelessPolicy",
    "Step",
    "expand_policy",
    "make_policy",
    "needs_signals",
    "signal_kind",
]
