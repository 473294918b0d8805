"""A section of rows of ``draftgauge rank``: drafters beside each other, each at its best setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.table import speed
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.reporting.charts import Axes, Line, interval_chart, line_chart
from draftgauge.reporting.layout import Columns, decimals, ends, table_of
from draftgauge.reporting.style import percent, ratio, signed

NEEDED = ("rank", "task", "context", "policy", "prompts", "tokens_per_second", "ratio_to_plain", "gain", "level")
COLUMNS: Columns = {
    "of": ("prompts", str),
    "drafter": ("drafter", str),
    "policy": ("best setting", str),
    "tokens_per_second": ("modelled tokens/s", speed),
    "interval": ("95% interval", str),
    "ratio_to_plain": ("over plain", ratio),
    "gain": ("over the first", signed),
    "gain_interval": ("95% interval", str),
    "gain_over_lookup": ("over lookup", signed),
    "lookup_interval": ("95% interval", str),
    "levelled": ("level with it", str),
    "tokens_per_step": ("tokens/step", decimals(2)),
    "source_model": ("of the drafter", decimals(2)),
    "cost_ratio": ("draft / verify cost", percent),
    "weights_mib": ("weights, MiB", decimals(1)),
}


def ranked_section(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Charts and a table of all prompts, a table by task and length, and which drafters failed; other rows are left."""
    ranked = sorted((row for row in rows if "rank" in row), key=lambda row: -row.get("tokens_per_second", 0))
    missing = [key for row in ranked for key in NEEDED if key not in row] + ([] if ranked else ["drafters"])
    if missing:
        raise DraftgaugeError(f"the ranking lacks {missing[0]}; use the JSON of `draftgauge rank`")
    whole = [row for row in ranked if (row["task"], row["context"]) == (ALL_TASKS, None)]
    groups = dict.fromkeys((row["task"], row["context"]) for row in rows if "rank" in row and row not in whole)
    parts = [_shown(row, *group) for group in groups for row in ranked if (row["task"], row["context"]) == group]
    estimates = [(row["drafter"], *(row[f"tokens_per_second{end}"] for end in ("", "_low", "_high"))) for row in whole]
    lines = []
    for row in whole:
        rates = [row[key] for key in (f"alpha_{depth}" for depth in range(1, len(row))) if row.get(key) is not None]
        lines += [Line(row["drafter"], range(1, len(rates) + 1), [100 * rate for rate in rates])] if rates else []
    depths = Axes("depth in the draft (tokens)", "accepted, given all before, %", (0, 102))
    return {
        "speed": interval_chart("ranked", "modelled tokens/s", estimates),
        "acceptance": line_chart("ranked-acceptance", depths, lines) if lines else "",
        "table": table_of([_shown(row) for row in whole], COLUMNS, f"{whole[0]['prompts']} prompts"),
        "parts": table_of(parts, COLUMNS, "by task and length of the prompt") if parts else None,
        "doubts": [(row["drafter"], row["cost_doubt"]) for row in whole if row.get("cost_doubt")],
        "failed": [(row["drafter"], row["error"]) for row in rows if "error" in row],
    }


def _shown(row: Mapping[str, Any], task: str = "", context: str | None = None) -> dict[str, Any]:
    return dict(row) | {
        "of": f"{f'{context} tokens' if context else task}, {row['prompts']}" if task else None,
        "interval": ends(row, "tokens_per_second_", speed),
        "gain_interval": ends(row, "gain_", signed),
        "lookup_interval": ends(row, "gain_over_lookup_", signed),
        "levelled": "yes" if row["level"] and row["rank"] > 1 else None,
        "kind": "best" if row["rank"] == 1 else "",
    }
