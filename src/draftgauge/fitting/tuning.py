"""Policies with their own parameters tuned: the point of each policy's grid that is fastest on training prompts.

A policy that was fitted to a pair must not be compared with rivals at defaults that their authors chose for other
pairs. So every policy with a grid (stated in its file, see :func:`~draftgauge.policies.registry.register_policy`) is
replayed on the training prompts at every point of it, for one cost curve, and the fastest point is
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Extends
from draftgauge.policies.registry import POLICIES, grid_specs, make_policy, tunable_policies
from draftgauge.replaying.evaluate import Rivals
from draftgauge.replaying.simulate import replay
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace


@dataclass(frozen=True)
class Tuned:
    """A tuned policy.

    Attributes:
        spec: its name and the parameters that were fastest.
        tokens_per_second: modelled, on the prompts that it was tuned on.
        points: how many points of its grid were tried.
    """

    spec: str
    tokens_per_second: float
    points: int


def tune(name: str, trace: Trace, costs: CostCurve) -> Tuned:
    """Tune one policy for a cost curve; the first of equals wins."""
    if name not in tunable_policies():
        raise DraftgaugeError(
            f"there is nothing to tune in policy {name!r}; choose one of {', '.join(tunable_policies())}"
        )
    specs = _points(name, trace)
    speeds = [replay(trace, make_policy(spec, trace.gamma_max, costs), costs).tokens_per_second for spec in specs]
    fastest = max(range(len(specs)), key=speeds.__getitem__)
    return Tuned(specs[fastest], speeds[fastest], len(specs))


def tune_rivals(trace: Trace, costs: CostCurve, names: Sequence[str] | None = None) -> Rivals:
    if names is None:
        names = [name for name in tunable_policies() if _points(name, trace) and _replays(name, trace, costs)]
    tuned = [tune(name, trace, costs) for name in names]
    best = max(tuned, key=lambda each: each.tokens_per_second)
    return Rivals({each.spec: make_policy(each.spec, trace.gamma_max, costs) for each in tuned}, best.spec)


def _replays(name: str, trace: Trace, costs: CostCurve) -> bool:
    return trace.sampled is None or not isinstance(make_policy(name, trace.gamma_max, costs), Extends)


def _points(name: str, trace: Trace) -> list[str]:
    return [spec for spec in grid_specs(name) if _fits(spec, trace.gamma_max)]


def _fits(spec: str, gamma_max: int) -> bool:
    _, arguments = POLICIES.parse(spec)
    return int(arguments.get("gamma_max", gamma_max)) <= gamma_max
