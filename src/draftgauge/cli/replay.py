"""``draftgauge replay``, ``fit`` and ``report``: policies on recorded runs."""

from __future__ import annotations

from shlex import quote
from typing import Any

from draftgauge.cli.console import by_target, label, say, show_table, show_verdicts
from draftgauge.cli.rank import say_how_to_fit
from draftgauge.core.prompts import TRAIN
from draftgauge.requests import FitRequest, ReplayRequest, ReportRequest

COLUMNS = {
    "policy": "policy",
    "recommended": "advised",
    "ratio_to_plain": "x plain",
    "gain": "gain [95%]",
    "tokens_per_second": "modelled tokens/s",
    "tokens_per_step": "tokens/step",
    "p_holm": "p (Holm)",
    "captured": "captured",
}
BATCH_COLUMNS = {
    "compression": "target",
    "batch": "requests",
    "policy": "policy",
    "drafted_per_step": "drafted/step",
    "tokens_per_step": "tokens/step",
    "tokens_per_second": "modelled tokens/s, all requests",
    "ratio_to_plain": "x plain",
    "gain": "gain over the best length [95%]",
}


def replay(request: ReplayRequest) -> list[dict[str, Any]]:
    from draftgauge.api.replay import replay as run

    rows = run(request)
    if request.batches:
        from draftgauge.judging.batch_rows import shown_rows

        show_table("The best fixed length by batch size, and other policies", shown_rows(rows), BATCH_COLUMNS)
        return rows
    pooled = [row for row in rows if row["task"] == "all"]
    show_table(_title(pooled), pooled, by_target(pooled, COLUMNS))
    show_verdicts(pooled)
    from draftgauge.judging.acceptance import shown

    by_context = {label(row): row["acceptance_by_context"] for row in pooled if "acceptance_by_context" in row}
    for name, rates in by_context.items():
        say(f"{name}: accepted at depth 1, 2, ... by context, {shown(rates)}")
    say_how_to_fit([row["policy"] for row in pooled if row["recommended"]])
    return rows


def _title(rows: list[dict[str, Any]]) -> str:
    """What the table is about: which prompts, and what gains are over."""
    from draftgauge.judging.evaluate import SAME_PROMPTS
    from draftgauge.judging.splits import EVERYTHING

    by_choice: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        prompts = "All prompts" if row["split"] == EVERYTHING else f"{row['split'].capitalize()} prompts"
        chosen = "these prompts" if row["best_fixed_from"] == SAME_PROMPTS else "training prompts"
        by_choice.setdefault((prompts, chosen), {})[label(row)] = row["best_fixed_gamma"]
    said = [
        f"{prompts}, all tasks together; gains are over the best fixed length chosen on {chosen}: "
        + ", ".join(f"{best} ({name})" for name, best in lengths.items())
        for (prompts, chosen), lengths in by_choice.items()
    ]
    tuned = ", as are the parameters of tuned rules" if any(row["best_rival"] is not None for row in rows) else ""
    return ". ".join(said) + tuned


FITTED_COLUMNS = {
    "compression": "target",
    "trained_prompts": "fitted on prompts",
    "prompts": "judged on prompts",
    "tokens_per_step": "tokens/step",
    "gain": "gain over best fixed [95%]",
    "captured": "captured",
}
OVER_ONE_SOURCE = {"best_rival": "best simple rule, tuned", "gain_over_rival": "gain over it [95%]"}


def fit(request: FitRequest) -> list[dict[str, Any]]:
    from draftgauge.api.fit import fit as run

    rows = run(request)
    compared = any(row.get("best_rival") is not None for row in rows)
    if any("prompts" in row for row in rows):
        columns = FITTED_COLUMNS | (OVER_ONE_SOURCE if compared else {})
        show_table(f"{request.policy} on the validation prompts", rows, columns)
    else:
        why = "the run has too few validation prompts" if request.split == TRAIN else "it learnt from all"
        say(f"fitted {request.policy} on {rows[0]['trained_prompts']} prompts; what it gains is not shown, as {why}")
    judge, priced = "replay", ""
    if request.costs is not None:
        judge, priced = "advise", f" --engine {request.engine} --costs {quote(str(request.costs))}"
    if request.split != TRAIN and not priced:
        following = f"Next: give --policy {quote(str(request.out))} to draftgauge generate or bench, with this pair"
    elif all(row["judgeable"] for row in rows):
        following = f"Next: draftgauge {judge} {quote(str(request.folder))}{priced} --policy {quote(str(request.out))}"
    else:
        following = (
            "Too few test prompts are left to judge the policy on. Next: record others into another FOLDER, then "
            f"draftgauge {judge} FOLDER{priced} --policy {quote(str(request.out))}"
        )
    say(f"wrote {request.out}\n{following}")
    return rows


def report(request: ReportRequest) -> None:
    from draftgauge.api.report import report as run

    say(f"wrote {run(request)}")
