"""What can be fitted to traces, by the name of the policy. Each fit registers itself in its own file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace


@dataclass(frozen=True)
class FitOptions:
    """What can be asked of a fit; each takes what concerns it.

    Attributes:
        horizon: tokens that ``stopping`` looks ahead.
        online: whether ``stopping`` goes on calibrating while it runs.
        seed: of what is random.
    """

    horizon: int = 8
    online: bool = False
    seed: int = 0


Fit = Callable[[Sequence[Trace], Sequence[CostCurve], FitOptions], FittedPolicy]
"""Fits one policy on the training prompts of one or more runs, of which the first is the most important."""

_FITS: dict[str, Fit] = {}


def register_fit(policy: str) -> Callable[[Fit], Fit]:
    """Decorator of the function that fits a policy."""

    def add(fit: Fit) -> Fit:
        assert policy not in _FITS, f"the fit of {policy} is registered twice"
        _FITS[policy] = fit
        return fit

    return add


def fittable() -> tuple[str, ...]:
    """The policies that can be fitted."""
    package = import_module("draftgauge.fitting")
    for module in iter_modules(package.__path__):
        import_module(f"draftgauge.fitting.{module.name}")
    return tuple(sorted(_FITS))


def fit_policy(
    policy: str, traces: Sequence[Trace], costs: Sequence[CostCurve], options: FitOptions | None = None
) -> FittedPolicy:
    """Fit a policy.

    Raises:
        DraftgaugeError: if there is nothing to fit in it.
        TraceError: if the traces do not allow it.
    """
    names = fittable()
    if policy not in names:
        raise DraftgaugeError(f"there is nothing to fit in policy {policy!r}; choose one of {', '.join(names)}")
    return _FITS[policy](traces, costs, options or FitOptions())
