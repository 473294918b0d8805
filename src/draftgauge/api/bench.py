"""Policies and baselines live, interleaved prompt by prompt, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from draftgauge.api.arms import (
    BenchPrompt,
    bench_arms,
    plain_arm,
    policy_arm,
    record_passes,
    transformers_arms,
    without_failed,
)
from draftgauge.api.bench_rows import ASKED, Reference, bench_rows
from draftgauge.api.bench_servers import bench_servers
from draftgauge.api.costs import pair_costs, weigh_cost
from draftgauge.api.datastore import read_stored
from draftgauge.api.fitted_pairs import fitted_files, warn_of_other_pairs
from draftgauge.api.pair import Pair, check_draft_is_used, load_pair, refuse_beside_pair
from draftgauge.api.profile_plan import choose_prompts, encode_prompts
from draftgauge.api.recorded import load_pair_of, prompts_of
from draftgauge.api.replay import best_gamma_of, warn, warn_of_seen
from draftgauge.api.requests import PLAIN, BenchRequest
from draftgauge.api.runs import EncodedPrompt, read_run, select_runs
from draftgauge.api.verb import verb
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import TEST, TRAIN, in_turn
from draftgauge.core.seeds import generator
from draftgauge.core.settings import given_settings, settings_of
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import load_fitted
from draftgauge.policies.registry import compared_policies, expand_policy, make_policy, with_objects
from draftgauge.policies.stored_policies import with_stored
from draftgauge.replaying.evaluate import SAME_PROMPTS
from draftgauge.replaying.splits import EVERYTHING, MIN_PROMPTS, Design, design_of, prompt_keys, splits_of
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

DEFAULTS = ("none", "fixed:2", "fixed:4", "fixed:6", *compared_policies())  # without a recorded run of this drafter
SETTLED = (  # by the manifest of a run
    "target",
    "draft",
    "compression",
    "prompts",
    "max_new_tokens",
    "gamma_max",
    "chat",
    "turns",
    "chat_template_args",
    "system",
    "long_prompts",
)
MEASURED = ("cost_seconds", "measure")  # by the run, unless another drafter is named


def default_policies(manifest: Manifest, folder: Path) -> list[str]:
    """The default: a recorded run's best fixed length, one shorter and one longer, and the adaptive policies."""
    best = max(1, best_gamma_of(folder))
    near = sorted({max(1, best - 2), best, min(manifest.gamma_max, best + 2)})
    return ["none", *(f"fixed:{g}" for g in near), *compared_policies()]


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
        request: what to bench. With a run, its manifest names the pair, the prompts and the lengths, and only what is
            chosen among them may be asked for; test prompts are, where its prompts name training and test ones, or name
            none and a policy was fitted on some of them.
        pair: loaded already, and then the request names no run and no server; the request's is loaded if None.
        objects: policies of your own by name, beside the named ones; with them and without named ones, only they run,
            beside plain decoding and what gains are stated over. A copy runs for every pair.
        progress: told (what, done, total).

    Returns:
        Rows as :func:`bench_rows` describes; of running servers as :func:`bench_servers` does. What gains are stated
        over always runs: the policy asked for, else, of a recorded run, its best fixed length, chosen on training
        prompts where there are any.

    Raises:
        DraftgaugeError: for unknown policies, models that are not those of the trace, a trace of sampled decoding, or
            prompts or models that cannot be used; for a loaded pair beside a run, servers or models to load.
    """
    if pair is not None:
        refuse_beside_pair(request, "folder", "urls")
        return _bench_pair(request, lambda: pair, objects or {}, progress)
    if request.urls:
        if objects:
            raise DraftgaugeError("servers decode with what they were started with: name policies, give no objects")
        return bench_servers(request, progress)
    own = objects or {}
    if request.folder is None:
        check_draft_is_used(request.pair)
        loads = [partial(load_pair, request.pair.at(name)) for name in request.pair.compression]
        return [row for load in loads for row in _bench_pair(request, load, own, progress)]
    _check_given(request, request.folder)
    runs = select_runs(request.folder)
    return [row for run, manifest in runs for row in _bench_run(request, run, manifest, own, progress)]


def _check_given(request: BenchRequest, folder: Path) -> None:
    """Refuse what a recorded run settles itself."""
    given = given_settings(request)
    names = SETTLED if request.pair.drafter is not None else (*SETTLED, *MEASURED)
    settled = [entry.option for entry in settings_of(BenchRequest) if entry.name in names and entry.name in given]
    if settled:
        raise DraftgaugeError(
            f"the recorded run in {folder} has its own pair, prompts and costs: leave out {', '.join(settled)}, or the "
            "run"
        )


def _bench_run(
    request: BenchRequest, run: Path, manifest: Manifest, objects: Mapping[str, Policy], progress: Progress
) -> list[dict[str, Any]]:
    """Rows of one recorded run."""
    if manifest.temperature > 0:
        raise DraftgaugeError(
            f"{run} holds a trace of sampled decoding (temperature {manifest.temperature:g}), and bench decodes "
            "greedily, "
            "to compare outputs token by token: name a run recorded at temperature 0, or `draftgauge replay` this one"
        )
    recorded = request.pair.drafter is None
    trace, measured = read_run(run)
    over = _asked_reference(request, manifest.gamma_max)
    specs = request.policies or (() if objects else default_policies(manifest, run) if recorded else DEFAULTS)
    if recorded and over is None:
        best_fixed = f"fixed:{gamma}" if (gamma := best_gamma_of(run)) else "none"
        over = Reference(best_fixed, TRAIN if design_of(trace).train is not None else SAME_PROMPTS)
    specs = _expanded(specs, manifest.gamma_max, over)
    split = request.prompts.split or (TEST if design_of(trace).split == TEST else None)
    trained_on = {spec: load_fitted(file).trained_on for spec, file in fitted_files(specs).items()}
    unseen = None if split is not None else _unseen(trace, (key for keys in trained_on.values() for key in keys))
    pair = load_pair_of(manifest, request.pair)
    warn_of_other_pairs(specs, pair.fingerprints(), warn)
    prompts = prompts_of(run, manifest, pair, replace(request.prompts, split=split), unseen)
    decoded = {prompt.index for prompt, _ in prompts}
    judged = select(trace, [prompt.index in decoded for prompt in trace.prompts])
    warn_of_seen(run, Design(split or EVERYTHING, judged, None), trained_on, warn)
    costs = measured if recorded else _costs(request, pair, specs, manifest.gamma_max, progress)
    policies = _policies(specs, objects, manifest.gamma_max, costs)
    _give_datastore(request, pair, prompts, policies)
    record_passes(pair, [tokens for _, tokens in prompts], manifest.max_new_tokens, manifest.gamma_max)
    ready = _ready(prompts, manifest.rendering.turns)
    return _bench(request, pair, ready, policies, manifest.max_new_tokens, progress, over)


def _unseen(trace: Trace, trained_on: Iterable[str]) -> set[int] | None:
    """Where a policy was fitted on some of the prompts, the indices of test ones, if there are enough: named or divided
    as ``fit`` does. None for all of them.
    """
    testing = splits_of(trace) == TEST
    if not set(trained_on).intersection(prompt_keys(trace)) or testing.sum() < MIN_PROMPTS:
        return None
    return {prompt.index for prompt in select(trace, testing).prompts}


def _bench_pair(
    request: BenchRequest, load: Callable[[], Pair], objects: Mapping[str, Policy], progress: Progress
) -> list[dict[str, Any]]:
    """Rows of a pair of which nothing is recorded, loaded once the rest of the request is known to be sound."""
    length, longest = request.output.max_new_tokens, request.drafts.gamma_max
    over = _asked_reference(request, longest)
    specs = _expanded(request.policies or (() if objects else DEFAULTS), longest, over)
    path, chosen = choose_prompts(request.prompts)
    pair = load()
    warn_of_other_pairs(specs, pair.fingerprints(), warn)
    prompts = encode_prompts(pair, chosen, path, length, request.prompts)
    costs = _costs(request, pair, specs, longest, progress)
    policies = _policies(specs, objects, longest, costs)
    _give_datastore(request, pair, prompts, policies)
    record_passes(pair, [tokens for _, tokens in prompts], length, longest)
    return _bench(request, pair, _ready(prompts, request.prompts.turns), policies, length, progress, over)


def _policies(
    specs: Sequence[str], objects: Mapping[str, Policy], gamma_max: int, costs: CostCurve | None
) -> dict[str, Policy]:
    """Every named policy, and copies of the given ones."""
    policies = {spec: make_policy(spec, gamma_max, costs) for spec in specs}
    return with_objects(policies, objects)


def _give_datastore(
    request: BenchRequest, pair: Pair, prompts: Sequence[EncodedPrompt], policies: Mapping[str, Policy]
) -> None:
    """Let policies look in the datastore that the request names."""
    if request.datastore is not None:
        vocabulary = vocabulary_digest(pair.tokenizer)
        stored = read_stored(request.datastore, vocabulary, [tokens for _, tokens in prompts])
        with_stored(list(policies.values()), stored)


def _asked_reference(request: BenchRequest, gamma_max: int) -> Reference | None:
    """The policy that gains shall be stated over, if the request names one."""
    if request.over is None:
        return None
    if request.over != PLAIN and len(expand_policy(request.over, gamma_max)) != 1:
        raise DraftgaugeError(f"gains are stated over one policy, and {request.over!r} stands for several")
    return Reference(request.over, ASKED)


def _expanded(policies: Sequence[str], gamma_max: int, over: Reference | None) -> tuple[str, ...]:
    """The spec of every policy once, that of the reference among them; unknown ones are refused before any loading."""
    named = (*policies, over.arm) if over is not None and over.arm != PLAIN else policies
    specs = tuple(dict.fromkeys(spec for policy in named for spec in expand_policy(policy, gamma_max)))
    weigh_cost(specs)
    return specs


def _costs(
    request: BenchRequest, pair: Pair, specs: Sequence[str], gamma_max: int, progress: Progress
) -> CostCurve | None:
    """The pair's cost curve, where a policy weighs it."""
    return pair_costs(pair, request.costs, gamma_max, progress=progress) if weigh_cost(specs) else None


def _ready(prompts: Sequence[EncodedPrompt], turns: int) -> list[BenchPrompt]:
    """Prompts to decode, ``turns`` being the most turns of a conversation."""
    return [BenchPrompt(tokens, prompt.task, prompt.index // turns) for prompt, tokens in prompts]


def _bench(
    request: BenchRequest,
    pair: Pair,
    ready: list[BenchPrompt],
    policies: Mapping[str, Policy],
    max_new_tokens: int,
    progress: Progress,
    over: Reference | None,
) -> list[dict[str, Any]]:
    settings = DecodingSettings(max_new_tokens=max_new_tokens, end_tokens=pair.end_tokens)
    arms = [plain_arm(pair, settings), *(policy_arm(pair, spec, policy, settings) for spec, policy in policies.items())]
    arms += transformers_arms(pair, max_new_tokens) if request.baselines else []
    until = None
    if request.seconds is not None:
        until = time.monotonic() + request.seconds
        ready = in_turn(ready)  # the time may be over before the last one
    rng = generator(request.randomness.seed, "bench", pair.compression)
    label = f"bench {pair.compression}"
    decoded = bench_arms(arms, ready, request.rounds, rng, lambda done, total: progress(label, done, total), until)
    return bench_rows(without_failed(arms, warn), ready[:decoded], pair.compression, over)
