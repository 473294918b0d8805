"""How far to draft: policies decide from what is known at that moment, and only that."""

from draftgauge.policies.base import Policy, Signal, SignalArrays, StatelessPolicy, Step, needs_signals
from draftgauge.policies.registry import POLICIES, expand_policy, make_policy

__all__ = ["POLICIES", "Policy", "Signal", "SignalArrays", "StatelessPolicy", "Step", "expand_policy", "make_policy", "needs_signals"]
