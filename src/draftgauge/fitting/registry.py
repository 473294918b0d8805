"""What can be fitted to traces, by the name of the policy. Each fit registers itself in its own file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Fit = Callable[[Sequence[Trace], Sequence[CostCurve], int], FittedPolicy]
"""Fits one policy on the training prompts of runs, of which the first is the most important, and of their costs; with a
seed.
"""

_FITS: dict[str, Fit] = {}


def register_fit(policy: str) -> Callable[[Fit], Fit]:
    """Decorator of the function that fits a policy."""

    def add(fit: Fit) -> Fit:
        assert policy not in _FITS, f"the fit of {policy} is registered twice"
        _FITS[policy] = fit
        return fit

    return add


def fittable() -> tuple[str, ...]:
    package = import_module("draftgauge.fitting")
    for module in iter_modules(package.__path__):
        import_module(f"draftgauge.fitting.{module.name}")
    return tuple(sorted(_FITS))


def fit_policy(policy: str, traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int = 0) -> FittedPolicy:
    names = fittable()
    if policy not in names:
        raise DraftgaugeError(f"there is nothing to fit in policy {policy!r}; choose one of {', '.join(names)}")
    return _FITS[policy](traces, costs, seed)
