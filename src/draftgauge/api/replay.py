"""Any policy on recorded runs, without a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgauge.api.datastore import read_stored
from draftgauge.api.fitted_pairs import fingerprints_of, fitted_files, warn_of_other_pairs
from draftgauge.api.requests import ReplayRequest
from draftgauge.api.runs import read_run, select_runs
from draftgauge.api.verb import verb
from draftgauge.core.errors import DraftgaugeError
from draftgauge.fitting.tuning import tune_rivals
from draftgauge.policies.base import Policy
from draftgauge.policies.batches import SHARED_BUDGET
from draftgauge.policies.fitted import load_fitted
from draftgauge.policies.registry import compared_policies, expand_policy, make_policy, with_objects
from draftgauge.policies.stored_policies import with_stored
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.replaying.batch_rows import batch_rows
from draftgauge.replaying.cost_sweep import cost_sweep
from draftgauge.replaying.evaluate import Rivals, best_fixed_gamma, evaluate_design
from draftgauge.replaying.simulate import Replay, can_replay
from draftgauge.replaying.splits import Design, design_of, prompt_keys
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

DEFAULT_POLICIES = ("none", "fixed", *compared_policies())

Warn = Callable[[str], None]


def warn(message: str) -> None:
    """A Python warning."""
    warnings.warn(message, stacklevel=6)


@verb(ReplayRequest)
def replay(
    request: ReplayRequest, *, objects: Mapping[str, Policy] | None = None, on_warning: Warn = warn
) -> list[dict[str, Any]]:
    """Replay policies on recorded runs, beside plain decoding, the best fixed length and the hindsight optimum.

    Without a choice of split, test prompts are evaluated on where the prompts name training and test ones or a fitted
    policy was fitted on some of them, else all.

    Args:
        request: what to replay; where it names no policy, those that every comparison has and that the trace can judge.
        objects: policies of your own by name, beside the named ones; with them and without named ones, only they run.
            Copies run, a new one for every run and cost ratio, so that none goes on with what another has learned.
        on_warning: told of prompts that a policy was fitted on, of policies fitted on another pair, and of costs that
            are from another device or not to be trusted; by default a Python warning.

    Returns:
        Rows as :func:`draftgauge.replaying.evaluate.evaluate` describes; the policy ``hindsight`` is the optimum with
        all outcomes known. With a datastore each says how many tokens that holds (``datastore_tokens``). Of batches, as
        :func:`draftgauge.replaying.batch_rows.batch_rows` describes.

    Raises:
        DraftgaugeError: for an unknown policy, or one fitted for other draft lengths or signals.
        TraceError: if the folder holds no complete trace, or lacks what was asked for.
    """
    if request.batches:
        return _in_batches(request, objects, on_warning)
    specs = request.policies or (() if objects else DEFAULT_POLICIES)
    if any(spec.split(":")[0] == SHARED_BUDGET for spec in specs):
        raise DraftgaugeError(f"{SHARED_BUDGET} shares draft tokens over the requests of a batch: ask for batches too")
    rows: list[dict[str, Any]] = []
    for design, costs in _recorded(request, specs, on_warning):
        judged = [prompt.prompt_token for prompt in design.trace.prompts]
        stored = None if request.datastore is None else read_stored(request.datastore, costs.vocabulary, judged)

        def make(
            curve: CostCurve, trace: Trace = design.trace, stored: StoredTexts | None = stored
        ) -> dict[str, Policy | Replay]:
            arms = _arms(specs, objects or {}, trace.gamma_max, curve)
            if specs is DEFAULT_POLICIES:
                arms = {name: policy for name, policy in arms.items() if can_replay(trace, policy)}
            if stored is not None:
                with_stored(list(arms.values()), stored)
            return dict(arms)

        def tuned(train: Trace, curve: CostCurve, stored: StoredTexts | None = stored) -> Rivals:
            rivals = tune_rivals(train, curve)
            if stored is not None:
                with_stored(list(rivals.arms.values()), stored)
            return rivals

        tune = tuned if request.tune else None
        if request.sweep:
            evaluated = cost_sweep(design, costs, make, request.sweep, tune=tune)
        else:
            evaluated = evaluate_design(design, costs, make, tune=tune)
        kept = {} if stored is None else {"datastore_tokens": stored.tokens}
        rows += [dict(row) | kept for row in evaluated]
    return rows


def _in_batches(request: ReplayRequest, objects: Mapping[str, Policy] | None, on_warning: Warn) -> list[dict[str, Any]]:
    if objects:
        raise DraftgaugeError("in batches every request has a policy of its own: name policies, give no objects")
    specs = tuple(spec for spec in request.policies if spec not in ("fixed", "none"))  # every length is there anyway
    rows: list[dict[str, Any]] = []
    for design, costs in _recorded(request, specs, on_warning):
        rows += batch_rows(design.trace, costs, request.batches, specs)
    return rows


def _recorded(request: ReplayRequest, specs: Sequence[str], on_warning: Warn) -> Iterator[tuple[Design, CostCurve]]:
    """For every run its train and test traces and its costs, checked against the fitted policies."""
    trained_on = {spec: load_fitted(file).trained_on for spec, file in fitted_files(specs).items()}
    for run, manifest in select_runs(request.folder):
        trace, costs = read_run(run, request.judged.tasks)
        design = design_of(trace, request.judged.split, {key for keys in trained_on.values() for key in keys})
        warn_of_other_pairs(specs, fingerprints_of(manifest), on_warning)
        _check(run, manifest, costs, design, trained_on, on_warning)
        yield design, costs


def best_gamma_of(run: Path) -> int:
    """The best fixed length of a recorded run, 0 for none; chosen on training prompts where the run names any."""
    trace, costs = read_run(run)
    design = design_of(trace)
    return best_fixed_gamma(design.train if design.train is not None else trace, costs)


def _arms(specs: Sequence[str], objects: Mapping[str, Policy], gamma_max: int, costs: CostCurve) -> dict[str, Policy]:
    names = dict.fromkeys(name for spec in specs for name in expand_policy(spec, gamma_max))
    return with_objects({name: make_policy(name, gamma_max, costs) for name in names}, objects)


def _check(
    run: Path,
    manifest: Manifest,
    costs: CostCurve,
    design: Design,
    trained_on: Mapping[str, Sequence[str]],
    on_warning: Warn,
) -> None:
    """Warn of what makes figures other than they seem."""
    if costs.device != manifest.device:
        on_warning(
            f"the costs in {run} were measured on {costs.device}, its trace on {manifest.device}: seconds are those "
            f"of {costs.device}"
        )
    warn_of_doubt(run, costs, on_warning)
    warn_of_seen(run, design, trained_on, on_warning)


def warn_of_doubt(run: Path, costs: CostCurve, on_warning: Warn) -> None:
    """Warn of costs that were measured too shortly, or beside other work.

    Args:
        run: folder of the run.
        costs: of it.
        on_warning: told why they are not to be trusted.
    """
    if doubt := costs.doubt():
        on_warning(
            f"the costs in {run} are not to be trusted, {doubt}: run its `draftgauge profile` command again with "
            "--measure, a larger --cost-seconds and nothing else on the machine"
        )


def warn_of_seen(run: Path, design: Design, trained_on: Mapping[str, Sequence[str]], on_warning: Warn) -> None:
    """Warn of policies that are evaluated on prompts that they were fitted on.

    Args:
        run: folder of the run.
        design: its prompts.
        trained_on: ``task/identifier`` of the prompts that each policy was fitted on.
        on_warning: told of each.
    """
    keys = prompt_keys(design.trace)
    for spec, fitted_on in trained_on.items():
        seen = len(set(fitted_on).intersection(keys))
        if seen:
            on_warning(
                f"{spec} was fitted on {seen} of the {len(keys)} prompts that it is evaluated on ({run}, split "
                f"{design.split!r}): what it gains there says little about other prompts"
            )
