"""What a step costs in a server that is started on this machine at one length after another, and stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress
from draftgauge.models.folder import resolve_draft, resolve_source
from draftgauge.pair.costs import bundled_text
from draftgauge.policies.spec import FIXED
from draftgauge.requests import CostsRequest, StartSpec
from draftgauge.serving.client import CLIENTS, How, complete, prompt_tokens
from draftgauge.serving.counters import read_counts
from draftgauge.serving.engines import ENGINES, GGUF, LANGUAGE_MODEL, LOOKUP, MTP, PLAIN, Deployment
from draftgauge.serving.launching import DRAFT, started
from draftgauge.traces.costs import Floats, fit_law
from draftgauge.traces.engine_costs import EngineCosts, costs_of_steps

CONTEXTS = (256,)  # where none are asked for: processors read long prompts slowly
STEPS, ROUNDS = 16, 3
APART = 0.05  # two servers of a setting whose steps differ by more are followed by a third
REPEATED = 48  # tokens of the text that is repeated where drafts are looked up, so that they find something
WITHOUT_SOURCE = {"lookup": LOOKUP, LOOKUP: LOOKUP, MTP: MTP}


def deployment_to_start(engine: str, target: str | None, start: StartSpec) -> Deployment:
    """What a server that is started serves; refuses what its engine does not."""
    if engine not in CLIENTS:
        raise DraftgaugeError(f"no server of {engine!r} can be started: choose --engine {' or '.join(CLIENTS)}")
    if target is None or start.drafter is None:
        raise DraftgaugeError("name what the servers serve: --target, and --drafter with a model, 'lookup' or 'mtp'")
    kind, kinds = WITHOUT_SOURCE.get(start.drafter, start.kind or LANGUAGE_MODEL), ENGINES[engine].drafters
    if kind not in kinds:
        raise DraftgaugeError(f"{engine} has no drafter {kind!r}: choose --kind {', '.join(kinds)}")
    for source in (target, *(() if start.drafter in WITHOUT_SOURCE else (start.drafter,))):
        if engine == "llama-server" and not (source.endswith(GGUF) and Path(source).is_file()):
            raise DraftgaugeError(f"llama-server serves GGUF files, and {source} is none: name a file that ends {GGUF}")
    return Deployment(str(resolve_source(target)), resolve_draft(start.drafter), kind)


def started_costs(request: CostsRequest, progress: Progress) -> EngineCosts:
    """Costs at every batch size and length: plain decoding, each length and the draft model in servers of their own.

    All settings are served once, and then again in the opposite order, so that a busy minute is not taken for a cost.
    Costs are given at the shortest context; from several follows what a further token of text costs.
    """
    served, engine = deployment_to_start(request.engine, request.target, request.start_with), ENGINES[request.engine]
    contexts, batches, lengths = sorted(request.contexts or CONTEXTS), sorted(request.batches), sorted(request.lengths)
    settings = {PLAIN: 0} | {f"{FIXED}{length}": length for length in lengths}
    settings |= {DRAFT: 0} if served.drafter == LANGUAGE_MODEL else {}
    room, visits = contexts[-1] + STEPS * (2 + lengths[-1]), 2 * len(settings)
    took: dict[str, list[Floats]] = {setting: [] for setting in settings}  # [batches, contexts] of each server

    def serve(setting: str) -> None:
        length = settings[setting]
        alone = np.median(took[PLAIN], axis=0) if length else np.zeros((len(batches), len(contexts)))
        progress(f"costs of {engine.name}", min(sum(map(len, took.values())), visits), visits)
        with started(engine, setting, served, batches[-1], room, request.start_with.program, True) as url:
            text = prompt_tokens(engine.name, url, {"prompt": bundled_text()})
            text = text[:REPEATED] if served.drafter == LOOKUP else text
            prompts = [(text * math.ceil(context / len(text)))[:context] for context in contexts]
            seconds = [
                [_step(engine.name, url, *each, batch, length) for each in zip(prompts, plain, strict=True)]
                for batch, plain in zip(batches, alone.tolist(), strict=True)
            ]
            if length:
                check_length(engine.name, url, length)
        took[setting].append(np.array(seconds))

    for setting in (*settings, *reversed(settings)):
        serve(setting)
    for setting in settings:
        if half_range(took[setting]) > APART / 2:
            serve(setting)
    progress(f"costs of {engine.name}", visits, visits)
    steps = {setting: np.median(seconds, axis=0) for setting, seconds in took.items()}
    parts = [
        costs_of_steps(
            engine.name,
            [steps[PLAIN][row, 0]],
            {length: [steps[setting][row, 0]] for setting, length in settings.items() if length},
            [steps[DRAFT][row, 0]] if DRAFT in steps else [],
        )
        for row in range(len(batches))
    ]
    made = replace(
        parts[0],
        batches=tuple(batches),
        plain=tuple(part.plain[0] for part in parts),
        verify=tuple(part.verify[0] for part in parts),
        draft=tuple(part.draft[0] for part in parts),
        context=contexts[0],
        half_width=max(map(half_range, took.values())),
        provenance=f"{parts[0].provenance}, started on this machine",
    )
    if len(contexts) == 1:
        return made
    texts, drafting = np.outer(batches, contexts), (steps[f"{FIXED}{lengths[-1]}"] - steps[PLAIN]) / lengths[-1]
    law, drafts = fit_law(texts, steps[PLAIN]), fit_law(texts, drafting)
    return replace(made, context_seconds=law.slope, draft_context_seconds=drafts.slope, context_error=law.error)


def half_range(measured: Sequence[Floats]) -> float:
    """Half of what the two nearest of several measurements of a step differ by, as a share; of the step known worst."""
    pairs = [np.abs(a - b) / (a + b) for a, b in combinations(measured, 2)]
    return float(np.min(pairs, axis=0).max())


def check_length(engine: str, url: str, length: int) -> None:
    """Refuse a server that drafts otherwise than it was started to, as some do without a word."""
    drafted = read_counts(engine, url).length
    if not 0.5 * length < drafted <= length:
        raise DraftgaugeError(
            f"the server that was started for drafts of {length} tokens drafts {drafted:.3g} on average, so it ignored "
            "the length: leave it out of the lengths, and what sets it out of --program"
        )


def _step(engine: str, url: str, prompt: list[int], plain: float, batch: int, length: int) -> float:
    """Seconds of a step, the median over rounds.

    The requests of a round are alike and decode in step. The first of them waits for the prompts of the others, so the
    one that took the least time counts. Steps that found nothing to look up are taken off at the cost of a plain one.
    """
    tokens = STEPS * (2 + length) // 2

    def ask(_: int) -> float:
        answer = complete(engine, url, prompt, tokens, How(to_the_end=True, kept=True))
        passes = answer.timed - answer.accepted
        drafts = min(passes, answer.drafted / length) if length else passes
        return (answer.decode_seconds - (passes - drafts) * plain) / drafts if drafts >= 1 else math.inf

    with ThreadPoolExecutor(batch) as pool:
        found = float(np.median([min(pool.map(ask, range(batch))) for _ in range(ROUNDS)]))
    if not 0 < found < math.inf:
        raise DraftgaugeError(f"the server that was started for drafts of {length} tokens drafted nothing to be timed")
    return found
