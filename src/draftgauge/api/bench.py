"""Policies and baselines live, interleaved prompt by prompt, in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from draftgauge.api.datastore import read_stored
from draftgauge.api.runs import Run
from draftgauge.benching.arms import (
    DEFAULT_CONSTANT,
    BenchPrompt,
    bench_arms,
    genai_arms,
    own_arm,
    transformers_arms,
    without_failed,
)
from draftgauge.benching.bench_rows import ASKED, Reference, bench_rows, hold_to, note_near_ties
from draftgauge.core.config import given_settings, settings_of
from draftgauge.core.errors import DraftgaugeError, left_out, warn
from draftgauge.core.parts import generator, held_as
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import TEST, TRAIN
from draftgauge.core.verb import busy_note, machine_load, verb
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.base import record_passes
from draftgauge.judging.evaluate import SAME_PROMPTS
from draftgauge.judging.replay import best_fixed_gamma
from draftgauge.judging.splits import (
    EVERYTHING,
    MIN_PROMPTS,
    Design,
    design_of,
    fitted_on,
    only_test,
    prompt_keys,
    splits_of,
    warn_of_other_pairs,
    warn_of_seen,
)
from draftgauge.models.tokenizer import answers_warning, vocabulary_digest
from draftgauge.pair.costs import pair_costs
from draftgauge.pair.loading import Pair, labelled, load_pair, load_pair_of, refuse_beside_pair
from draftgauge.pair.prompts import EncodedPrompt, choose_prompts, encode_prompts, prompts_of
from draftgauge.policies.base import Policy
from draftgauge.policies.ngrams import with_stored
from draftgauge.policies.spec import PolicySpec, compared_policies, read_policies, with_objects
from draftgauge.requests import PLAIN, BenchRequest, DraftSpec, OutputSpec
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import select

DEFAULTS = ("no-draft", "fixed:2", "fixed:4", "fixed:6", *compared_policies())  # without a recorded run of this drafter
SETTLED = (  # by the manifest of a run
    *("target", "compression", "prompts", "max_new_tokens", "gamma_max"),
    *("chat", "turns", "chat_template_args", "system", "long_prompts"),
)
MEASURED = ("cost_seconds", "measure")  # by the run, unless another drafter is named


@dataclass(frozen=True)
class _Compared:
    """What to compare: named policies, the user's own ones, and the arm that gains are stated over."""

    named: tuple[PolicySpec, ...]
    objects: Mapping[str, Policy]
    over: Reference | None


@verb(BenchRequest, loaded=Pair)
def bench(
    request: BenchRequest,
    *,
    pair: Pair | None = None,
    objects: Mapping[str, Policy] | None = None,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Bench policies live: on the pair and the prompts of recorded runs, or on a pair of which nothing has been
    recorded. ``bench(pair, policies=("stopping",))`` decodes with a pair that is loaded already.

    Args:
        request: what to bench. A run's manifest names the pair, the prompts and the lengths, and only what is chosen
            among them may be asked for. Test prompts are chosen where prompts name training and test ones, or a policy
            was fitted on some.
        pair: loaded already, and then the request names no run; the request's is loaded if None.
        objects: policies of your own by name, beside the named ones. Where none is named, only they run, beside plain
            decoding and what gains are stated over. A copy runs for every pair.

    Returns:
        Rows as :func:`bench_rows` describes. What gains are stated over always runs: the policy asked for, else a run's
        best fixed length, chosen on training prompts where there are any. Of several runs each row has its ``run``; one
        that cannot be benched is left out, with a row that has only ``run`` and ``error``.

    Raises:
        DraftgaugeError: for unknown policies, models that are not the trace's, a trace of sampled decoding, or unusable
            prompts or models. Also for a loaded pair beside a run or models to load, or if of several runs none can be
            benched.
    """
    objects = objects or {}
    over = None if request.over is None else Reference(PolicySpec.of(request.over).text, ASKED)
    rows: list[dict[str, Any]] = []
    if pair is None and request.folder is not None:
        _check_given(request, request.folder)
        runs = Run.find(request.folder)
        if len(runs) == 1:
            return _bench_run(request, runs[0], objects, over, progress)
        failed: dict[Run, str] = {}
        for run in runs:
            with left_out(run, failed):  # what the others took minutes for is not lost
                benched = _bench_run(request, run, objects, over, progress)
                rows += [row | {"run": run.name} for row in benched]
        if not rows:
            raise DraftgaugeError(f"no run in {request.folder} could be benched; the last was {run}: {failed[run]}")
        return rows + [{"run": run.name, "error": error} for run, error in failed.items()]
    if pair is not None:
        refuse_beside_pair(request, "folder")
    compared = _compared(request, objects, DEFAULTS, request.drafts.gamma_max, over)
    path, chosen = choose_prompts(request.prompts)
    for compression in labelled(request.pair).compression if pair is None else (pair.compression,):
        loaded = pair or load_pair(request.pair.at(compression))
        warn_of_other_pairs(compared.named, loaded.fingerprints())
        prompts = encode_prompts(loaded.encoder, chosen, path, request.output.max_new_tokens, request.prompts)
        rows += _bench(request, loaded, prompts, compared, progress)
        del loaded  # two targets may not fit
    return rows


def _check_given(request: BenchRequest, folder: Path) -> None:
    """Refuse options that the recorded run already determines."""
    given = given_settings(request)
    names = SETTLED if request.pair.drafter is not None else (*SETTLED, *MEASURED)
    if settled := [entry.option for entry in settings_of(BenchRequest) if entry.name in names and entry.name in given]:
        raise DraftgaugeError(
            f"the recorded run in {folder} has its own pair, prompts and costs: leave out {', '.join(settled)}, or the "
            "run"
        )


def _compared(
    request: BenchRequest, objects: Mapping[str, Policy], default: Sequence[str], gamma_max: int, over: Reference | None
) -> _Compared:
    """The policies to decode with, that of ``over`` among them; unknown ones are refused before anything is loaded."""
    usual = () if objects else tuple(d for d in default if (PolicySpec.of(d).length or 0) <= gamma_max)
    specs = request.policies or usual
    if over is not None and over.arm != PLAIN:
        if over.arm == "fixed":
            raise DraftgaugeError(f"gains are stated over one policy, and {over.arm!r} stands for several")
        specs = specs if over.arm in objects else (*specs, over.arm)
    return _Compared(read_policies(specs, gamma_max), objects, over)


def _bench_run(
    request: BenchRequest, run: Run, objects: Mapping[str, Policy], over: Reference | None, progress: Progress
) -> list[dict[str, Any]]:
    """Rows of one recorded run: its manifest determines the pair, the prompts and the lengths."""
    manifest = run.manifest
    if manifest.temperature > 0:
        raise DraftgaugeError(
            f"{run} holds a trace of sampled decoding (temperature {manifest.temperature:g}), and bench decodes "
            "greedily, to compare outputs token by token: name a run recorded at temperature 0, or `draftgauge replay` "
            "this one"
        )
    recorded = request.pair.drafter is None  # else its prompts are decoded with another drafter
    trace, costs = run.read()
    design = design_of(trace)
    default: Sequence[str] = DEFAULTS
    if recorded:
        best = best_fixed_gamma(design.training, costs)
        over = over or Reference(PolicySpec.fixed(best).text, SAME_PROMPTS if design.train is None else TRAIN)
        near = sorted({max(1, best - 2), max(1, best), min(manifest.gamma_max, max(1, best) + 2)})
        default = ("no-draft", *(f"fixed:{gamma}" for gamma in near), *compared_policies())
    compared = _compared(request, objects, default, manifest.gamma_max, over)
    fitted = fitted_on(compared.named).intersection(prompt_keys(trace))
    asked = None if only_test(trace) and request.prompts.split == TEST and not fitted else request.prompts.split
    split, splits = asked or (TEST if design.split == TEST else None), splits_of(trace)
    if split is None and fitted and (splits == TEST).sum() >= MIN_PROMPTS:
        split = TEST
    # divided as ``fit`` and ``replay`` do, where prompts name no splits
    unseen = {p.index for p, own in zip(trace.prompts, splits, strict=True) if split in (None, own)}
    pair = load_pair_of(manifest, request.pair)
    warn_of_other_pairs(compared.named, pair.fingerprints())
    if recorded and (was := costs.engine) != (now := pair.target.spec.engine):
        warn(f"the costs in {run} are of the engine {was}, and here {now} decodes: measure them again")
    prompts = prompts_of(run, replace(request.prompts, split=None), unseen)
    decoded = {prompt.index for prompt, _ in prompts}
    judged = select(trace, [prompt.index in decoded for prompt in trace.prompts])
    warn_of_seen(run.folder, Design(split or EVERYTHING, judged, None), compared.named)
    settled = replace(
        request,
        output=OutputSpec(max_new_tokens=manifest.max_new_tokens),
        drafts=DraftSpec(gamma_max=manifest.gamma_max),
        prompts=replace(request.prompts, turns=manifest.rendering.turns),
    )
    return _bench(settled, pair, prompts, compared, progress, costs if recorded else None)


def _bench(
    request: BenchRequest,
    pair: Pair,
    prompts: Sequence[EncodedPrompt],
    compared: _Compared,
    progress: Progress,
    costs: CostCurve | None = None,
) -> list[dict[str, Any]]:
    """Decode every prompt with every policy; a policy that weighs costs gets those given, else the pair's own."""
    length, gamma_max = request.output.max_new_tokens, pair.longest(request.drafts.gamma_max)
    asked = {PolicySpec.of(text).text for text in (*request.policies, *([compared.over.arm] if compared.over else ()))}
    named = [p for p in compared.named if p.text in asked or (p.length or 0) <= gamma_max]
    if costs is None and any(policy.weighs_cost for policy in named):
        costs = pair_costs(pair, request.costs, gamma_max, progress=progress)
    held = held_as(pair.compression, pair.target.spec.engine)
    made = with_objects({p.text: p.make(gamma_max, costs, held) for p in named}, compared.objects)
    if request.datastore is not None:
        decoded = [tokens for _, tokens in prompts]
        with_stored(list(made.values()), read_stored(request.datastore, vocabulary_digest(pair.tokenizer), decoded))
    settings = DecodingSettings(length, end_tokens=pair.end_tokens, gamma_max=gamma_max)
    drafter = pair.drafter() if made else None
    record_passes(pair.target, drafter, gamma_max, length + max(len(tokens) for _, tokens in prompts))
    arms = [own_arm(pair, settings), *(own_arm(pair, settings, spec, own, drafter) for spec, own in made.items())]
    if request.baselines:
        length_over = PolicySpec.of(compared.over.arm).length if compared.over else None
        arms += transformers_arms(pair, length, length_over or DEFAULT_CONSTANT, list(made))
        arms += genai_arms(pair, length, length_over or DEFAULT_CONSTANT)
    ready = [BenchPrompt(tokens, prompt.task, prompt.index // request.prompts.turns) for prompt, tokens in prompts]
    rng = generator(request.randomness.seed, "bench", pair.compression)
    told = partial(progress, f"bench {pair.compression}")
    ready = bench_arms(arms, ready, request.rounds, rng, told, request.seconds)
    arms = without_failed(arms)
    note_near_ties(pair.target, arms, ready)
    if said := answers_warning([arms[0].runs[number][0].tokens for number in range(len(ready))], pair.end_tokens):
        warn(said)
    rows = hold_to(bench_rows(arms, ready, pair.compression, compared.over), request.at_least)
    if busy_note(machine_load()):
        advised = next(row for row in rows if "verdict" in row)
        advised["verdict"] += " The machine was busy meanwhile: measure again on a quiet one before you rely on it."
    return rows
