"""``draftgauge advise``: whether to speculate in an engine, with what, how far, and with which flags."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import say, show_table
from draftgauge.requests import AdviseRequest

COLUMNS = {
    "policy": "setting",
    "recommended": "advised",
    "ratio_to_plain": "x plain [95%]",
    "tokens_per_second": "tokens/s",
    "tokens_per_step": "tokens/step",
    "acceptance_rate": "acceptance",
    "pays_below": "pays below (plain steps)",
    "best_from": "best if a token costs from (plain steps)",
    "best_below": "to",
}
SHOWN = 12


def advise(request: AdviseRequest) -> list[dict[str, Any]]:
    from draftgauge.api.advise import advise as run
    from draftgauge.reporting.layout import environment

    rows = run(request)
    estimated = [row for row in rows if row["ratio_to_plain"] is not None]
    shown = sorted(estimated, key=lambda row: -row["ratio_to_plain"])[:SHOWN] if estimated else rows
    counted = f"the {len(shown)} fastest of {len(rows)} settings" if len(shown) < len(rows) else "all settings"
    title = f"{request.engine}: {counted}" if estimated else request.engine
    show_table(title, shown, {key: heading for key, heading in COLUMNS.items() if estimated or key != "ratio_to_plain"})
    advised = next((row for row in rows if row["recommended"]), None)
    page = environment("draftgauge.serving", autoescape=False).get_template("advice.txt.j2")
    text = page.render(engine=request.engine, advised=advised, settings=request.settings)
    say(text.strip())
    return rows
