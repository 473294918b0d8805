"""The whole path on the bundled pair within a given time: a streamed answer, profile, replay, bench and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from draftgauge.api.bench import bench
from draftgauge.api.generate import OnText, generate
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile import profile
from draftgauge.api.prompts import choose_prompts
from draftgauge.api.replay import replay
from draftgauge.api.report import REPORT_NAME, write_report
from draftgauge.api.requests import PLAIN, BenchRequest, DemoRequest, GenerateRequest, PairSpec, ProfileRequest
from draftgauge.api.runs import Warn, best_gamma_of, warn
from draftgauge.api.verb import verb
from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.policies.registry import compared_policies

FIRST_POLICY = "fixed:4"
REPORT_SECONDS = 8.0  # for the report, at the end
RECORD_SHARE = COST_SHARE = 0.3  # of the time of a compression, at most; what they leave goes into the live bench
LEAST_SHARE = 0.08  # of the whole time: a compression for which less is left is left out
PER_TASK = 4  # prompts

OnRows = Callable[[str, Sequence[dict[str, Any]]], None]


@verb(DemoRequest)
def demo(
    request: DemoRequest,
    *,
    progress: Progress = silent,
    on_text: OnText | None = None,
    on_rows: OnRows = lambda name, rows: None,
    on_warning: Warn = warn,
) -> list[dict[str, Any]]:
    """Record, replay and bench a pair within ``seconds`` and write the report.

    ``out`` receives ``runs/<compression>/`` and ``report.html``. The first compression is always shown; others that the
    time does not reach are left out, and are there when the demo is run again with more.

    Args:
        request: what to show, within which time.
        on_text: told each new piece of the first answer, see :func:`~draftgauge.api.generate.generate`.
        on_rows: told rows as soon as they are measured: ``"first"`` of the first answer, then those of each
            compression, none of one for which there was no time.
        on_warning: told what to know about the figures; a Python warning by default.

    Returns:
        Rows of :func:`~draftgauge.api.bench.bench` with ``modelled_gain`` and ``modelled_tokens_per_step`` of replay;
        the recommended policy's row over all tasks also has ``verdict``.
    """
    end = time.monotonic() + request.seconds - REPORT_SECONDS
    names, runs = request.pair.compression, request.out / "runs"
    require_writable(request.out)
    pair = load_pair(request.pair.at(names[0]))
    on_rows("first", [_first_answer(request, pair, on_text)])
    del pair  # two targets may not fit
    rows: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        begun = time.monotonic()
        if number > 0 and end - begun < LEAST_SHARE * request.seconds:
            on_rows(name, [])
            continue
        share = max(end - begun, 1.0) / (len(names) - number)
        cost_seconds = min(request.costs.cost_seconds, COST_SHARE * share)
        run = runs / name
        profile(
            ProfileRequest(
                out=run,
                pair=request.pair.at(name),
                prompts=replace(request.prompts, per_task=request.prompts.per_task or PER_TASK),
                output=request.output,
                drafts=request.drafts,
                seconds=RECORD_SHARE * share,
                costs=replace(request.costs, cost_seconds=cost_seconds),
            ),
            progress=progress,
        )
        policies = tuple(dict.fromkeys(["no-draft", f"fixed:{max(best_gamma_of(run), 1)}", *compared_policies()]))
        timed = bench(
            BenchRequest(
                folder=run,
                policies=policies,
                pair=PairSpec(machine=request.pair.machine, loading=request.pair.loading),
                baselines=False,
                rounds=request.rounds,
                seconds=max(begun + share - time.monotonic(), 1.0),
            ),
            progress=progress,
        )
        live += timed
        modelled = {(row["task"], row["policy"]): row for row in replay(run, policies, on_warning=on_warning)}
        shown = []
        for row in timed:
            if (replayed := modelled.get((row["task"], row["policy"]))) is not None:
                beside = {"modelled_gain": replayed["gain"], "modelled_tokens_per_step": replayed["tokens_per_step"]}
                shown.append(row | beside | {"verdict": replayed.get("verdict")})
        rows += shown
        on_rows(name, shown)
    write_report(runs, request.out / REPORT_NAME, live)
    return rows


def _first_answer(request: DemoRequest, pair: Pair, on_text: OnText | None) -> dict[str, Any]:
    """One prompt, streamed with speculation, and decoded plainly to compare: tokens a step, and how much faster."""
    _, (prompt, *_) = choose_prompts(replace(request.prompts, limit=None, per_task=1))
    tokens = tuple(pair.encode(prompt, request.prompts.rendering))
    asked = GenerateRequest(prompt=tokens, policy=FIRST_POLICY, output=request.output)
    _, drafted = generate(asked, pair=pair, on_text=on_text)
    _, plain = generate(replace(asked, policy=PLAIN), pair=pair)
    return {
        "policy": FIRST_POLICY,
        "compression": pair.compression,
        "prompt": prompt.identifier,
        "tokens": len(drafted.tokens),
        "tokens_per_step": drafted.tokens_per_step,
        "ratio_to_plain": drafted.tokens_per_second / plain.tokens_per_second,
        "tokens_per_second": drafted.tokens_per_second,
        "same_tokens": drafted.tokens == plain.tokens,
    }
