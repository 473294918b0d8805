"""The figures that the captions of the SpecKV report quote; the sentences stand in ``templates/captions.html.j2``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.studies.speckv.figures import Rows, findings, select
from draftgauge.studies.speckv.records import ALL

Row = Mapping[str, Any]
FAST, ACCURATE = "MLP-16", "RF-100"


@dataclass(frozen=True)
class Split:
    """A gain over always drafting 4 tokens, in percent: that of always drafting 8, and what choosing adds to it."""

    longer: float
    choosing: float
    total: float


def split_of(rows: Rows, basis: str) -> Split:
    """The gain of all compressions together, "predicted" by the fitted model or measured in "tokens_per_step"."""
    row = next(row for row in findings(rows, "gain_split") if row["basis"] == basis and row["compression"] == ALL)
    return Split(*(row[f"{part}_percent"] for part in ("longer", "choosing", "total")))


def caption_figures(rows: Rows) -> dict[str, dict[str, Any]]:
    """Finding -> the figures of its caption. Findings that need timed runs are missing where there were none."""
    figures = {
        "tokens_per_step": _tokens_per_step(rows),
        "gain_split": {"said": split_of(rows, "predicted"), "did": split_of(rows, "tokens_per_step")},
        "predicted_and_measured": dict(findings(rows, "predicted_and_measured")[-1]),
        "held_out": _held_out(rows),
        "outcomes": _outcomes(rows),
        "leave_one_task_out": _task_out(rows),
        "leave_one_compression_out": _compression_out(rows),
    }
    if costs := findings(rows, "cost"):
        figures["tokens_per_second"] = {"compressions": findings(rows, "always_8")}
        figures["cost"] = {"compressions": costs, "worst": max(row["residual_percent"] for row in costs)}
    return figures


def _tokens_per_step(rows: Rows) -> dict[str, Any]:
    pooled = [row for row in findings(rows, "tokens_per_step") if row["compression"] == ALL]
    return {"tokens": {row["gamma"]: row["tokens_per_step"] for row in pooled}}


def _held_out(rows: Rows) -> dict[str, Any]:
    """Correlation of both models with steps and with prompts held out."""
    score = {(row["model"], row["held_out"]): row["correlation"] for row in findings(rows, "held_out")}
    return {model: {kind: score[model, kind] for kind in ("steps", "prompts")} for model in (FAST, ACCURATE)}


def _outcomes(rows: Rows) -> dict[str, Any]:
    score = {(row["policy"], row["compression"]): row for row in findings(rows, "outcomes")}
    timed = {
        name: row["over_best_fixed_percent"]
        for (policy, name), row in score.items()
        if policy == "SpecKV-fast" and name != ALL and "tokens_per_second" in row
    }
    fast, fixed = (score[policy, ALL]["tokens_per_step"] for policy in ("SpecKV-fast", "fixed-best"))
    return {"fast": fast, "fixed": fixed, "over_best_fixed": timed}


def _task_out(rows: Rows) -> dict[str, Any]:
    """Correlation of the fast model on tasks it never saw, and by how much its error is below that of the mean rate."""
    chosen = [row for row in findings(rows, "leave_one_task_out") if row["model"] == FAST]
    shares = [1 - row["mse"] / row["mse_of_mean"] for row in chosen]
    return {"correlations": _by_left_out(chosen), "least": min(shares), "most": max(shares)}


def _compression_out(rows: Rows) -> dict[str, Any]:
    """Correlations with a compression left out, on prompts seen at other compressions and on prompts held out too."""
    left_out = findings(rows, "leave_one_compression_out")

    def of(model: str, prompts: str) -> dict[str, float]:
        return _by_left_out([row for row in left_out if row["model"] == model and row["prompts"] == prompts])

    def mean(correlations: Mapping[str, float]) -> float:
        return sum(correlations.values()) / len(correlations)

    return {
        "seen": of(FAST, "seen"),
        "held_out": of(FAST, "held out"),
        "accurate_seen": mean(of(ACCURATE, "seen")),
        "accurate_held_out": mean(of(ACCURATE, "held out")),
    }


def _by_left_out(rows: Sequence[Row]) -> dict[str, float]:
    return {row["left_out"]: row["correlation"] for row in rows}


def improvement(rows: Rows) -> str:
    """The published headline."""
    row = select(rows, "improvement")[0]
    p = "p < 0.001" if row["p_value"] < 0.001 else f"p = {row['p_value']:.3f}"
    return f"+{row['percent']:.1f}%, {p} ({row['resamples']:,} paired resamples of steps)"


def gain(percent: float) -> str:
    """A part of a gain in percent, with enough digits to tell it from 0."""
    return f"{percent:+.1f}%" if abs(percent) >= 1 else f"{percent:+.2f}%"
