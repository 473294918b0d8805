"""The whole path on the bundled pair: profile, replay, bench and report, at three compressions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftgauge.api.bench import ADAPTIVE, Progress, bench_run
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay_rows
from draftgauge.api.runs import read_run, select_runs
from draftgauge.api.summary import profile_rows
from draftgauge.replay.evaluate import best_fixed_gamma
from draftgauge.report.page import build_report

COMPRESSIONS = ("none", "int8", "nf4")
ADAPTIVE_HERE = (*ADAPTIVE, "stopping")
"""The adaptive policies of the demo; throughput-optimal stopping as fitted on the bundled training prompts."""
PLAIN_POLICY = "none"
SUMMARY = ("compression", "task", "best_fixed_gamma", "near_best_from", "near_best_to", "hindsight_gain", "cost_ratio")


def demo(
    out: Path,
    *,
    compressions: Sequence[str] = COMPRESSIONS,
    target: str = "reference",
    draft: str = "reference",
    prompts: Path | str | None = None,
    per_task: int = 4,
    max_new_tokens: int = 128,
    gamma_max: int = 16,
    rounds: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Record, replay and bench a pair and write the report.

    Args:
        out: receives ``runs/<compression>/`` and ``report.html``; a demo that was interrupted goes on where it was.
        compressions: of the target, at least two so that they get folders of their own.
        target, draft: the pair.
        prompts: a prompt file; the bundled test prompts if None.
        per_task: prompts of each task.
        max_new_tokens: output tokens a prompt.
        gamma_max: longest draft.
        rounds: of the live bench.
        progress: told (what, done, total).

    Returns:
        The report's path, and rows. A row of a policy has ``compression, task, policy, tokens_per_step,
        modelled_tokens_per_second, live_tokens_per_second, mismatches``; a row that sums up a compression has
        ``compression, task, best_fixed_gamma, near_best_from, near_best_to, hindsight_gain, cost_ratio``, one for each task
        and one for ``all``.
    """
    runs = out / "runs"
    profile(
        target=target,
        draft=draft,
        prompts=prompts,
        out=runs,
        compression=compressions,
        gamma_max=gamma_max,
        max_new_tokens=max_new_tokens,
        per_task=per_task,
        progress=progress,
    )
    rows: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    for run, _ in select_runs(runs):
        trace, costs = read_run(run)
        best = best_fixed_gamma(trace, costs)
        policies = list(dict.fromkeys([PLAIN_POLICY, f"fixed:{max(best, 1)}", *ADAPTIVE_HERE]))
        measured = bench_run(run, policies, baselines=False, rounds=rounds, progress=progress)
        live += measured
        rows += _joined(replay_rows(run, policies), measured)
        rows += [{key: row[key] for key in SUMMARY} for row in profile_rows([run])]
    return build_report([run for run, _ in select_runs(runs)], out / "report.html", live), rows


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
