"""Any policy on recorded runs, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgauge.api.runs import read_run, select_runs
from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy
from draftgauge.policies.registry import expand_policy, make_policy
from draftgauge.replay.evaluate import best_fixed_gamma, evaluate
from draftgauge.replay.hindsight import hindsight_optimum
from draftgauge.replay.simulate import Replay

DEFAULT_POLICIES = ("none", "fixed", "hf-heuristic", "hf-confidence", "cumulative-confidence")
HINDSIGHT = "hindsight"


def replay_rows(
    folder: Path,
    policies: Sequence[str] | None = None,
    *,
    tasks: Sequence[str] | None = None,
    split: str | None = None,
    objects: Mapping[str, Policy] | None = None,
) -> list[dict[str, Any]]:
    """Replay policies on recorded runs, beside plain decoding, the best fixed length and the hindsight optimum.

    Args:
        folder: a recorded run, or a folder of runs (one compression each).
        policies: specs; the bare ``fixed`` stands for every length. All simple policies if None.
        tasks, split: which prompts.
        objects: policies of your own by name, beside the named ones; with them and without ``policies``, only they run.

    Returns:
        Rows as :func:`draftgauge.replay.evaluate.evaluate` describes; the policy ``hindsight`` is the optimum with all outcomes known.

    Raises:
        DraftgaugeError: for an unknown policy.
        TraceError: if the folder holds no complete trace, or lacks what was asked for.
    """
    rows: list[dict[str, Any]] = []
    for run, manifest in select_runs(folder):
        specs = policies if policies is not None else () if objects else DEFAULT_POLICIES
        names = [name for spec in specs for name in expand_policy(spec, manifest.gamma_max)]
        arms: dict[str, Policy | Replay] = {name: make_policy(name, manifest.gamma_max) for name in dict.fromkeys(names)}
        for name, policy in (objects or {}).items():
            if name in arms:
                raise DraftgaugeError(f"two policies are named {name!r}: give your own another name")
            arms[name] = policy
        trace, costs = read_run(run, tasks, split)
        arms[HINDSIGHT] = hindsight_optimum(trace, costs).replay
        rows += [dict(row) for row in evaluate(trace, costs, arms)]
    return rows


def best_gamma_of(run: Path) -> int:
    """The best fixed length of one recorded run, 0 where not speculating is best."""
    return best_fixed_gamma(*read_run(run))
