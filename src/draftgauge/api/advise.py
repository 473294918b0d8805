"""Whether to speculate in an engine, and how: from a recorded run, from vLLM's answers, or from a server's counters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftgauge.api.requests import AdviseRequest
from draftgauge.api.runs import Run, fitted_here
from draftgauge.api.verb import verb
from draftgauge.core.compressions import COMPRESSIONS
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.files import atomic_write_text, require_writable_file
from draftgauge.core.prompts import TEST
from draftgauge.judging.contexts import advice_by_context
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.replay import can_replay
from draftgauge.judging.splits import EVERYTHING, Design, design_of
from draftgauge.judging.statistics.bootstrap import Interval, columns
from draftgauge.judging.verdict import Verdict, verdict_of
from draftgauge.models.reference import REFERENCE, resolve_source
from draftgauge.policies.registry import FIXED
from draftgauge.policies.spec import PolicySpec, make_policy, read_policies
from draftgauge.policies.two_source import TWO_SOURCE
from draftgauge.serving.advice import (
    acceptance_to_pay,
    advise_batch,
    advise_settings,
    best_length,
    flags_of,
    server_row,
    thresholds,
)
from draftgauge.serving.client import CLIENTS
from draftgauge.serving.counters import SpeculationCounts, read_counts, standard_errors, tokens_per_step
from draftgauge.serving.engines import (
    DFLASH,
    EAGLE3,
    P_MIN,
    PLAIN,
    Deployment,
    Engine,
    deployment_of,
    engine_of,
    setting_length,
    settings_document,
)
from draftgauge.serving.exchange import acceptance_document, acceptance_of, conditional
from draftgauge.serving.requests_trace import import_requests
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.engine_costs import BY_DRAFTGAUGE, BY_ENGINE, load_engine_costs, read_costs
from draftgauge.traces.manifest import COSTS_NAME, Manifest
from draftgauge.traces.run import select_tasks
from draftgauge.traces.trace import narrow

Z95 = 1.96
REUSE, CHECKPOINT = "reuse", "checkpoint"
Row = dict[str, Any]
COLUMNS = (
    *("engine", "policy", "ratio_to_plain", "ratio_to_plain_low", "ratio_to_plain_high", "recommended"),
    *("tokens_per_step", "drafted_per_step", "acceptance_rate", "pays_below"),
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

    @property
    def curve(self) -> CostCurve:
        return self.curves[min(self.curves)]


OWN = ("draftgauge", "gguf")  # engines of ``draftgauge generate``


@verb(AdviseRequest)
def advise(request: AdviseRequest) -> list[Row]:
    """Say whether to speculate in an engine, and with which length or rule.

    From a run or from imported requests, every setting that the engine can run is replayed with the engine's costs.
    From a server alone, what each length up to the one it drafts commits follows from its counters; with costs, so does
    the speed.

    Returns:
        One row a setting, None for what is not known: ``engine``, ``policy``, ``recommended``, ``tokens_per_step``,
        ``drafted_per_step``, ``acceptance_rate``. ``ratio_to_plain`` has ``_low`` and ``_high`` (95%, by prompt; from
        counters as if steps were independent). ``pays_below``, where costs are not known: the most plain steps that a
        step of this length may take to pay.

        The recommended one also has ``flags``, ``verdict`` in words and whether it is ``known``
        (:class:`~draftgauge.judging.verdict.Verdict`). ``length_only``: the flags change only the length of a server
        whose drafter is not known. ``best_length``; ``by_batch`` (best lengths as JSON); ``at_batch`` (rules that adapt
        to the load, in words); ``at_context`` (lengths by context, in words, where they differ);
        ``thresholds`` (throughput either side of batch sizes at which the length changes). ``alpha_1`` is the
        first drafted token's acceptance, ``acceptance_to_pay`` the least constant chance at which some length pays.
        ``drawn`` is the drawn share of an imported trace. ``server_tokens_per_step`` is a running server's,
        ``expected_tokens_per_step`` what the run expects at its length. ``recorded_with`` has options of
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
    return _rows(request, engine, _from_run(request, engine, Run.load(request.folder)), counts)


def _from_run(request: AdviseRequest, engine: Engine, run: Run) -> _Source:
    manifest, path = run.manifest, request.costs or run.folder / COSTS_NAME
    format_ = _checkpoint_format(engine, run)
    measured = None if request.costs is None else load_engine_costs(request.costs, engine.name)
    if request.costs is None or (measured is None and not engine.loop):
        _check_loop(engine, run, path)
    curves = read_costs(path, engine.name)
    trace, _ = run.read(request.judged.tasks)
    drafted_by = None if measured is None else measured.drafted_by
    if format_ is not None and drafted_by == BY_DRAFTGAUGE:
        raise DraftgaugeError(
            f"{path} was measured with draftgauge's proposer, which does not draft with {format_} checkpoints: "
            f"{_to_measure(engine, manifest, path)}"
        )
    deployment = deployment_of(manifest, path)
    if engine.name not in OWN:  # which do not know the bundled models by name
        draft = f"{REFERENCE}/draft" if deployment.draft == REFERENCE else deployment.draft
        target, draft, tokenizer = (
            str(resolve_source(name)) for name in (deployment.target, draft, deployment.tokenizer or "")
        )
        deployment = replace(deployment, target=target, draft=draft, tokenizer=tokenizer or None)
    deployment = replace(deployment, proposer=drafted_by == BY_DRAFTGAUGE, options=recorded_with(manifest))
    first = ""
    if format_ is not None:
        draft = deployment.draft
        served = draft if manifest.drafter == CHECKPOINT else f"{draft.rstrip('/')}-{format_}"
        deployment = replace(deployment, drafter=format_, draft=served, proposer=False)
        first = "" if served == draft else shlex.join(["draftgauge", "export", draft, "--out", served])
    own = read_policies(request.policies or run.usual_policies(fitting=False), trace.gamma_max)
    in_proposer = drafted_by != BY_ENGINE and format_ is None  # the only place for policies in vLLM
    policies = engine.policies and (engine.name != "vllm" or in_proposer)
    design = run.design(own, trace, request.judged.split)
    return _Source(design, curves, deployment, own, policies, first=first, command=manifest.command)


def recorded_with(manifest: Manifest) -> tuple[str, ...]:
    """Options of ``draftgauge generate``, without the models, to decode as a run was recorded."""
    engine = manifest.target.engine
    words = ["--engine", engine] if engine.endswith("-fast") else []
    if manifest.target.compression in COMPRESSIONS[1:]:  # else the checkpoint itself was quantised
        words += ["--compression", manifest.target.compression]
    if manifest.temperature > 0:
        words += ["--temperature", f"{manifest.temperature:g}"]
        words += ["--top-k", str(manifest.top_k)] if manifest.top_k else []
        words += ["--top-p", f"{manifest.top_p:g}"] if manifest.top_p < 1 else []
    return (*words, *manifest.code_options, *manifest.rendering.options)


def _checkpoint_format(engine: Engine, run: Run) -> str | None:
    """The format in which the engine loads a drafter that reads the target, a trained one after its export; None of
    other kinds. Refuses a drafter that the engine cannot run.
    """
    kind, draft = run.manifest.drafter, run.manifest.draft
    if not engine.drafters or kind in engine.drafters:
        return None
    if kind in (REUSE, CHECKPOINT) and EAGLE3 in engine.drafters and draft is not None:
        format_, known = draft.family, list(engine.drafters)
        if kind == REUSE:
            from draftgauge.drafters.formats import dflash, eagle3
            from draftgauge.drafters.reuse.persistence import read_config

            config = read_config(Path(draft.source))
            format_, layout = (DFLASH, dflash) if config.block else (EAGLE3, eagle3)
            layout.check_exportable(config)
            lacks = eagle3.llama_cpp_lacks(config) if engine.name == "llama-server" and not config.block else None
            known = [] if lacks else list(engine.exported)
        if format_ in known:
            return format_
        kind = f"{kind} ({format_})"
    named = f"drafter {kind}".replace(f"drafter {REUSE}", "trained drafter")
    raise DraftgaugeError(
        f"{run} was recorded with the {named}, for which draftgauge writes no flags of {engine.name} (it does for "
        f"{', '.join(engine.drafters)}; {engine.name} {engine.version} itself runs {', '.join(engine.runs)}): "
        "record a run with one of these, or serve a drafter of the engine's own and give its answers with --requests"
    )


def _check_loop(engine: Engine, run: Run, costs: Path) -> None:
    """Refuse costs that were measured in another engine's decoding loop."""
    if not engine.loop:
        file = Path(f"{engine.name}-costs.json")
        again = shlex.join(["draftgauge", "advise", str(run), "--engine", engine.name, "--costs", str(file)])
        raise DraftgaugeError(
            f"what a step costs in {engine.name} is not known from {costs}: "
            f"{_to_measure(engine, run.manifest, file)}, and `{again}` (docs/serving.md says more)"
        )
    recorded = run.manifest.target.engine
    if not engine.priced_by(recorded):
        again = "a run with --target TARGET.gguf" if engine.name == "gguf" else "one with the model it was made from"
        raise DraftgaugeError(
            f"{run} was recorded with the engine {recorded}, whose costs are not those of {engine.name}: record "
            f"{again}, or give costs with --costs"
        )


def _to_measure(engine: Engine, manifest: Manifest, file: Path) -> str:
    """What to do to have a file of what a step costs in a serving engine."""
    if engine.name not in CLIENTS:
        return f"write what a step takes there to {file}"
    words = ["draftgauge", "bench-servers", "plain=http://127.0.0.1:8000", "fixed:4=http://127.0.0.1:8001"]
    words += ["--engine", engine.name, "--target", manifest.target.source, "--prompts", manifest.prompts.path]
    words += [] if manifest.tokenizer is None else ["--tokenizer", manifest.tokenizer]
    return (
        "start one server without speculation and one at a fixed length (vLLM's with --enable-per-request-metrics, the "
        "second also with --per-request-spec-decode-metrics summary), then "
        f"`{shlex.join([*words, '--costs-out', str(file)])}`"
    )


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
    judged, verdict = advise_settings(design, source.curve, settings, source.command, fitted)
    lengths = {batch: best_length(design, curve) for batch, curve in source.curves.items()}
    _export(request, acceptance_of(trace), lengths[min(lengths)])
    rows = [dict.fromkeys(COLUMNS) | {"engine": engine.name} | it for it in judged]
    for row in rows:
        if len(trace.prompts) == 1:
            row["ratio_to_plain_low"] = row["ratio_to_plain_high"] = None
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
    _advise(request, engine, best, verdict, lengths, source.deployment)
    learn = EVERYTHING if (design.split, design.train) == (TEST, None) else design.split
    best["flags"] = flags_of(engine, verdict.setting, source.deployment, request.folder, learn, request.judged.tasks)
    if source.first and verdict.speculate:
        best["flags"] = f"{source.first} && {best['flags']}"
    return rows


def _advise(
    request: AdviseRequest, engine: Engine, best: Row, verdict: Verdict, lengths: dict[int, int], deployment: Deployment
) -> None:
    """Add the verdict and the engine's flags to the recommended row, and write the engine's settings to a file."""
    best |= {"recommended": True, "verdict": str(verdict), "known": not verdict.unknown}
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
    rows: list[Row] = [
        dict.fromkeys(COLUMNS)
        | {
            "engine": engine.name,
            "policy": f"{FIXED}{length}" if length else PLAIN,
            "tokens_per_step": committed[length],
            "drafted_per_step": float(length),
            "acceptance_rate": (committed[length] - 1) / length if length else None,
            "pays_below": committed[length],
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
        interval = Interval(speed, speed * (1 - share), speed * (1 + share))
        row |= {"pays_below": None, **columns("ratio_to_plain", interval), "recommended": False}
    rows = rows[: len(speeds[batch])]
    best = rows[lengths[batch]]
    best["recommended"] = True
    _export(request, {ALL_TASKS: conditional(survival)}, lengths[batch])
    verdict = verdict_of([row | {"prompts": counts.drafts} for row in rows], unit="drafts of a server")
    _advise(request, engine, best, verdict, lengths, Deployment(drafter=None))
    return rows


def _export(request: AdviseRequest, rates: Mapping[str, Sequence[float]], length: int) -> None:
    if request.export_acceptance is not None:
        source = str(request.folder or request.requests or request.url)
        document = acceptance_document(source, rates, length)
        atomic_write_text(request.export_acceptance, json.dumps(document, indent=1) + "\n")


def _speeds(curve: CostCurve, committed: list[float]) -> list[float]:
    middle = len(curve.contexts) // 2
    longest = min(len(committed) - 1, curve.gamma_max)
    steps = [float(curve.step_seconds(length, curve.contexts[middle])) for length in range(1, longest + 1)]
    return [1.0, *(tokens * curve.plain[middle] / step for tokens, step in zip(committed[1:], steps, strict=False))]
