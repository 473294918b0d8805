"""Fit a policy to recorded runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from draftgauge.api.runs import Run
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.files import require_writable_file
from draftgauge.core.prompts import TEST, TRAIN, VALIDATION
from draftgauge.core.provenance import command_line, timestamp
from draftgauge.core.verb import verb
from draftgauge.judging.evaluate import evaluate_design
from draftgauge.judging.fitting import fit_speckv, fit_stopping, fit_two_source
from draftgauge.judging.ranking import tune_rivals
from draftgauge.judging.splits import (
    EVERYTHING,
    MIN_PROMPTS,
    PAIR,
    design_of,
    names_splits,
    prompt_keys,
    split_trace,
    splits_of,
)
from draftgauge.policies.base import Extends
from draftgauge.policies.fitted import FITTED_SUFFIX, FittedPolicy, fitted_policy, save_fitted
from draftgauge.requests import FitRequest
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.engine_costs import read_costs
from draftgauge.traces.trace import Trace, narrow, select

FITS = {"speckv": fit_speckv, "stopping": fit_stopping, "two-source": fit_two_source}
DRAFTING_RULES = ("cumulative-confidence",)  # simple rules that a fitted policy is compared with, tuned
# and one that looks tokens up, with these too
LOOKUP_RULES = ("lookup", "lookup-else-stopping", "suffix", "ngram-mod", "vllm-ngram")


@verb(FitRequest)
def fit(request: FitRequest) -> list[dict[str, Any]]:
    """Fit a policy on the training prompts of recorded runs and write it to a file that ``--policy`` takes.

    Training prompts are those that the prompt file names so, else 60% by a fixed hash
    (:func:`draftgauge.judging.splits.splits_of`). It learns from all runs together. With the split "all" no prompts are
    left to judge it on; ``replay`` and ``advise`` say what ``two-source`` gains where it is fitted so.

    Returns:
        One row for each run: what the policy gains on the validation prompts, if there are enough (keys of
        :func:`draftgauge.judging.evaluate.evaluate`). ``best_rival`` and ``gain_over_rival`` compare it with the best
        simple rule, tuned. ``trained_prompts`` counts; ``judgeable`` says whether the run has enough test prompts to
        judge the policy on by replay.

    Raises:
        DraftgaugeError: for a policy that is not fitted, or a file name that does not end in ``.json``.
        TraceError: if a run lacks what is needed, or has fewer than 8 training prompts.
    """
    policy, out, seed = request.policy, request.out, request.randomness.seed
    if policy not in FITS:
        raise DraftgaugeError(f"there is nothing to fit in policy {policy!r}; choose one of {', '.join(FITS)}")
    if out.suffix != FITTED_SUFFIX:
        raise DraftgaugeError(f"--out is the {FITTED_SUFFIX} file to write, not {out}")
    runs = Run.find(request.folder)
    read = [run.read(request.tasks) for run in runs]
    if request.costs is not None:
        if len(runs) > 1:
            raise DraftgaugeError(f"--costs are of one target, and {request.folder} holds {len(runs)} runs: name one")
        curves = read_costs(request.costs, request.engine)
        costs = curves[min(curves)]
        read = [(narrow(trace, costs.gamma_max), costs) for trace, _ in read]
    require_writable_file(out)
    if request.split == TRAIN and not any(names_splits(trace) for trace, _ in read) and read[0][0].prompts[0].split:
        warn(f"no prompts are named {TRAIN}: the policy learns from some of those named otherwise")
    if request.split not in (TRAIN, EVERYTHING):
        raise DraftgaugeError(f"--split is {TRAIN} or {EVERYTHING}: a policy learns from these prompts")
    train = [split_trace(trace, request.split) for trace, _ in read]
    if request.split == TRAIN:
        # Runs of other numbers of prompts are divided otherwise: what one judges on, none learns.
        held = {key for t, _ in read for key, own in zip(prompt_keys(t), splits_of(t), strict=True) if own != TRAIN}
        train = [select(trace, np.array([key not in held for key in prompt_keys(trace)])) for trace in train]
    if (fewest := min(len(trace.prompts) for trace in train)) < MIN_PROMPTS:
        raise DraftgaugeError(f"{fewest} prompts are too few to fit on, {MIN_PROMPTS} are needed")
    fitted = FITS[policy](train, [costs for _, costs in read], seed)
    manifest = runs[0].manifest
    provenance = {
        "command": command_line(),
        "created": timestamp(),
        "target": manifest.target.source,
        "draft": None if manifest.draft is None else manifest.draft.source,
        PAIR: runs[0].fingerprints,
        "compressions": [run.manifest.target.compression for run in runs],
        "prompts": manifest.prompts.path,
        "training_prompts": len(train[0].prompts),
        "training_positions": sum(trace.positions for trace in train),
    }
    fitted = replace(fitted, provenance=dict(fitted.provenance) | provenance)
    save_fitted(fitted, out)
    return [_validation_row(fitted, trace, costs, request.split) for trace, costs in read]


def _validation_row(fitted: FittedPolicy, trace: Trace, costs: CostCurve, learnt: str) -> dict[str, Any]:
    splits = np.full(len(trace.prompts), TRAIN) if learnt == EVERYTHING else splits_of(trace)
    fitted_on: dict[str, Any] = {
        "policy": fitted.policy,
        "compression": trace.compression,
        "trained_prompts": len(fitted.trained_on),
        "judgeable": int((splits == TEST).sum()) >= MIN_PROMPTS,
    }
    if int((splits == VALIDATION).sum()) < MIN_PROMPTS:
        return fitted_on | {"split": None}

    policy = fitted_policy(fitted, trace.gamma_max, costs)
    simple = (*DRAFTING_RULES, *(LOOKUP_RULES if isinstance(policy, Extends) else ()))
    design = design_of(trace, VALIDATION)
    rows = evaluate_design(design, costs, {fitted.policy: policy}, tune_rivals(design.training, costs, simple))
    return dict(next(row for row in rows if row["policy"] == fitted.policy and row["task"] == "all")) | fitted_on
