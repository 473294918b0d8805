"""Fit a policy to recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.api.policies import PAIR
from draftgauge.api.requests import FitRequest
from draftgauge.api.runs import fingerprints_of, read_run, select_runs
from draftgauge.api.verb import verb
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import require_writable_file
from draftgauge.core.prompts import TEST, TRAIN, VALIDATION
from draftgauge.core.provenance import command_line, timestamp
from draftgauge.fitting.registry import FITS, fit_policy
from draftgauge.fitting.tuning import tune_rivals
from draftgauge.policies.base import Extends, Policy
from draftgauge.policies.fitted import FITTED_SUFFIX, FittedPolicy, fitted_policy, save_fitted
from draftgauge.replaying.evaluate import Rivals, evaluate_design
from draftgauge.replaying.simulate import Replay
from draftgauge.replaying.splits import MIN_PROMPTS, design_of, split_trace, splits_of
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

DRAFTING_RULES = ("cumulative-confidence",)  # simple rules that a fitted policy is compared with, tuned
LOOKUP_RULES = ("lookup", "lookup-else-stopping")  # and one that looks tokens up, with these too


@verb(FitRequest)
def fit(request: FitRequest) -> list[dict[str, Any]]:
    """Fit a policy on the training prompts of recorded runs and write it to a file that ``--policy`` takes.

    Training prompts are those that the prompt file names so; where it names none, 60% of them by a hash that stays the
    same (see :func:`draftgauge.replaying.splits.splits_of`), and ``replay`` evaluates on others. It learns from all
    runs together.

    Args:
        request: what to fit, on what.

    Returns:
        One row for each run: what the fitted policy gains on the validation prompts (keys of
        :func:`draftgauge.replaying.evaluate.evaluate`), if there are enough of them, with ``trained_prompts``, and
        whether the run has test prompts enough to judge the policy on by replay (``judgeable``). Also what
        it gains over the best simple rule, tuned (``best_rival``, ``gain_over_rival``).

    Raises:
        DraftgaugeError: for a policy that is not fitted, or a file name that does not end in ``.json``; before anything
            is written.
        TraceError: if a run lacks what is needed, or has fewer than 8 training prompts.
    """
    policy, out, seed = request.policy, request.out, request.randomness.seed
    if policy not in FITS:
        raise DraftgaugeError(f"there is nothing to fit in policy {policy!r}; choose one of {', '.join(FITS)}")
    if out.suffix != FITTED_SUFFIX:
        raise DraftgaugeError(f"--out is the {FITTED_SUFFIX} file to write, not {out}")
    runs = _runs(request.folder, request.tasks, request.compression)
    require_writable_file(out)
    train = [split_trace(trace, TRAIN) for _, trace, _ in runs]
    curves = [costs for _, _, costs in runs]
    fitted = fit_policy(policy, train, curves, seed)
    fitted = replace(
        fitted, provenance=dict(fitted.provenance) | _provenance([manifest for manifest, _, _ in runs], train)
    )
    rows = [_validation_row(fitted, trace, costs) for _, trace, costs in runs]
    save_fitted(fitted, out)
    return rows


def _runs(
    folder: Path, tasks: Sequence[str] | None, compression: Sequence[str] | None
) -> list[tuple[Manifest, Trace, CostCurve]]:
    runs = select_runs(folder)
    present = [manifest.target.compression for _, manifest in runs]
    for name in compression or ():
        if name not in present:
            raise DraftgaugeError(f"{folder} has no run of compression {name}; it has {', '.join(present)}")
    return [
        (manifest, *read_run(run, tasks))
        for run, manifest in runs
        if not compression or manifest.target.compression in compression
    ]


def _provenance(manifests: Sequence[Manifest], train: Sequence[Trace]) -> dict[str, Any]:
    return {
        "command": command_line(),
        "created": timestamp(),
        "target": manifests[0].target.source,
        "draft": None if manifests[0].draft is None else manifests[0].draft.source,
        PAIR: fingerprints_of(manifests[0]),
        "compressions": [manifest.target.compression for manifest in manifests],
        "prompts": manifests[0].prompts.path,
        "training_prompts": len(train[0].prompts),
        "training_positions": sum(trace.positions for trace in train),
    }


def _validation_row(fitted: FittedPolicy, trace: Trace, costs: CostCurve) -> dict[str, Any]:
    splits = splits_of(trace)
    fitted_on: dict[str, Any] = {
        "policy": fitted.policy,
        "compression": trace.compression,
        "trained_prompts": len(fitted.trained_on),
        "judgeable": int((splits == TEST).sum()) >= MIN_PROMPTS,
    }
    if int((splits == VALIDATION).sum()) < MIN_PROMPTS:
        return fitted_on | {"split": None}

    def make(curve: CostCurve) -> dict[str, Policy | Replay]:
        return {fitted.policy: fitted_policy(fitted, trace.gamma_max, curve)}

    looks_up = isinstance(fitted_policy(fitted, trace.gamma_max, costs), Extends)
    simple = (*DRAFTING_RULES, *(LOOKUP_RULES if looks_up else ()))

    def tune(train: Trace, curve: CostCurve) -> Rivals:
        return tune_rivals(train, curve, simple)

    rows = evaluate_design(design_of(trace, VALIDATION), costs, make, tune=tune)
    row = next(row for row in rows if row["policy"] == fitted.policy and row["task"] == "all")
    return dict(row) | fitted_on
