"""Which setup to deploy: recorded runs of the same prompts beside each other, in tokens a second."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from draftgauge.core.errors import DraftgaugeError, TraceError, warn
from draftgauge.core.parts import COMPRESSED_BEFORE, COMPRESSIONS, LEVELS, held_as
from draftgauge.core.prompts import TEST
from draftgauge.core.provenance import read_measurement
from draftgauge.core.verb import verb
from draftgauge.drafters.base import choose_drafter
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.ranking import LOOKUPS, Ranked, at_best, on_one_target
from draftgauge.judging.replay import plain_replay
from draftgauge.judging.splits import EVERYTHING, Design, design_of
from draftgauge.judging.statistics.bootstrap import Interval, columns
from draftgauge.judging.verdict import LOOKUP, NOT_DRAFTING
from draftgauge.models.device import on_meta, weight_bytes
from draftgauge.models.folder import weight_bytes_of
from draftgauge.models.spec import read_configuration
from draftgauge.pair.deployed import recorded_with
from draftgauge.pair.quality import read_quality
from draftgauge.policies.spec import compared_policies
from draftgauge.requests import PLAIN, CompareRequest, JudgedSpec
from draftgauge.serving.advice import flags_of
from draftgauge.serving.engines import deployment_of, engine_of
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import COSTS_NAME, Manifest, ModelEntry, Run
from draftgauge.traces.trace import Trace, conversations, select

MIB = 2**20
BENCH_NAME = "bench.json"
MACHINE = ("cpu", "cores", "gpu")  # of a manifest's environment
TEXTS = ("max_new_tokens", "temperature", "rendering")  # of a manifest: what makes texts differ
Row = dict[str, Any]


@verb(CompareRequest)
def compare(request: CompareRequest) -> list[Row]:
    """Put runs side by side in tokens a second: plain decoding, the best rule replayed, and live where it was benched.

    Prompts count that every run has. Outputs may differ, as targets do.

    Returns:
        One row a run, the fastest first:

        - ``run``, ``target``, ``compression`` (empty of GGUF and OpenVINO), ``engine``, ``drafter``, ``prompts``.
        - ``plain_tokens_per_second``; ``policy``, the simplest setting that is level with the fastest.
        - ``tokens_per_second`` and ``ratio_to_plain`` of this setting, with ``_low`` and ``_high``. The interval of the
          former holds what costs are known to.
        - ``gain`` over the first row with ``_low`` and ``_high``, and whether it is ``level`` with it.
        - ``live_policy``, ``live_tokens_per_second``, ``live_plain_tokens_per_second``: of a bench.
        - ``kl``: to the uncompressed target in nats, where ``profile`` measured it.
        - ``agreement``: the chance that a token is that of the run ``agreement_with`` after the same text.
        - ``weights_mib``: of target and draft as they are held, about.
        - ``peak_memory_gib``: the most in use, from loading to measuring costs, libraries and caches among it.
        - ``device``, ``machine``, ``cost_doubt``.
        - ``deploy``, a command, and ``verdict``, in words: of the first row only.

    Raises:
        DraftgaugeError: for a single run, runs of other prompts, or a bench of none of them.
        TraceError: for a folder without a complete run.
    """
    runs = list({run.folder.resolve(): run for folder in request.folders for run in Run.find(folder)}.values())
    if len(runs) < 2:
        raise DraftgaugeError(f"{runs[0]} is a single run, and compare puts several side by side: name another one")
    return compare_rows(runs, _live(runs, request.bench), request.judged)


def compare_rows(runs: Sequence[Run], live: Mapping[Run, Row], judged: JudgedSpec) -> list[Row]:
    """As :func:`compare`, with what was decoded ``live`` by run."""
    traces = _same_prompts(runs, judged.tasks)
    designs = {run: design_of(trace, judged.split) for run, trace in traces.items()}
    costs = _costs(runs)
    best = {run: _best(run, design, costs[str(run)]) for run, design in designs.items()}
    speeds = {run: of.of.speed(conversations(of.trace)) for run, of in best.items()}
    reference = _reference(runs)
    rows: dict[Run, Row] = {}
    for run in runs:
        manifest, of = run.manifest, best[run]
        plain = plain_replay(of.trace, of.costs).speed(conversations(of.trace))
        weights = [_held_bytes(manifest, model) for model in (manifest.target, manifest.draft)]
        rows[run] = {
            "run": str(run),
            "target": manifest.target.source,
            "compression": held_as(manifest.target.compression, manifest.target.engine),
            "engine": of.costs.engine,
            "drafter": manifest.drafts_with,
            "prompts": len(of.trace.prompts),
            "plain_tokens_per_second": plain.estimate,
            "policy": PLAIN if of.setting in NOT_DRAFTING else of.setting,
            **columns("tokens_per_second", _with_costs(speeds[run].interval(), of.costs)),
            **columns("ratio_to_plain", speeds[run].over(plain)),
            **live.get(run, {}),
            "kl": read_quality(run.folder).get("kl"),
            "agreement": None if reference is None else _agreement(of.trace, best[reference].trace),
            "agreement_with": None if reference is None else str(reference),
            "weights_mib": None if None in weights else sum(filter(None, weights)) / MIB,
            "peak_memory_gib": of.costs.peak_memory_gib,
            "device": of.costs.device,
            "machine": _machine(run),
            "cost_doubt": of.costs.doubt() or None,
        }
    measured = "live_tokens_per_second" if len(live) == len(runs) else "tokens_per_second"
    order = sorted(runs, key=lambda run: -rows[run][measured])
    for run in runs:
        ratio = speeds[run].over(speeds[order[0]])
        rows[run] |= {**columns("gain", ratio.gain), "level": ratio.level}
    rows[order[0]] |= {
        "deploy": _deploy(order[0], live.get(order[0], {}).get("live_policy"), best, designs, judged.tasks),
        "verdict": " ".join(_said([rows[run] for run in order], measured)),
    }
    return [rows[run] for run in order]


def _same_prompts(runs: Sequence[Run], tasks: Sequence[str]) -> dict[Run, Trace]:
    """Traces of the prompts that all runs have; refuses runs of other prompts, and warns of what else differs."""
    first = runs[0].manifest
    for run in runs[1:]:
        other = run.manifest
        if (first.prompts.sha256, first.rendering.turns) != (other.prompts.sha256, other.rendering.turns):
            raise TraceError(
                f"{runs[0]} and {run} were recorded on other prompts ({first.prompts.path} and {other.prompts.path}): "
                "record both with the same --prompts and --turns"
            )
        if differing := [name for name in TEXTS if getattr(first, name) != getattr(other, name)]:
            warn(f"{runs[0]} and {run} differ in {', '.join(differing)}: they decoded other texts")
    traces = {run: run.of_tasks(tasks) for run in runs}
    indices = [{prompt.index for prompt in trace.prompts} for trace in traces.values()]
    shared, most = set.intersection(*indices), max(map(len, indices))
    if not shared:
        raise TraceError("the runs have no prompt in common: record them with the same --limit, --tasks and --split")
    if len(shared) < most:
        warn(f"{len(shared)} of {most} prompts are in every run, and count")
    machines = {_machine(run): run for run in runs}
    if len(machines) > 1:
        told = "; ".join(f"{run} on {machine or 'an unknown one'}" for machine, run in machines.items())
        warn(f"the machines differ ({told}): the order is of these machines, not of the setups alone")
    return {
        run: trace if len(trace.prompts) == len(shared) else select(trace, [p.index in shared for p in trace.prompts])
        for run, trace in traces.items()
    }


def _machine(run: Run) -> str:
    return ", ".join(str(run.manifest.environment[key]) for key in MACHINE if run.manifest.environment.get(key))


def _costs(runs: Sequence[Run]) -> dict[str, CostCurve]:
    """Costs by run; of one target on one machine as if it had run equally fast beside every drafter."""
    alike: dict[tuple[object, ...], dict[str, CostCurve]] = {}
    for run in runs:
        target, costs = run.manifest.target, run.costs
        key = (target.fingerprint, target.compression, costs.engine, costs.device, _machine(run))
        alike.setdefault(key, {})[str(run)] = costs
    levelled = (on_one_target(of) if len(of) > 1 else of for of in alike.values())
    return {run: curve for of in levelled for run, curve in of.items()}


def _with_costs(found: Interval, costs: CostCurve) -> tuple[float, float, float]:
    """A speed whose interval holds what costs are known to as well: plain decoding takes alike on every prompt."""
    apart = min(costs.measured.half_width, 1.0) if costs.measured else 0.0
    return found.estimate, found.low * (1 - apart), found.high * (1 + apart)


def _best(run: Run, design: Design, costs: CostCurve) -> Ranked:
    rules = [rule for rule in compared_policies() if rule != LOOKUP or run.manifest.drafter not in LOOKUPS]
    return at_best(design, costs, rules)


def _live(runs: Sequence[Run], files: Sequence[Path]) -> dict[Run, Row]:
    """What was decoded live: by the commands that wrote the files, or in a run's own folder."""
    found: dict[Run, Row] = {}
    for run in runs:
        if (own := run.folder / BENCH_NAME).is_file():
            found[run] = _decoded(own, run)
    for path in files:
        command = read_measurement(path).command
        try:
            words = shlex.split(command)
        except ValueError:  # an open quotation
            words = command.split()
        mine = [run for run in runs if any(map(_names(run), words))]
        if not mine:
            raise DraftgaugeError(
                f"{path} was written by `{command}`, which names none of these runs: `draftgauge bench RUN --json FILE`"
            )
        found |= {run: _decoded(path, run) for run in mine}
    return found


def _names(run: Run) -> Callable[[str], bool]:
    """Whether a word of a command, typed in any folder, names the run or the folder that holds it."""
    places = [place.parts for place in (run.folder.resolve(), run.folder.resolve().parent)]

    def named(word: str) -> bool:
        parts = Path(word).parts
        return bool(parts) and any(place[-len(parts) :] == parts for place in places)

    return named


def _decoded(path: Path, run: Run) -> Row:
    rows = [row for row in read_measurement(path).rows if row.get("task") == ALL_TASKS]
    rows = [row for row in rows if row.get("run", run.name) == run.name]
    plain = next((row for row in rows if row.get("policy") == PLAIN), None)
    chosen = next((row for row in rows if row.get("recommended")), None)
    speeds = [isinstance(row, dict) and row.get("tokens_per_second") for row in (plain, chosen)]
    if not chosen or not chosen.get("policy") or not all(isinstance(of, float | int) and of > 0 for of in speeds):
        raise DraftgaugeError(f"{path} holds no live figures of {run}: use the JSON of `draftgauge bench {run}`")
    named = {"live_policy": chosen["policy"], "live_tokens_per_second": speeds[1]}
    return named | {"live_plain_tokens_per_second": speeds[0]}


def _reference(runs: Sequence[Run]) -> Run | None:
    """The run whose target is held in the most bits, of those that say it; the first of equals."""
    targets = {run: run.manifest.target for run in runs}
    exact = [run for run, of in targets.items() if held_as(of.compression, of.engine) in LEVELS]
    whole = [run for run in exact if LEVELS[targets[run].compression] == 0]
    order = {name: place for place, name in enumerate(COMPRESSIONS)}
    return min(whole, key=lambda run: order.get(targets[run].compression, len(order)), default=None)


def _agreement(trace: Trace, reference: Trace) -> float | None:
    """The chance that a target chooses the reference's token where the text so far is the same: up to the first
    difference of each output. None where prompts were read as other tokens, or nothing was compared.
    """
    read = [[prompt.prompt_token for prompt in each.prompts] for each in (trace, reference)]
    if trace.sampled is not None or read[0] != read[1]:
        return None
    same = differing = 0
    for own, other in zip(trace.outputs, reference.outputs, strict=True):
        alike = sum(1 for _ in takewhile(bool, (own[: len(other)] == other[: len(own)]).tolist()))
        same, differing = same + alike, differing + (alike < min(len(own), len(other)))
    return same / (same + differing) if same + differing else None


def _held_bytes(manifest: Manifest, model: ModelEntry | None) -> float | None:
    """Bytes of a model's weights as it was held, about; None where its files are gone."""
    if model is None:
        return 0.0
    with suppress(DraftgaugeError, OSError):
        source = model.source if model is manifest.target else choose_drafter(model.source)[1] or model.source
        if model.engine.startswith(COMPRESSED_BEFORE):
            return float(weight_bytes_of(source))
        trusted = "--trust-remote-code" in manifest.code_options
        try:
            module = on_meta(read_configuration(str(source), trusted), trusted)
        except DraftgaugeError:  # a drafter that reads the target is no model by itself
            return float(weight_bytes_of(source))
        width = weight_bytes(model.compression, getattr(torch, model.dtype))
        return sum(parameter.numel() for parameter in module.parameters()) * width
    return None


def _deploy(
    run: Run, live: str | None, best: Mapping[Run, Ranked], designs: Mapping[Run, Design], tasks: Sequence[str]
) -> str:
    """The command that decodes as the fastest run did."""
    manifest = run.manifest
    engine = engine_of("gguf" if manifest.target.engine.startswith("gguf") else "draftgauge")
    deployment = replace(deployment_of(manifest, run.folder / COSTS_NAME), options=recorded_with(manifest))
    setting = live or best[run].setting
    design = designs[run]
    learn = EVERYTHING if (design.split, design.train) == (TEST, None) else design.split
    return flags_of(engine, PLAIN if setting in NOT_DRAFTING else setting, deployment, run.folder, learn, tasks)


def _said(rows: Sequence[Row], measured: str) -> Iterator[str]:
    """Which run to deploy, how sure that is, and what it does to outputs."""
    first, how = rows[0], "live" if measured.startswith("live") else "replayed"
    setting = first["live_policy"] if how == "live" else first["policy"]
    yield f"Deploy {first['run']} with {setting}: {first[measured]:.3g} tokens a second, {how}."
    for second in rows[1:2]:
        ratio = first[measured] / second[measured]
        yield f"The next, {second['run']}, reaches {second[measured]:.3g} (this one {ratio:.2f}x)."
    if how == "replayed" and any(row["level"] for row in rows[1:2]):
        yield "These prompts do not tell the two apart: bench both before you choose."
    if doubts := [row["run"] for row in rows if row["cost_doubt"]]:
        yield f"Costs are not to be trusted in {', '.join(doubts)}: profile again with --measure."
    if first["agreement"] is not None and first["agreement"] < 1:
        whole = next(row for row in rows if row["run"] == first["agreement_with"])
        yield f"After the same text {first['agreement']:.1%} of its tokens are those of {whole['run']},"
        yield f"which reaches {whole[measured]:.3g}."
