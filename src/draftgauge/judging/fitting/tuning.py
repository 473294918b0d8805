"""Policies with their own parameters tuned: the point of each policy's grid that is fastest on training prompts.

A fitted policy must not be compared with rivals at defaults that their authors chose for other pairs. So the training
prompts are replayed at every point of each policy's grid (:func:`~draftgauge.policies.spec.register_policy`), for
one cost curve. The fastest point is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.judging.evaluate import Rivals
from draftgauge.judging.replay import can_replay, replay
from draftgauge.policies.spec import PolicySpec, grid_specs, make_policy, tunable_policies
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace


def tune(name: str, trace: Trace, costs: CostCurve) -> tuple[str, float]:
    """The spec of a policy with the parameters that were fastest, and its tokens a second; the first of equals."""
    specs = _points(name, trace)
    speeds = {spec: replay(trace, make_policy(spec, trace.gamma_max, costs), costs).tokens_per_second for spec in specs}
    return max(speeds.items(), key=lambda each: each[1])


def tune_rivals(trace: Trace, costs: CostCurve, names: Sequence[str] | None = None) -> Rivals:
    if names is None:
        names = [name for name in tunable_policies() if _points(name, trace)]
        names = [name for name in names if can_replay(trace, make_policy(name, trace.gamma_max, costs))]
    tuned = dict(tune(name, trace, costs) for name in names)
    best = max(tuned, key=tuned.__getitem__)
    return Rivals({spec: make_policy(spec, trace.gamma_max, costs) for spec in tuned}, best)


def _points(name: str, trace: Trace) -> list[str]:
    longest = trace.gamma_max
    return [s for s in grid_specs(name) if int(PolicySpec.of(s).arguments.get("gamma_max", longest)) <= longest]
