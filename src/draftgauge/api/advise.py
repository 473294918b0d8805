"""Whether to speculate in an engine, and how: from a recorded run, from vLLM's answers, or from a server's counters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.api.runs import Run, fitted_here
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.files import atomic_write_text, require_writable_file
from draftgauge.core.prompts import TEST
from draftgauge.core.verb import verb
from draftgauge.judging.acceptance import advice_by_context
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.replay import can_replay
from draftgauge.judging.splits import EVERYTHING, Design, design_of
from draftgauge.judging.statistics.bootstrap import Interval, columns
from draftgauge.judging.verdict import verdict_of
from draftgauge.pair.deployed import checkpoint_format, deployment_for
from draftgauge.policies.spec import FIXED, PolicySpec, make_policy, read_policies
from draftgauge.policies.two_source import TWO_SOURCE
from draftgauge.requests import AdviseRequest
from draftgauge.serving.advice import (
    acceptance_to_pay,
    advise_batch,
    advise_settings,
    advised_length,
    best_length,
    cost_ranges,
    flags_of,
    server_row,
    thresholds,
)
from draftgauge.serving.counters import SpeculationCounts, read_counts, standard_errors, tokens_per_step
from draftgauge.serving.engines import (
    P_MIN,
    PLAIN,
    Deployment,
    Engine,
    engine_of,
    setting_length,
    settings_document,
)
from draftgauge.serving.exchange import acceptance_document, acceptance_of, conditional
from draftgauge.serving.provisional import provisional, refuse_costs, to_measure
from draftgauge.serving.requests_trace import import_requests
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.engine_costs import BY_DRAFTGAUGE, BY_ENGINE, load_engine_costs, read_costs
from draftgauge.traces.run import COSTS_NAME, select_tasks
from draftgauge.traces.trace import narrow

Z95 = 1.96
Row = dict[str, Any]
COLUMNS = (
    *("engine", "policy", "ratio_to_plain", "ratio_to_plain_low", "ratio_to_plain_high", "recommended"),
    *("tokens_per_second", "tokens_per_second_low", "tokens_per_second_high"),
    *("tokens_per_step", "drafted_per_step", "acceptance_rate", "pays_below", "best_from", "best_below"),
    # of the recommended one only
    *("verdict", "known", "flags", "length_only", "best_length", "by_batch", "drawn", "recorded_with"),
    *(
        "alpha_1",
        "acceptance_to_pay",
        "at_batch",
        "at_context",
        "thresholds",
        "server_tokens_per_step",
        "expected_tokens_per_step",
    ),
)


@dataclass(frozen=True)
class _Source:
    """What is judged: prompts with their drafts, the costs by batch size, and what the flags name.

    ``policies``: whether any policy of draftgauge runs there; ``first``: a command to run before the flags.
    """

    design: Design
    curves: Mapping[int, CostCurve]
    deployment: Deployment
    own: tuple[PolicySpec, ...] = ()
    policies: bool = False
    drawn: float | None = None
    first: str = ""
    command: str = ""  # that recorded the run
    measure: str = ""  # how to measure the costs anew, where not by that

    @property
    def curve(self) -> CostCurve:
        return self.curves[min(self.curves)]


@verb(AdviseRequest)
def advise(request: AdviseRequest) -> list[Row]:
    """Say whether to speculate in an engine, and with which length or rule.

    From a run or from imported requests, every setting that the engine can run is replayed with the engine's costs.
    Before these are measured, a run's acceptance says at which costs each fixed length would be the best.
    From a server alone, what each length up to the one it drafts commits follows from its counters; with costs, so does
    the speed.

    Returns:
        One row a setting, None for what is not known: ``engine``, ``policy``, ``recommended``, ``tokens_per_step``,
        ``drafted_per_step``, ``acceptance_rate``. ``ratio_to_plain`` has ``_low`` and ``_high`` (95%, by prompt; from
        counters as if steps were independent), and so has ``tokens_per_second``.

        Where costs are not known, there are ``pays_below``, ``best_from`` and ``best_below``. A step of this length
        pays if it takes fewer plain steps than ``pays_below``. The length is the best one if a drafted token costs
        ``best_from`` to ``best_below`` plain steps (None: always). Of a run ``recommended`` is then provisional: by
        what a token costs in draftgauge's own loop.

        The recommended one also has ``flags``, ``verdict`` in words and whether it is ``known``
        (:class:`~draftgauge.judging.verdict.Verdict`). ``length_only``: the flags change only the length of a server
        whose drafter is not known. ``best_length`` (0 where plain decoding is level with it); ``by_batch`` (such
        lengths as JSON); ``at_batch`` (rules that adapt to the load, in words); ``at_context`` (lengths by context, in
        words, where they differ); ``thresholds`` (throughput either side of batch sizes at which the length changes).
        ``alpha_1`` is the first drafted token's acceptance, ``acceptance_to_pay`` the least constant chance at which
        some length pays. ``drawn`` is the drawn share of an imported trace. ``server_tokens_per_step`` is a running
        server's, ``expected_tokens_per_step`` what the run expects at its length. ``recorded_with`` has options of
        ``draftgauge generate``.

    Raises:
        DraftgaugeError: for an unknown engine or costs, a server that does not answer or counts no speculation. With
            nothing else given, also for a server that drafts different lengths in turn.
        TraceError: if the folder holds no complete run, or the answers cannot be imported.
    """
    engine = engine_of(request.engine)
    if request.folder is not None and request.requests is not None:
        raise DraftgaugeError("advice is from a recorded run or from --requests, not from both: leave one out")
    if request.export_acceptance is not None:
        require_writable_file(request.export_acceptance)
    if request.settings is not None:
        if engine.loop:
            raise DraftgaugeError(f"{engine.name} takes its setting as an argument, not from a file: no --settings")
        require_writable_file(request.settings)
    counts = None if request.url is None else read_counts(engine.name, request.url)
    if request.requests is not None:
        return _rows(request, engine, _from_requests(request, engine, request.requests), counts)
    if request.folder is None:
        if counts is None:
            raise DraftgaugeError("advice needs a recorded run, --requests, or a running server (--url)")
        return _from_counters(request, engine, counts)
    run = Run.load(request.folder)
    priced = request.costs is not None or engine.priced_by(run.manifest.target.engine)
    if priced or request.policies or request.batch is not None:  # rules and batches are judged with costs alone
        return _rows(request, engine, _from_run(request, engine, run), counts)
    return _before_costs(request, engine, run, counts)


def _from_run(request: AdviseRequest, engine: Engine, run: Run) -> _Source:
    manifest, path = run.manifest, request.costs or run.folder / COSTS_NAME
    format_ = checkpoint_format(engine, run)
    measured = None if request.costs is None else load_engine_costs(request.costs, engine.name)
    if request.costs is None or (measured is None and not engine.loop):
        refuse_costs(engine, run, path)
    curves = read_costs(path, engine.name)
    trace, _ = run.read(request.judged.tasks)
    drafted_by = None if measured is None else measured.drafted_by
    if format_ is not None and drafted_by == BY_DRAFTGAUGE:
        raise DraftgaugeError(
            f"{path} was measured with draftgauge's proposer, which does not draft with {format_} checkpoints: "
            f"{to_measure(engine, manifest, path)}"
        )
    deployment, first = deployment_for(engine, manifest, path, format_, drafted_by)
    own = read_policies(request.policies or run.usual_policies(fitting=False), trace.gamma_max)
    in_proposer = drafted_by != BY_ENGINE and format_ is None  # the only place for policies in vLLM
    policies = engine.policies and (engine.name != "vllm" or in_proposer)
    design = run.design(own, trace, request.judged.split)
    measure = "" if measured is None else to_measure(engine, manifest, path)
    return _Source(design, curves, deployment, own, policies, None, first, manifest.command, measure)


def _before_costs(request: AdviseRequest, engine: Engine, run: Run, counts: SpeculationCounts | None) -> list[Row]:
    """Rows where the engine's costs are not known yet: lengths alone, with the costs that each would be best at."""
    format_ = checkpoint_format(engine, run)
    deployment, first = deployment_for(engine, run.manifest, run.folder / COSTS_NAME, format_, None)
    trace, costs = run.read(request.judged.tasks)
    design = design_of(trace, request.judged.split)
    judged, said = provisional(design.trace, costs, engine, run)
    rows: list[Row] = [dict.fromkeys(COLUMNS) | {"engine": engine.name} | row for row in judged]
    best = next(row for row in rows if row["recommended"])
    best |= server_row(design, counts) | {"recorded_with": shlex.join(deployment.options) or None}
    length = setting_length(str(best["policy"])) or 0
    _export(request, acceptance_of(design.trace, length), length)
    _advise(request, engine, best, (said, False), {1: length}, deployment)
    if first and length:
        best["flags"] = f"{first} && {best['flags']}"
    return rows


def _from_requests(request: AdviseRequest, engine: Engine, answers: Path) -> _Source:
    if engine.loop:
        raise DraftgaugeError(
            f"--requests holds answers of a server, and {engine.name} decodes with draftgauge's own drafters: name the "
            "server's engine with --engine, or record a run"
        )
    if request.costs is None:
        raise DraftgaugeError(
            f"answers say what is accepted, not what a step costs: give the costs of a step in {engine.name} with "
            "--costs (docs/serving.md says how to measure them)"
        )
    if request.policies or request.batch is not None:
        raise DraftgaugeError(
            "answers hold no signals of the drafter, so only fixed lengths can be judged on them: leave out --policy "
            "and --batch"
        )
    imported = import_requests(answers)
    trace = select_tasks(imported.trace, request.judged.tasks, answers)
    if imported.left_out:
        warn(f"{answers}: the steps of {imported.left_out} answers do not account for their tokens: left out")
    curves = read_costs(request.costs, engine.name)
    return _Source(design_of(trace, request.judged.split), curves, Deployment(drafter=None), drawn=imported.drawn)


def _rows(request: AdviseRequest, engine: Engine, source: _Source, counts: SpeculationCounts | None) -> list[Row]:
    design, longest = source.design, min(curve.gamma_max for curve in source.curves.values())
    train = None if design.train is None else narrow(design.train, longest)
    trace = narrow(design.trace, longest)
    design = Design(design.split, trace, train)
    source = replace(source, deployment=replace(source.deployment, gamma_max=trace.gamma_max))
    if not request.policies:  # fitted files that lie in the folder
        others = [p for p in source.own if p.fitted is not None and p.fitted.gamma_max != trace.gamma_max]
        source = replace(source, own=tuple(policy for policy in source.own if policy not in others))
        for policy in others:
            warn(f"{policy} was not fitted for drafts of up to {trace.gamma_max}, as priced: not tried")
    named = [policy.text for policy in source.own]
    settings = engine.settings(trace.gamma_max, named if source.policies else None, source.deployment.drafter)
    asked_for = [spec for spec in named if not spec.startswith(FIXED) or spec in request.policies]
    left_out = [spec for spec in asked_for if spec not in settings]
    if request.policies and left_out:
        warn(f"{engine.name} does not run {', '.join(left_out)} with these costs: not tried (docs/serving.md)")
    if not request.policies:
        rules = {s for s in settings if setting_length(s) is None and not s.startswith(P_MIN)}
        unknown = {s for s in rules if not can_replay(trace, make_policy(s, trace.gamma_max, source.curve))}
        settings = [setting for setting in settings if setting not in unknown]
    fits = TWO_SOURCE in settings and request.costs is None and not request.policies  # `fit` weighs a run's own
    fitted = fitted_here(source.own, design, source.curve) if fits else {}
    judged, verdict = advise_settings(design, source.curve, settings, source.command, source.measure, fitted)
    lengths = {batch: advised_length(design, curve) for batch, curve in source.curves.items()}
    length = best_length(design, source.curves[min(lengths)])
    _export(request, acceptance_of(trace, length), length)
    rows = [dict.fromkeys(COLUMNS) | {"engine": engine.name} | it for it in judged]
    for row in rows:
        if len(trace.prompts) == 1:
            row |= dict.fromkeys(key for key in COLUMNS if key.endswith(("_low", "_high")))
    best = next(row for row in rows if row["recommended"])
    best |= server_row(design, counts) | {
        "alpha_1": next(row["acceptance_rate"] for row in rows if row["policy"] == f"{FIXED}1"),
        "acceptance_to_pay": acceptance_to_pay(trace, source.curve),
        "at_context": advice_by_context(trace, source.curve),
        "thresholds": thresholds(design, source.curves, lengths),
        "drawn": source.drawn,
        "recorded_with": shlex.join(source.deployment.options) or None,
    }
    if request.batch is not None:
        best["at_batch"] = advise_batch(design, source.curve, request.batch)
    _advise(request, engine, best, (str(verdict), not verdict.unknown), lengths, source.deployment)
    learn = EVERYTHING if (design.split, design.train) == (TEST, None) else design.split
    best["flags"] = flags_of(engine, verdict.setting, source.deployment, request.folder, learn, request.judged.tasks)
    if source.first and verdict.speculate:
        best["flags"] = f"{source.first} && {best['flags']}"
    return rows


def _advise(
    request: AdviseRequest,
    engine: Engine,
    best: Row,
    verdict: tuple[str, bool],
    lengths: dict[int, int],
    deployment: Deployment,
) -> None:
    """Add the verdict, and whether it is known, and the engine's flags to the recommended row; write its settings."""
    best |= {"recommended": True, "verdict": verdict[0], "known": verdict[1]}
    best |= {"best_length": lengths[min(lengths)], "by_batch": json.dumps(lengths) if len(lengths) > 1 else None}
    best |= {"flags": engine.flags(best["policy"], deployment), "length_only": deployment.drafter is None}
    if request.settings is not None:
        document = settings_document(engine, best["policy"], lengths, deployment)
        atomic_write_text(request.settings, json.dumps(document, indent=1) + "\n")


def _from_counters(request: AdviseRequest, engine: Engine, counts: SpeculationCounts) -> list[Row]:
    """Rows from a server's counters; settings and speeds only where costs are given."""
    if request.policies or request.judged.tasks or request.judged.split or request.batch is not None:
        raise DraftgaugeError("a server's counters hold neither tasks nor signals: give a recorded run to judge these")
    if request.settings is not None and request.costs is None:
        raise DraftgaugeError("settings follow from costs: give them with --costs")
    survival = counts.survival()
    committed, errors = tokens_per_step(survival), standard_errors(survival, counts.drafts)
    ranges = cost_ranges(committed, range(len(committed)))
    rows: list[Row] = [
        dict.fromkeys(COLUMNS)
        | {
            "engine": engine.name,
            "policy": f"{FIXED}{length}" if length else PLAIN,
            "tokens_per_step": committed[length],
            "drafted_per_step": float(length),
            "acceptance_rate": (committed[length] - 1) / length if length else None,
            "pays_below": committed[length],
            **ranges[length],
        }
        for length in range(len(committed))
    ]
    if request.costs is None:
        _export(request, {ALL_TASKS: conditional(survival)}, 0)
        return rows
    curves = read_costs(request.costs, engine.name)
    speeds = {batch: _speeds(curve, committed) for batch, curve in curves.items()}
    lengths = {batch: speed.index(max(speed)) for batch, speed in speeds.items()}
    batch = min(curves)
    for row, speed, error, tokens in zip(rows, speeds[batch], errors, committed, strict=False):
        share = Z95 * error / tokens
        interval, plain = np.array([speed, speed * (1 - share), speed * (1 + share)]), 1 / _middle(curves[batch])
        row |= dict.fromkeys(("pays_below", "best_from", "best_below")) | {"recommended": False}
        row |= columns("ratio_to_plain", Interval(*interval.tolist()))
        row |= columns("tokens_per_second", Interval(*(plain * interval).tolist()))
    rows = rows[: len(speeds[batch])]
    best = rows[lengths[batch]]
    best["recommended"] = True
    _export(request, {ALL_TASKS: conditional(survival)}, lengths[batch])
    verdict = verdict_of([row | {"prompts": counts.drafts} for row in rows], unit="drafts of a server")
    _advise(request, engine, best, (str(verdict), not verdict.unknown), lengths, Deployment(drafter=None))
    return rows


def _export(request: AdviseRequest, rates: Mapping[str, Sequence[float]], length: int) -> None:
    if request.export_acceptance is not None:
        source = str(request.folder or request.requests or request.url)
        document = acceptance_document(source, rates, length)
        atomic_write_text(request.export_acceptance, json.dumps(document, indent=1) + "\n")


def _middle(curve: CostCurve) -> float:
    """Seconds of a plain step at the middle context."""
    return curve.plain[len(curve.contexts) // 2]


def _speeds(curve: CostCurve, committed: list[float]) -> list[float]:
    middle = len(curve.contexts) // 2
    longest = min(len(committed) - 1, curve.gamma_max)
    steps = [float(curve.step_seconds(length, curve.contexts[middle])) for length in range(1, longest + 1)]
    return [1.0, *(tokens * _middle(curve) / step for tokens, step in zip(committed[1:], steps, strict=False))]
