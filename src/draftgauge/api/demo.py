"""The whole path on the bundled pair within a given time: a streamed answer, profile, replay, bench and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.api.bench import bench
from draftgauge.api.generate import OnText, generate
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.report import REPORT_NAME, write_report
from draftgauge.core.config import given_settings
from draftgauge.core.errors import warn
from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.core.verb import verb
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.fitting import FITTED
from draftgauge.judging.splits import MIN_PROMPTS
from draftgauge.models.device import lacks_library, torch_threads
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.pair.prompts import choose_prompts
from draftgauge.policies.spec import compared_policies
from draftgauge.requests import PLAIN, BenchRequest, DemoRequest, GenerateRequest, PairSpec, ProfileRequest

FIRST_POLICY = "fixed:4"
REPORT_SECONDS = 10.0  # for the report, at the end
VERDICT_SECONDS = 45.0  # by then the first compression is to be recorded and replayed
COST_SECONDS = 6.0  # at most, of each compression, unless asked for
LIVE_SECONDS = 25.0  # at most, of each compression

OnRows = Callable[[str, Sequence[dict[str, Any]]], None]


@verb(DemoRequest)
def demo(
    request: DemoRequest,
    *,
    progress: Progress = silent,
    on_text: OnText | None = None,
    on_rows: OnRows = lambda name, rows: None,
) -> list[dict[str, Any]]:
    """Record, replay and bench a pair within ``seconds`` and write the report.

    ``out`` receives ``runs/<compression>/`` and ``report.html``. The first compression is always shown, on the prompts
    that there was time for. A later one is shown only if it is replayed and decoded live on at least as many. What is
    left out is there when the demo is run again with more time.

    Args:
        request: what to show, within which time.
        on_text: told each new piece of the first answer, see :func:`~draftgauge.api.generate.generate`.
        on_rows: told rows as soon as they are known, by name: ``"first"`` of the first answer, ``"verdict"`` one of a
            replayed compression. The rows of each compression shown come after its live bench.

    Returns:
        Rows of :func:`~draftgauge.api.bench.bench` with ``modelled_ratio`` (over plain decoding) and
        ``modelled_tokens_per_step`` of replay; the recommended policy's row over all tasks also has ``verdict``.
    """
    # The bundled pair is so small that a second thread mostly waits, long where other work has its core.
    with torch_threads(1 if request.pair.target is None else None):
        return _shown(request, progress, on_text, on_rows)


def _shown(request: DemoRequest, progress: Progress, on_text: OnText | None, on_rows: OnRows) -> list[dict[str, Any]]:
    begun = time.monotonic()
    end = begun + request.seconds - REPORT_SECONDS
    runs = request.out / "runs"
    require_writable(request.out)
    names = request.pair.compression
    pair = load_pair(request.pair.at(names[0]))
    on_rows("first", [_first_answer(request, pair, on_text)])
    del pair  # two targets may not fit
    rows: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    shown: list[str] = []
    least, took = (0, 0), 0.0  # of the first compression: prompts replayed and decoded live, and its seconds
    for name in names:
        started, first = time.monotonic(), not shown
        if missing := lacks_library(name):
            warn(f"{name} needs bitsandbytes: pip install 'draftgauge[quant]'")
        beside: list[dict[str, Any]] = []
        if not missing and (first or end - started >= took):
            until = min(begun + VERDICT_SECONDS, end) if first else end - LIVE_SECONDS / 2
            recorded, replayed = _replayed(request, runs / name, until, progress, least[0])
            timed = _live(request, runs / name, replayed, end, progress, on_rows) if replayed else []
            count = max((row["prompts"] for row in timed), default=0)
            if timed and count >= least[1]:
                live += timed
                shown.append(name)
                beside = _beside_replay(timed, replayed)
            if first:
                least, took = (recorded, min(count, MIN_PROMPTS)), time.monotonic() - started
        rows += beside
        on_rows(name, beside)
    write_report(runs, request.out / REPORT_NAME, live, compressions=shown)
    return rows


def _replayed(
    request: DemoRequest, run: Path, until: float, progress: Progress, least: int
) -> tuple[int, list[dict[str, Any]]]:
    """Record a compression until then; how many prompts, and their rows of replay if that is enough of them."""
    seconds = request.costs.cost_seconds
    if "cost_seconds" not in given_settings(request):
        seconds = min(seconds, COST_SECONDS)
    profiled = profile(
        ProfileRequest(
            out=run,
            pair=request.pair.at(run.name),
            prompts=request.prompts,
            output=request.output,
            drafts=request.drafts,
            seconds=max(until - seconds - time.monotonic(), 1.0),
            costs=replace(request.costs, cost_seconds=seconds),
        ),
        progress=progress,
    )
    recorded = next(row["prompts"] for row in profiled if row["task"] == ALL_TASKS)
    return recorded, replay(run) if recorded >= least else []


def _live(
    request: DemoRequest, run: Path, replayed: list[dict[str, Any]], end: float, progress: Progress, on_rows: OnRows
) -> list[dict[str, Any]]:
    """Tell the verdict, as this may take as long again; then decode with what it names and the fastest policy."""
    pooled = [row for row in replayed if row["task"] == ALL_TASKS]
    chosen = next(row for row in pooled if row["recommended"])
    on_rows("verdict", [chosen])
    rules = [row for row in pooled if row["policy"] in compared_policies()]
    fastest = max(rules, key=lambda row: row["ratio_to_plain"])
    named = [f"fixed:{chosen['best_fixed_gamma'] or 1}", chosen["policy"], fastest["policy"]]
    return bench(
        BenchRequest(
            folder=run,
            policies=tuple(dict.fromkeys(name for name in named if name != FITTED)),  # of which there is no file
            pair=PairSpec(machine=request.pair.machine, loading=request.pair.loading),
            baselines=False,
            rounds=request.rounds,
            seconds=max(min(LIVE_SECONDS, end - time.monotonic()), 1.0),
        ),
        progress=progress,
    )


def _beside_replay(timed: list[dict[str, Any]], replayed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of live decoding with what replay says of the same policy and task, where it was replayed."""
    modelled = {(row["task"], row["policy"]): row for row in replayed}
    beside = []
    for row in timed:
        if (other := modelled.get((row["task"], row["policy"]))) is not None:
            further = {"modelled_ratio": other["ratio_to_plain"], "verdict": other.get("verdict")}
            beside.append(row | further | {"modelled_tokens_per_step": other["tokens_per_step"]})
    return beside


def _first_answer(request: DemoRequest, pair: Pair, on_text: OnText | None) -> dict[str, Any]:
    """One prompt, streamed with speculation, and decoded plainly to compare: tokens a step, and how much faster."""
    _, (prompt, *_) = choose_prompts(replace(request.prompts, limit=None, per_task=1))
    tokens = tuple(pair.encode(prompt, request.prompts.rendering))
    asked = GenerateRequest(prompt=tokens, policy=FIRST_POLICY, output=request.output)
    drafted = generate(asked, pair=pair, on_text=on_text)
    plain = generate(replace(asked, policy=PLAIN), pair=pair)
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
