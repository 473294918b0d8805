"""The whole path on the bundled pair: profile, replay, bench and report, at three compressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftgauge.api.bench import bench
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.report import REPORT_NAME
from draftgauge.api.requests import BenchRequest, DemoRequest, PairSpec, ProfileRequest
from draftgauge.api.runs import read_run, select_runs
from draftgauge.api.summary import profile_rows
from draftgauge.api.verb import verb
from draftgauge.core.progress import Progress, silent
from draftgauge.policies.registry import compared_policies
from draftgauge.replay.evaluate import best_fixed_gamma
from draftgauge.report.page import build_report

PLAIN_POLICY = "none"
SUMMARY = ("compression", "task", "best_fixed_gamma", "near_best_from", "near_best_to", "hindsight_gain", "cost_ratio")


@verb(DemoRequest)
def demo(request: DemoRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Record, replay and bench a pair and write the report; a demo that was interrupted goes on where it was.

    ``out`` receives ``runs/<compression>/`` and ``report.html``.

    Args:
        request: what to show; at least two compressions, so that they get folders of their own.
        progress: told (what, done, total).

    Returns:
        Rows. A row of a policy has ``compression, task, policy, tokens_per_step, modelled_tokens_per_second,
        live_tokens_per_second, mismatches``; a row that sums up a compression has ``compression, task,
        best_fixed_gamma, near_best_from, near_best_to, hindsight_gain, cost_ratio``, one for each task and one for
        ``all``.
    """
    runs = request.out / "runs"
    profile(
        ProfileRequest(
            out=runs, pair=request.pair, prompts=request.prompts, output=request.output, drafts=request.drafts
        ),
        progress=progress,
    )
    rows: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    for run, _ in select_runs(runs):
        trace, costs = read_run(run)
        best = best_fixed_gamma(trace, costs)
        policies = tuple(dict.fromkeys([PLAIN_POLICY, f"fixed:{max(best, 1)}", *compared_policies()]))
        asked = BenchRequest(
            folder=run,
            policies=policies,
            pair=PairSpec(machine=request.pair.machine, loading=request.pair.loading),
            baselines=False,
            rounds=request.rounds,
        )
        measured = bench(asked, progress=progress)
        live += measured
        rows += _joined(replay(run, policies), measured)
        rows += [{key: row[key] for key in SUMMARY} for row in profile_rows([run])]
    build_report([run for run, _ in select_runs(runs)], request.out / REPORT_NAME, live)
    return rows


def _joined(replayed: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Modelled and live figures of the same policy and task side by side."""
    live = {(row["task"], row["policy"]): row for row in measured}
    joined = []
    for row in replayed:
        found = live.get((row["task"], row["policy"]))
        if found is None:
            continue
        joined.append(
            {
                "compression": row["compression"],
                "task": row["task"],
                "policy": row["policy"],
                "tokens_per_step": row["tokens_per_step"],
                "live_tokens_per_step": found["tokens_per_step"],
                "modelled_tokens_per_second": row["tokens_per_second"],
                "live_tokens_per_second": found["tokens_per_second"],
                "live_low": found["tokens_per_second_low"],
                "live_high": found["tokens_per_second_high"],
                "ratio_to_plain": found["ratio_to_plain"],
                "mismatches": found["mismatches"],
            }
        )
    return joined
