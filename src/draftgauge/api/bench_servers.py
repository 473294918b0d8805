"""Running servers against each other, each at a setting of its own, prompt by prompt."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

from draftgauge.benching.arms import Arm, ArmRun, BenchPrompt, bench_arms
from draftgauge.benching.bench_rows import ASKED, Reference, bench_rows, hold_to
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import require_writable_file
from draftgauge.core.parts import UNCOMPRESSED, generator
from draftgauge.core.progress import Progress, silent
from draftgauge.core.verb import verb
from draftgauge.models.folder import REFERENCE
from draftgauge.models.loading import load_tokenizer
from draftgauge.pair.prompts import PromptEncoder, choose_prompts, encode_prompts
from draftgauge.pair.started_costs import deployment_to_start
from draftgauge.policies.spec import PolicySpec
from draftgauge.requests import PLAIN, BenchServersRequest
from draftgauge.serving.client import CLIENTS, complete
from draftgauge.serving.counters import served_models
from draftgauge.serving.engines import engine_of
from draftgauge.serving.launching import DRAFT, started
from draftgauge.traces.engine_costs import EngineCosts, costs_of_steps

ROOM = 4096  # tokens of a prompt and its answer in a server that is started


@verb(BenchServersRequest)
def bench_servers(request: BenchServersRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Bench running servers; those named without an address are started for it, and stopped.

    With ``costs_out`` what a step costs is written, from the fixed lengths among the servers. One named ``draft``
    serves the draft model by itself; it says what drafting costs, and has no row.

    Returns:
        Rows of :func:`~draftgauge.benching.bench_rows.bench_rows`, one arm a server, with ``engine``.

    Raises:
        DraftgaugeError: if no server is named ``plain`` or as what gains shall be over, names are doubled, or a server
            does not answer.
    """
    urls, engine = _named(request.servers), request.engine
    for name in urls:
        _ = PolicySpec.of(name).length  # refuses what is no length
    if engine not in CLIENTS:
        raise DraftgaugeError(f"servers of {engine} cannot be benched: choose --engine {' or '.join(CLIENTS)}")
    if DRAFT in urls and request.costs_out is None:
        raise DraftgaugeError(
            "a server of the draft model serves to measure costs: name the file for them with --costs-out"
        )
    if request.over is not None and request.over not in (benched := [name for name in urls if name != DRAFT]):
        raise DraftgaugeError(f"gains are stated over one of the servers, {', '.join(benched)}, not {request.over!r}")
    if request.costs_out is not None:
        require_writable_file(request.costs_out)
    with ExitStack() as running:
        if not all(urls.values()):
            start = request.start_with
            served = deployment_to_start(engine, request.target, start)
            for name in (name for name, url in urls.items() if not url):
                urls[name] = running.enter_context(started(engine_of(engine), name, served, 1, ROOM, start.program))
        return _benched(request, urls, progress)


def _benched(request: BenchServersRequest, urls: dict[str, str], progress: Progress) -> list[dict[str, Any]]:
    engine, draft = request.engine, urls.get(DRAFT)
    listed = [context for url in urls.values() for context in served_models(engine, url).values()]
    path, chosen = choose_prompts(request.prompts)
    loading, limit = request.loading, request.output.max_new_tokens
    tokenizer = load_tokenizer(loading.tokenizer or request.target or REFERENCE, loading.trust_remote_code)
    encoder = PromptEncoder(tokenizer, min((context for context in listed if context is not None), default=sys.maxsize))
    encoded = encode_prompts(encoder, chosen, path, limit, request.prompts)
    prompts = [BenchPrompt(tokens, prompt.task) for prompt, tokens in encoded]
    arms = [server_arm(name, engine, url, limit) for name, url in urls.items() if name != DRAFT]
    alone = None if draft is None else server_arm(DRAFT, engine, draft, limit)
    asked = arms if alone is None else [*arms, alone]
    _check_timed(engine, asked, prompts[0].tokens, request.costs_out is not None)
    rng = generator(request.randomness.seed, "bench", engine)
    prompts = bench_arms(arms, prompts, request.rounds, rng, partial(progress, f"bench {engine}"), request.seconds)
    if request.costs_out is not None:
        if alone is not None:
            bench_arms([alone], prompts, request.rounds, rng, lambda done, total: None)
        costs_of_arms(engine, arms, alone).save(request.costs_out)
    over = None if request.over is None else Reference(request.over, ASKED)
    rows = hold_to(bench_rows(arms, prompts, UNCOMPRESSED, over), request.at_least)
    return [row | {"engine": engine} for row in rows]


def _named(servers: Sequence[str]) -> dict[str, str]:
    pairs = [server.partition("=") for server in servers]
    names = [name for name, _, _ in pairs]
    if not all(name and "://" not in name for name in names) or len(set(names)) < len(names):
        raise DraftgaugeError(
            "give each server as SETTING=URL, and each setting once, e.g. plain=http://127.0.0.1:8000 "
            "fixed:4=http://127.0.0.1:8001, or as SETTING alone to have it started"
        )
    if PLAIN not in names:
        raise DraftgaugeError(f"speeds are over plain decoding: name the server without speculation {PLAIN}=URL")
    return {name: url for name, _, url in pairs}


def server_arm(name: str, engine: str, url: str, max_new_tokens: int) -> Arm:
    """A running server as a way of decoding."""

    length = PolicySpec.of(name).length

    def decode(prompt: list[int]) -> ArmRun:
        answer = complete(engine, url, prompt, max_new_tokens)
        seconds, steps = (answer.decode_seconds, answer.prefill_seconds), answer.steps or 0
        if length and steps and answer.drafted > length * (steps + length):  # behind an answer's end a draft counts too
            raise DraftgaugeError(
                f"the server {name} drafts more than {length} tokens a step: start it with that length"
            )
        if length and steps:  # a step drafts no more, so that an answer that ends inside a draft has as many at least
            steps = max(steps, 1 + math.ceil(answer.drafted / length))
        return ArmRun(answer.tokens, steps, answer.timed, *seconds, answer.accepted, drafted=answer.drafted)

    return Arm(name, decode)


def _check_timed(engine: str, arms: Sequence[Arm], prompt: list[int], priced: bool) -> None:
    """Refuse servers that time answers differently, draft alike at different lengths, or do not tell what a step costs
    where that is asked for."""
    metrics = "--enable-per-request-metrics"
    fixed = [arm.name for arm in arms if priced and PolicySpec.of(arm.name).length]
    if priced and not fixed:
        raise DraftgaugeError("costs need a server at a fixed length or more: name one, e.g. fixed:4=URL")
    told = {arm.name: arm.decode(prompt) for arm in arms}
    whole = [name for name, run in told.items() if engine == "vllm" and not run.prefill_seconds]
    if 0 < len(whole) < len(told):
        raise DraftgaugeError(f"the server {whole[0]} does not say how long it decoded: start it with {metrics} too")
    if unsaid := [name for name in fixed if not told[name].steps]:
        how = f": start it with {metrics} and --per-request-spec-decode-metrics summary" if engine == "vllm" else ""
        raise DraftgaugeError(f"the server {unsaid[0]} does not say what it accepted{how}")
    lengths = {name: length for name in told if (length := PolicySpec.of(name).length)}
    for shorter, longer in pairwise(sorted(lengths, key=lambda name: lengths[name])):
        passes = [max(1, told[name].timed - told[name].accepted_draft) for name in (shorter, longer)]
        rates = [told[name].drafted / n for name, n in zip((shorter, longer), passes, strict=True)]
        if 0 < rates[1] <= rates[0] and min(passes) > lengths[longer]:  # of fewer passes the end cuts many
            raise DraftgaugeError(
                f"the servers {shorter} and {longer} draft {rates[0]:.2f} and {rates[1]:.2f} tokens a step, so the "
                "length did not take effect: start each server with its own, as no request sets it"
            )


def costs_of_arms(engine: str, arms: Sequence[Arm], draft: Arm | None) -> EngineCosts:
    """What a step costs, from servers that have been asked: one plain, others at fixed lengths, and the draft model."""
    fixed = {length: seconds_a_step(arm) for arm in arms if (length := PolicySpec.of(arm.name).length)}
    plain = next(arm for arm in arms if arm.name == PLAIN)
    return costs_of_steps(engine, seconds_a_step(plain), fixed, [] if draft is None else seconds_a_step(draft))


def seconds_a_step(arm: Arm) -> list[float]:
    runs = [run for each in arm.runs for run in each if run.timed]
    # The prompt's pass is one of the steps, and not timed where servers time it apart.
    steps = [run.steps - bool(run.prefill_seconds) if run.steps else run.timed for run in runs]
    return [run.seconds / passes for run, passes in zip(runs, steps, strict=True) if passes]
