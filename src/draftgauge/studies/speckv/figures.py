"""The figures of the SpecKV report, drawn from the rows of the study: six of the paper's evaluation, three of what its
records say.

The six are those of the author's final evaluation: policies by compression, their intervals, the gain by task and
compression, accuracy against overhead, the chosen draft lengths, and the importance of features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from draftgauge.reporting.style import LIGHT, percent, series
from draftgauge.reporting.svg import PANEL, panel, to_svg
from draftgauge.studies.speckv.records import ALL, COMPRESSIONS, GAMMAS, TASKS

Rows = Sequence[Mapping[str, Any]]
GAMMA = "\N{GREEK SMALL LETTER GAMMA}"
SHOWN = ("fixed-4", "fixed-best", "task-oracle", "SpecKV-fast")


def policies_figure(rows: Rows) -> Markup:
    """Expected tokens of four policies at each compression."""
    tokens = {(row["policy"], row["compression"]): row["expected_tokens"] for row in select(rows, "policies")}
    with panel("target", "expected tokens a step", PANEL) as axes:
        width = 0.8 / len(SHOWN)
        for number, policy in enumerate(SHOWN):
            at = np.arange(len(COMPRESSIONS)) + (number - (len(SHOWN) - 1) / 2) * width
            axes.bar(
                at,
                [tokens[policy, name] for name in COMPRESSIONS],
                width * 0.92,
                color=series(number).hex,
                label=policy,
            )
        axes.set_ylim(0, 9)
        _names(axes, COMPRESSIONS)
        _legend(axes, columns=2)
        return to_svg(
            axes,
            "policies",
            "Expected tokens a step of four policies at three compressions, as predicted by the fitted model.",
        )


def intervals_figure(rows: Rows) -> Markup:
    """Expected tokens of all policies with the published kind of interval."""
    chosen = [row for row in select(rows, "policies") if row["compression"] == ALL]
    with panel("expected tokens a step, with 95% interval over steps", "", PANEL) as axes:
        for row_number, row in enumerate(chosen):
            style = series(row_number)
            axes.barh(-row_number, row["expected_tokens"], 0.62, color=style.hex, alpha=0.35)
            axes.plot([row["low"], row["high"]], [-row_number, -row_number], color=style.hex, linewidth=3)
            axes.text(
                0.1, -row_number, f"{row['policy']}: {row['expected_tokens']:.2f}", va="center", color=LIGHT["ink"]
            )
        axes.set_yticks([])
        return to_svg(axes, "intervals", "Expected tokens a step over all test steps with 95% intervals.")


def improvement_figure(rows: Rows) -> Markup:
    """Gain of SpecKV-fast over fixed-4 by task and compression, as numbers on shades."""
    gains = {(row["compression"], row["task"]): row["percent"] for row in select(rows, "breakdown")}
    low, high = min(gains.values()), max(gains.values())
    with panel("target", "gain over fixed-4, %", PANEL) as axes:
        for (compression, task), gain in gains.items():
            x, y = COMPRESSIONS.index(compression), -TASKS.index(task)
            shade = 0.12 + 0.5 * (gain - low) / max(high - low, 1e-9)
            axes.bar(x, 0.94, 0.97, bottom=y - 0.47, color=LIGHT["blue"], alpha=shade)
            axes.text(x, y, f"{task}\n{gain:+.1f}", ha="center", va="center", color=LIGHT["ink"])
        _names(axes, COMPRESSIONS)
        axes.set_yticks([])
        axes.grid(False)
        return to_svg(
            axes, "improvement", f"Predicted gain of SpecKV-fast over fixed-4, from {low:.0f}% to {high:.0f}%."
        )


def overhead_figure(rows: Rows) -> Markup:
    """Test correlation of the candidates against the time of a decision."""
    chosen = select(rows, "predictors")
    with panel("milliseconds a decision (logarithmic)", "test correlation", PANEL) as axes:
        for number, row in enumerate(chosen):
            style = series(number)
            point = {"marker": style.marker, "markersize": 7, "linestyle": "none", "label": row["model"]}
            axes.plot(row["decision_ms"], row["test_correlation"], color=style.hex, **point)
        axes.axvline(1.0, color=LIGHT["muted"], linestyle=(0, (5, 1.5)), linewidth=1.2)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        values = [row["test_correlation"] for row in chosen]
        axes.set_ylim(min(values) - 0.02, max(values) + 0.02)
        _legend(axes, location="upper left")
        return to_svg(
            axes,
            "overhead",
            "Test correlation of five predictors against the time of a decision; the dashed line is 1 ms.",
        )


def choices_figure(rows: Rows) -> Markup:
    """Share of the test steps at which SpecKV-fast chooses each gamma."""
    share = {(row["compression"], row["gamma"]): row["share"] for row in select(rows, "choices")}
    with panel(f"chosen {GAMMA}", "share of steps, %", PANEL) as axes:
        width = 0.8 / len(COMPRESSIONS)
        for number, name in enumerate(COMPRESSIONS):
            at = np.arange(len(GAMMAS)) + (number - (len(COMPRESSIONS) - 1) / 2) * width
            axes.bar(
                at, [100 * share[name, gamma] for gamma in GAMMAS], width * 0.92, color=series(number).hex, label=name
            )
        axes.set_ylim(0, 105)
        _names(axes, [str(gamma) for gamma in GAMMAS])
        _legend(axes, location="upper left")
        text = f"SpecKV-fast chooses {GAMMAS[-1]} at {100 * share[ALL, GAMMAS[-1]]:.0f}% of all test steps."
        return to_svg(axes, "choices", text)


def importance_figure(rows: Rows) -> Markup:
    """Gini importance of the six features."""
    chosen = sorted(select(rows, "importance"), key=lambda row: -row["importance"])
    with panel("importance", "", PANEL) as axes:
        for row_number, row in enumerate(chosen):
            axes.barh(-row_number, row["importance"], 0.62, color=LIGHT["blue"], alpha=0.35)
            text = f"{row['feature'].replace('_', ' ')}: {percent(row['importance'])}"
            axes.text(0.003, -row_number, text, va="center", color=LIGHT["ink"])
        axes.set_yticks([])
        return to_svg(axes, "importance", f"Importance of features; {chosen[0]['feature'].replace('_', ' ')} leads.")


def speed_figure(rows: Rows) -> Markup:
    """Measured tokens/s against gamma, a line for each compression, the fastest marked."""
    with panel(f"drafted tokens a step, {GAMMA}", "measured tokens/s", PANEL) as axes:
        for number, name in enumerate(COMPRESSIONS):
            points = [row for row in findings(rows, "tokens_per_second") if row["compression"] == name]
            x, y, low, high = ([row[key] for row in points] for key in ("gamma", "tokens_per_second", "low", "high"))
            axes.plot(x, y, **series(number).line, label=name)
            axes.fill_between(x, low, high, color=series(number).hex, alpha=0.14, linewidth=0)
            best = next(row for row in points if row["best"])
            marker = {"marker": series(number).marker, "markersize": 11, "markeredgecolor": LIGHT["card"]}
            axes.plot(best["gamma"], best["tokens_per_second"], color=series(number).hex, **marker)
        axes.set_ylim(0, 1.15 * max(row["high"] for row in findings(rows, "tokens_per_second")))
        axes.set_xticks(GAMMAS)
        _legend(axes, columns=3, location="lower left")
        return to_svg(
            axes,
            "speed",
            "Measured tokens a second against draft length at three compressions; the large marker is the fastest.",
        )


def tokens_figure(rows: Rows) -> Markup:
    """Predicted and measured tokens a step against gamma."""
    points = list(findings(rows, "predicted_and_measured"))
    with panel(f"drafted tokens a step, {GAMMA}", "tokens a step", PANEL) as axes:
        for number, (key, label) in enumerate(
            (("predicted", "predicted for all steps (the paper's way)"), ("measured", "measured"))
        ):
            lengths, values = ([row[column] for row in points] for column in ("gamma", key))
            axes.plot(lengths, values, **series(number).line, label=label)
        axes.set_ylim(0, 7)
        axes.set_xticks(GAMMAS)
        _legend(axes, location="lower right")
        return to_svg(
            axes,
            "tokens",
            "Tokens a step against draft length: what the model predicts for all steps, and what was measured.",
        )


def held_out_figure(rows: Rows) -> Markup:
    """Correlation of the candidates with steps and with prompts held out."""
    score = {(row["model"], row["held_out"]): row["correlation"] for row in findings(rows, "held_out")}
    models = list(dict.fromkeys(model for model, _ in score))
    with panel("", "correlation with what happened", PANEL) as axes:
        for number, (kind, label) in enumerate(
            (("steps", "other steps of the same prompts"), ("prompts", "other prompts"))
        ):
            at = np.arange(len(models)) + (number - 0.5) * 0.4
            axes.bar(at, [score[model, kind] for model in models], 0.37, color=series(number).hex, label=label)
        axes.set_ylim(0, 1.15)
        _names(axes, models)
        _legend(axes)
        return to_svg(
            axes,
            "heldout",
            "Correlation of five predictors with acceptance, on other steps of the same prompts and on other prompts.",
        )


def select(rows: Rows, table: str) -> list[Mapping[str, Any]]:
    """The rows of one table."""
    return [row for row in rows if row["table"] == table]


def findings(rows: Rows, finding: str) -> list[Mapping[str, Any]]:
    """The honest rows of one finding."""
    return [row for row in select(rows, "honest") if row["finding"] == finding]


def _names(axes: Any, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _legend(axes: Any, columns: int = 1, location: str = "upper right") -> None:
    axes.legend(loc=location, ncols=columns, frameon=False, fontsize=9, labelcolor=LIGHT["muted"], handlelength=1.6)
