"""``draftgauge fit``: learn a policy from a trace."""

from __future__ import annotations

from shlex import quote
from typing import Any

from draftgauge.cli.console import say, show_table
from draftgauge.core.prompts import TRAIN
from draftgauge.requests import FitRequest

COLUMNS = {
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
        columns = COLUMNS | (OVER_ONE_SOURCE if compared else {})
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
