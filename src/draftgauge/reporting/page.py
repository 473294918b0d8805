"""The report: one HTML file with charts, tables and timelines inside, which asks nothing of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgauge.core.files import atomic_write_text
from draftgauge.replaying.evaluate import NEAR
from draftgauge.reporting import choosing_figures, figures
from draftgauge.reporting.advice import advise, contrast, held_out_speedups
from draftgauge.reporting.choosing_text import judged_lines, optimum_gains, verdict
from draftgauge.reporting.collect import MIN_POSITIONS, collect
from draftgauge.reporting.data import ReportData
from draftgauge.reporting.layout import Functions, render_page
from draftgauge.reporting.style import compression_heading, compression_title, number, percent, ratio, series, signed
from draftgauge.reporting.tables import compression_table, policies_table
from draftgauge.reporting.timeline import KINDS, spans

TITLE = "How far to draft"

KEYS = {
    "modelled": figures.MODELLED,
    "plain": figures.PLAIN,
    "hindsight": figures.HINDSIGHT,
    "live": figures.LIVE,
    "verify": figures.VERIFY,
    "draft": figures.DRAFT,
    "committed": figures.COMMITTED,
    "step_cost": figures.STEP_COST,
    "fixed": choosing_figures.FIXED,
    "accepted": choosing_figures.ACCEPTED,
    "rejected": choosing_figures.REJECTED,
}

FUNCTIONS: Functions = {
    "name": compression_heading,
    "series": series,
    "title_of": compression_title,
    "number": number,
    "percent": percent,
    "ratio": ratio,
    "signed": signed,
    "contexts": figures.shown_contexts,
    "dash": figures.context_dash,
    "optimum": optimum_gains,
    "calibration_style": choosing_figures.calibration_style,
}


def build_report(
    run_folders: Sequence[Path],
    out: Path,
    bench: Sequence[Mapping[str, Any]] | None = None,
    title: str = TITLE,
    command: str | None = None,
    policies: Sequence[str] | None = None,
    fitted: Sequence[str] = (),
) -> Path:
    """Read recorded runs, replay them and write the report.

    Args:
        run_folders: one run folder per compression, as ``draftgauge profile`` writes them, in the order to show.
        out: the HTML file to write; its folder must exist.
        bench: rows of live measurements, see :func:`draftgauge.reporting.collect.collect`.
        title: of the page.
        command: that asked for the report, named on the page; the running one if None.
        policies, fitted: to judge on test prompts, see :func:`draftgauge.reporting.collect.collect`.

    Returns:
        ``out``.

    Raises:
        TraceError: if a folder holds no readable run, or two folders the same compression.
        DraftgaugeError: if the file cannot be written.
    """
    atomic_write_text(out, render(collect(run_folders, bench, command, policies, fitted), title))
    return out


def render(data: ReportData, title: str = TITLE) -> str:
    """The page as text; the same data give the same text."""
    timelines = [[(line, spans(line)) for line in view.timelines] for view in data.compressions]
    columns, lines = policies_table(data)
    values = {
        "data": data,
        "keys": KEYS,
        "near": f"{100 * NEAR:.0f}",
        "min_positions": MIN_POSITIONS,
        "min_bin": choosing_figures.MIN_BIN,
        "prompts": max(view.prompts for view in data.compressions),
        "headlines": [advise(view) for view in data.compressions],
        "held_out": held_out_speedups(data.compressions),
        "contrast": contrast(data.compressions),
        "has_live": any(row.live_ratio is not None for view in data.compressions for row in view.rows),
        "policy_columns": columns,
        "policy_lines": lines,
        "tables": [compression_table(view) for view in data.compressions],
        "timelines": timelines,
        "kinds": KINDS,
        "kinds_shown": {span.kind for lines in timelines for _, steps in lines for step in steps for span in step},
    }
    return render_page("report.html.j2", title, values | _charts(data) | _choosing(data), functions=FUNCTIONS)


def _charts(data: ReportData) -> dict[str, list[Any]]:
    """Every chart of the page, one list entry per compression."""
    views = data.compressions
    top = max(value for view in views for value in (*view.pooled.tokens_per_step, *figures.step_costs(view.cost)))
    return {
        "acceptance": [figures.acceptance_panel(view, data.tasks) for view in views],
        "speed": [[figures.speed_panel(view, curve) for curve in view.speeds] for view in views],
        "cost": [figures.cost_panel(view) for view in views],
        "balance": [figures.balance_panel(view, top) for view in views],
    }


def _choosing(data: ReportData) -> dict[str, list[Any]]:
    """The tables, charts and texts of the judged policies, one list entry per compression that has them."""
    views = data.choosing
    return {
        "judged": [judged_lines(view) for view in views],
        "verdicts": [verdict(view) for view in views],
        "gain": [choosing_figures.gain_panel(view) for view in views],
        "captured": [choosing_figures.captured_panel(view) for view in views],
        "lengths": [
            [(line, choosing_figures.lengths_panel(view, line)) for line in view.lengths.lines] for view in views
        ],
        "chosen_text": [spans(view.text) for view in views],
        "calibration": [choosing_figures.calibration_panel(view) for view in views],
    }
