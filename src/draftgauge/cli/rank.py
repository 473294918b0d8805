"""``draftgauge rank`` and ``compare``: drafters of one target, and recorded runs, side by side in tokens a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from draftgauge.cli.console import progress, say, show_table, warn
from draftgauge.requests import CompareRequest, RankRequest

LIVE = "live_ratio_to_plain"
COLUMNS = {
    "drafter": "drafter",
    "policy": "best setting",
    "tokens_per_second": "tokens/s [95%]",
    "ratio_to_plain": "x plain",
    LIVE: "live [95%]",
    "live_modelled": "modelled there",
    "live_tokens_per_second": "live tokens/s",
    "levelled": "level with the first",
    "gain": "gain over it [95%]",
    "gain_over_lookup": "over lookup [95%]",
    "tokens_per_step": "tokens/step",
    "source_model": "of the drafter",
    "acceptance": "accepted at depth 1, 2, ...",
    "cost_ratio": "draft / verify cost",
    "weights_mib": "weights MiB",
}
SHOWN_DEPTHS = 5


def rank(request: RankRequest) -> list[dict[str, Any]]:
    from draftgauge.api.rank import rank as run

    with progress() as advance:
        rows = run(request, progress=advance)
    if compared := [row for row in rows if "deploy" in row or "agreement" in row]:
        show_compared(compared)
    elif any("rank" in row for row in rows):
        show_ranking(rows)
    return rows


def show_ranking(rows: Sequence[Mapping[str, Any]]) -> None:
    """Tables of all prompts, then of each task and range of lengths; what is wrong with costs."""
    from draftgauge.policies.spec import NO_DRAFT

    ranked = [row for row in rows if "rank" in row]
    groups = list(dict.fromkeys((row["task"], row["context"]) for row in ranked))
    for task, context in groups:
        of_group = [row for row in ranked if (row["task"], row["context"]) == (task, context)]
        named = "All tasks" if task == "all" else f"Task {task}"
        title = f"{named if context is None else f'Prompts of {context} tokens'}, {of_group[0]['prompts']} prompts"
        columns = COLUMNS if (task, context) == groups[0] else {key: COLUMNS[key] for key in list(COLUMNS)[:11]}
        show_table(title, [_shown(row) for row in sorted(of_group, key=lambda row: -row["tokens_per_second"])], columns)
    say_how_to_fit([row["policy"] for row in ranked])
    if any(LIVE in row for row in ranked):
        plain = {LIVE: 1.0, f"{LIVE}_low": 1.0, f"{LIVE}_high": 1.0, "live_mismatched_prompts": 0}
        whole = [row for row in ranked if (row["task"], row["context"]) == groups[0]]
        live = [dict(row) | plain if row["drafter"] == NO_DRAFT else row for row in whole]
        live = [row for row in live if LIVE in row]
        order = sorted(live, key=lambda row: -row[LIVE])
        swapped = [(a, b) for a, b in combinations(live, 2) if a[LIVE] < b[LIVE]]
        ends = [
            (a["live_ratio_to_plain_high"], b["live_ratio_to_plain_low"]) for a, b in swapped
        ]  # None of a single prompt
        apart = any(None not in pair and pair[0] < pair[1] for pair in ends)
        other = "another one" if apart else "another one, of drafters that these prompts do not tell apart"
        said = other if swapped else "as modelled"
        say(f"The order of live decoding is {said}: {', '.join(row['drafter'] for row in order)}.")
    for row in ranked:
        if row.get("live_mismatched_prompts"):
            warn(f"{row['live_mismatched_prompts']} outputs with {row['drafter']} are not those of plain decoding")
    for row in ranked:
        if row["cost_doubt"] and (row["task"], row["context"]) == groups[0]:
            warn(f"the costs of {row['drafter']} are not to be trusted, {row['cost_doubt']}: run again with --measure")


def say_how_to_fit(settings: Sequence[str]) -> None:
    """Where one of them is no policy yet: what it is, and how to make it one."""
    from draftgauge.judging.fitting import FITTED

    if FITTED in settings:
        say(
            f"{FITTED}: to this drafter, on other prompts than it is judged on. `draftgauge fit RUN --policy "
            "two-source --split all --out two-source.json` fits one for use with --policy, on all of them."
        )


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    level = "level" if row["level"] and row["rank"] > 1 else ""
    rates = [row.get(f"alpha_{depth}") for depth in range(1, SHOWN_DEPTHS + 1)]
    acceptance = " ".join(f"{rate:.2f}" for rate in rates if rate is not None)
    return dict(row) | {"levelled": level, "acceptance": acceptance}


COMPARED = {
    "setup": "setup",
    "run": "run",
    "shown": "target",
    "plain_tokens_per_second": "plain tokens/s",
    "policy": "best setting",
    "tokens_per_second": "its tokens/s [95%]",
    "ratio_to_plain": "x plain",
    "live_tokens_per_second": "live tokens/s",
    "live_policy": "live setting",
    "live_plain_tokens_per_second": "live plain tokens/s",
    "agreement": "same tokens",
    "kl": "KL to uncompressed, nats",
    "weights_mib": "weights MiB",
    "peak_memory_gib": "peak GiB",
    "engine": "engine",
    "drafter": "drafter",
    "gain": "over the first [95%]",
}


def compare(request: CompareRequest) -> list[dict[str, Any]]:
    from draftgauge.api.compare import compare as run

    rows = run(request)
    show_compared(rows)
    return rows


def show_compared(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of runs, which one to deploy and how."""
    shown = [dict(row) | {"shown": f"{Path(row['target']).name} {row['compression']}".rstrip()} for row in rows]
    show_table(f"{rows[0]['prompts']} prompts in every run, replayed on each run's own costs", shown, COMPARED)
    if rows[0]["agreement_with"]:
        say(f"same tokens: the share that are those of {rows[0]['agreement_with']} after the same text")
    say(rows[0]["verdict"])
    say(rows[0]["deploy"])
    say_how_to_fit([row["policy"] for row in rows])
