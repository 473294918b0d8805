"""Which drafter for this target: each recorded over the same outputs, measured, and ranked by its best setting."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.api.bench import bench
from draftgauge.api.compare import compare_rows
from draftgauge.api.profile import AskedPrompt, record_runs
from draftgauge.core.errors import DraftgaugeError, TraceError, left_out, warn
from draftgauge.core.files import require_writable
from draftgauge.core.parts import COMPRESSED_BEFORE, COMPRESSIONS, UNCOMPRESSED
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import first_in_turn
from draftgauge.core.verb import verb
from draftgauge.decoding.recorder import Answer
from draftgauge.drafters.base import LoadOptions, choose_drafter, drafter_kind
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.fitting import FITTED, fitted_to
from draftgauge.judging.ranking import ENGINE_RULES, LOOKUPS, on_one_target, rank_rows
from draftgauge.judging.replay import plain_replay, replay
from draftgauge.judging.splits import MIN_PROMPTS, design_of
from draftgauge.models.device import choose_device, release_unused
from draftgauge.models.folder import weight_bytes_of
from draftgauge.models.loading import check_engine, load_tokenizer
from draftgauge.pair.loading import labelled, target_of
from draftgauge.pair.prompts import choose_prompts
from draftgauge.policies.spec import NO_DRAFT, make_policy
from draftgauge.requests import (
    PLAIN,
    BenchRequest,
    JudgedSpec,
    PairSpec,
    ProfileRequest,
    PromptSpec,
    RankRequest,
)
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.engine_costs import read_costs
from draftgauge.traces.run import MANIFEST_NAME, Run
from draftgauge.traces.trace import Trace, conversations, select

MIB = 2**20
LIVE = ("live_tokens_per_second", "live_plain_tokens_per_second")
OVER = "the time of --seconds was over before it: run the same command again to go on"


@verb(RankRequest)
def rank(request: RankRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Record every drafter over the same outputs of a target, and rank them by speed at the best setting of each.

    The target's outputs are decoded once, with the first drafter; the others draft along them. Every drafter has a run
    in a folder of its own below ``out``, which the other verbs read too. Asked for again, it goes on where it stopped.

    Returns:
        Rows as :func:`draftgauge.judging.ranking.rank_rows` describes, with ``weights_mib`` of the drafter's files and
        its ``run``. A drafter that cannot be used is left out, with a row that has only ``drafter`` and ``error``. With
        ``live``, the rows of all prompts have ``live_ratio_to_plain`` with ``_low`` and ``_high``;
        ``live_tokens_per_second`` and ``live_plain_tokens_per_second``; ``live_modelled``, the modelled ratio of these
        prompts. ``live_mismatched_prompts`` counts those whose output is not that of plain decoding.

        With ``setups``, rows of :func:`~draftgauge.api.compare.compare` with their ``setup``. What is left out has
        ``setup``, ``drafter`` and ``error``.

    Raises:
        DraftgaugeError: for a target, prompts, costs or a folder that cannot be used.
    """
    if request.setups:
        return _of_setups(request, progress)
    given = _given_costs(request)
    request, runs, failed = record_alike(request, progress)
    recorded = {} if not runs else _comparable(runs, given)
    rows = [] if not runs else rank_rows(recorded)
    for row in rows:
        row["run"] = None if row["drafter"] == NO_DRAFT else str(runs[row["drafter"]])
        row["weights_mib"] = 0.0 if row["run"] is None else _weights_mib(runs[row["drafter"]])
        if request.live is not None and row["run"] is not None and (row["task"], row["context"]) == (ALL_TASKS, None):
            row |= _live(request, request.live, row, recorded[row["drafter"]][1], progress)
    return rows + [{"drafter": drafter, "error": error} for drafter, error in failed.items()]


def _of_setups(request: RankRequest, progress: Progress) -> list[dict[str, Any]]:
    """Rank with every setup in a folder of its own, and compare all runs in tokens a second."""
    asked, begun = {setup: _of_setup(request, setup) for setup in request.setups}, time.monotonic()
    live: dict[Run, dict[str, Any]] = {}
    setups: dict[str, str] = {}
    failed: list[dict[str, Any]] = []
    lost: dict[str, str] = {}
    for setup, each in asked.items():
        left = None if request.seconds is None else begun + request.seconds - time.monotonic()
        rows: list[dict[str, Any]] = []
        with left_out(setup, lost):
            if setups and left is not None and left <= 0:
                raise DraftgaugeError(OVER)
            limited = replace(each, seconds=None if left is None else max(left, 1e-9))
            rows = rank(limited, progress=lambda what, *of, named=setup: progress(f"{named}, {what}", *of))
        failed += [{"setup": setup, "error": lost[setup]}] if setup in lost else []
        failed += [{"setup": setup} | row for row in rows if "error" in row]
        for row in rows:
            if row.get("run") and (row["task"], row["context"]) == (ALL_TASKS, None):
                setups[row["run"]] = setup
                kept = {key: row[key] for key in LIVE if key in row}
                setting = PLAIN if row["policy"] == NO_DRAFT else row["policy"]
                live |= {Run(Path(row["run"])): kept | {"live_policy": setting}} if kept else {}
    compared = compare_rows([Run(Path(run)) for run in setups], live, JudgedSpec()) if setups else []
    return [{"setup": setups[row["run"]]} | row for row in compared] + failed


def _of_setup(request: RankRequest, setup: str) -> RankRequest:
    """The request of one setup, whose target may be a file that was compressed before."""
    kind, _, file = setup.partition(":")
    asked = replace(request, setups=(), out=request.out / re.sub(r"[^\w.-]+", "-", setup).strip("-."))
    if setup in COMPRESSIONS:
        return replace(asked, compression=setup)
    if kind not in COMPRESSED_BEFORE or not file:
        raise DraftgaugeError(
            f"a setup is one of {', '.join(COMPRESSIONS)}, gguf:FILE or openvino:FOLDER, not {setup!r}"
        )
    check_engine(f"{kind}-fast")
    if not Path(file).exists():
        raise DraftgaugeError(f"there is no {file}, which --setup {setup} names")
    loading = replace(request.loading, engine=f"{kind}-fast", tokenizer=request.loading.tokenizer or request.target)
    return replace(asked, target=file, loading=loading)


def record_alike(request: RankRequest, progress: Progress) -> tuple[RankRequest, dict[str, Run], dict[str, str]]:
    """Record every drafter along the first one's outputs; the request with its target, runs and errors by drafter."""
    folders = _run_folders(request)
    target, *others = dict.fromkeys(target_of(_pair_spec(request, drafter)) for drafter in folders)
    if others:
        raise DraftgaugeError(f"these drafters are for {target} and {others[0]}: name one target with --target")
    request = replace(request, target=target)
    choose_prompts(request.prompts)  # what no drafter could use is refused before any is tried
    tokenizer = load_tokenizer(request.loading.tokenizer or target, request.loading.trust_remote_code)
    labelled(PairSpec(target=target, compression=(request.compression,)))
    check_engine(request.loading.engine)
    choose_device(request.machine.device)
    require_writable(request.out)
    runs: dict[str, Run] = {}
    failed: dict[str, str] = {}
    begun = time.monotonic()
    loading = request.loading
    options = LoadOptions(UNCOMPRESSED, None, "auto", loading.trust_remote_code, loading.allow_pickle, target)
    for drafter in folders:  # before hours are spent on the others
        with left_out(drafter, failed):
            name, source = choose_drafter(_recorded_as(drafter))
            drafter_kind(name).check(source, tokenizer, options)
    for drafter, run in folders.items():
        if drafter not in failed:
            with left_out(drafter, failed):
                if runs and request.seconds is not None and time.monotonic() - begun > request.seconds:
                    raise DraftgaugeError(OVER)
                _record(request, drafter, run, next(iter(runs.values()), None), progress)
                runs[drafter] = Run(run)
    return request, runs, failed


def _live(
    request: RankRequest, count: int, row: Mapping[str, Any], costs: CostCurve, progress: Progress
) -> dict[str, Any]:
    """What decoding the first prompts at a drafter's best setting gains; nothing where it cannot be done."""
    run = Run(Path(row["run"]))
    setting, fitted, trace = row["policy"], {}, run.trace

    asked = BenchRequest(
        folder=run.folder,
        policies=() if setting == FITTED else (setting,),
        pair=PairSpec(machine=request.machine, loading=request.loading),
        prompts=PromptSpec(limit=count),
        over=PLAIN,
        baselines=False,
        rounds=1,
        randomness=request.randomness,
    )
    rows = None
    try:
        if setting == FITTED:
            fitted[setting] = fitted_to(_not_decoded(trace, count), run.costs)
        rows = bench(asked, objects=fitted, progress=lambda what, *of: progress(f"{row['drafter']}: {what}", *of))
    except DraftgaugeError as error:
        warn(f"{row['drafter']} is not decoded live: {error}")
    release_unused()
    if rows is None:
        return {}
    decodes = PLAIN if setting == NO_DRAFT else setting  # as the ranking prices it
    speeds = {each["policy"]: each["tokens_per_second"] for each in rows if each["task"] == ALL_TASKS}
    (live,) = (each for each in rows if each["policy"] == decodes and each["task"] == ALL_TASKS)
    ratios = {f"live_ratio_to_plain{end}": live[f"ratio_to_plain{end}"] for end in ("", "_low", "_high")}
    decoded = select(trace, _decoded(trace, count))
    policy = fitted.get(setting) or make_policy(setting, trace.gamma_max, costs)
    plain = plain_replay(decoded, costs)
    modelled = 1.0 if setting == NO_DRAFT else plain.seconds.sum() / replay(decoded, policy, costs).seconds.sum()
    ratios |= {"live_tokens_per_second": speeds[decodes], "live_plain_tokens_per_second": speeds[PLAIN]}
    return ratios | {"live_modelled": modelled, "live_mismatched_prompts": live["mismatched_prompts"]}


def _decoded(trace: Trace, count: int) -> NDArray[np.bool_]:
    """``[prompts]`` which ones ``bench`` decodes of a run with at most ``count``."""
    chosen = {prompt.index for prompt in first_in_turn(design_of(trace).trace.prompts, count)}
    return np.array([prompt.index in chosen for prompt in trace.prompts])


def _not_decoded(trace: Trace, count: int) -> Trace:
    """What a rule is fitted on for a live run: training prompts, else the conversations that it does not decode."""
    design = design_of(trace)
    if design.train is not None:
        return design.train
    numbers = conversations(trace)
    others = select(trace, ~np.isin(numbers, numbers[_decoded(trace, count)]))
    if len(others.prompts) >= MIN_PROMPTS:
        return others
    warn(f"{FITTED} decodes prompts live that it was fitted on: fewer than {MIN_PROMPTS} are left besides them")
    return trace


def _run_folders(request: RankRequest) -> dict[str, Path]:
    if (request.out / MANIFEST_NAME).is_file():
        raise TraceError(f"{request.out} holds the run of one drafter, not of several: choose another folder")
    for drafter in request.drafters:
        choose_drafter(_recorded_as(drafter))  # refuses what can draft nothing, before hours are spent on the others
    names = {drafter: re.sub(r"[^\w.-]+", "-", drafter).strip("-.") for drafter in request.drafters}
    if len({"", *names.values()}) <= len(names):
        raise DraftgaugeError(f"{', '.join(names)} have no folders of their own in {request.out}: give full paths")
    return {drafter: request.out / name for drafter, name in names.items()}


def _given_costs(request: RankRequest) -> dict[str, CostCurve]:
    """Costs of an engine in place of those measured here, by drafter."""
    given = {}
    for entry in request.costs_of:
        drafter = next((name for name in request.drafters if entry.startswith(f"{name}=")), None)
        if drafter is None:
            raise DraftgaugeError(f"--costs takes DRAFTER=FILE, with one of the drafters, not {entry!r}")
        path = Path(entry.removeprefix(f"{drafter}="))
        curves = read_costs(path, request.costs_engine)
        given[drafter] = curves[min(curves)]
        if given[drafter].gamma_max < request.drafts.gamma_max:
            raise DraftgaugeError(
                f"{path} says what drafts of up to {given[drafter].gamma_max} tokens cost, and --gamma-max is "
                f"{request.drafts.gamma_max}: lower it"
            )
    if lacking := [drafter for drafter in request.drafters if given and drafter not in given]:
        raise DraftgaugeError(
            f"speeds are compared in one engine: give --costs of {', '.join(lacking)} too, or of no drafter"
        )
    return given


def _pair_spec(request: RankRequest, drafter: str) -> PairSpec:
    pair = PairSpec(target=request.target, compression=(request.compression,), drafter=_recorded_as(drafter))
    return replace(pair, machine=request.machine, loading=request.loading)


def _recorded_as(drafter: str) -> str:
    return LOOKUPS[0] if drafter in ENGINE_RULES else drafter


def _record(request: RankRequest, drafter: str, run: Path, known: Run | None, progress: Progress) -> None:
    """Record a drafter, along the outputs of the run ``known`` if there is one, and measure its costs."""
    asked = ProfileRequest(
        out=run,
        pair=labelled(_pair_spec(request, drafter)),
        prompts=request.prompts,
        output=request.output,
        drafts=request.drafts,
        randomness=request.randomness,
        costs=request.costs,
    )
    answers = None if known is None else _answers(known.trace)
    record_runs(asked, lambda what, done, total: progress(f"{drafter}: {what}", done, total), answers)
    release_unused()


def _answers(trace: Trace) -> dict[AskedPrompt, Answer]:
    entropies = np.split(trace.target_entropy, trace.offsets[1:-1])
    return {
        (p.index, p.prompt_token): Answer(output.tolist(), "stop" if p.finish == "stop" else "length", entropy)
        for p, output, entropy in zip(trace.prompts, trace.outputs, entropies, strict=True)
    }


def _comparable(runs: Mapping[str, Run], given: Mapping[str, CostCurve]) -> dict[str, tuple[Trace, CostCurve]]:
    """Traces of the same prompts and outputs, with costs."""
    traces = same_outputs(runs)
    measured = given or {drafter: run.costs for drafter, run in runs.items()}
    if len(places := {f"{of.engine} on {of.device}" for of in measured.values()}) > 1:
        raise DraftgaugeError(f"costs were measured with {' and '.join(sorted(places))}: rank again with --measure")
    costs = given or on_one_target(measured)
    return {drafter: (trace, costs[drafter]) for drafter, trace in traces.items()}


def same_outputs(runs: Mapping[str, Run]) -> dict[str, Trace]:
    """Traces of the prompts to which all runs have the same output."""
    traces = {drafter: run.trace for drafter, run in runs.items()}
    outputs = {drafter: _answers(trace) for drafter, trace in traces.items()}
    first = next(iter(outputs.values()))
    shared = {asked for asked, output in first.items() if all(of.get(asked) == output for of in outputs.values())}
    if len(shared) < max(map(len, outputs.values())):
        warn(f"{len(shared)} of {max(map(len, outputs.values()))} prompts have the same output in every run, and count")
    if not shared:
        raise TraceError("the runs have no output in common: rank into a new folder")
    return {
        drafter: select(trace, [(p.index, p.prompt_token) in shared for p in trace.prompts])
        for drafter, trace in traces.items()
    }


def _weights_mib(run: Run) -> float:
    manifest = run.manifest
    if manifest.draft is None:
        return 0.0
    _, source = choose_drafter(manifest.draft.source)
    assert source is not None
    return weight_bytes_of(source) / MIB
