"""What each finding of the SpecKV study means, in two plain sentences with the figures of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgauge.report.style import percent
from draftgauge.studies.speckv.figures import Rows, findings, select
from draftgauge.studies.speckv.records import ALL

GAMMA = "\N{GREEK SMALL LETTER GAMMA}"


def headline(rows: Rows) -> str:
    """The page in one paragraph."""
    said, did = split_of(rows, "predicted"), split_of(rows, "tokens_per_step")
    return (
        f"Recomputed as published, SpecKV gains {said['total_percent']:.1f}% over always drafting 4 tokens. That is what the fitted model "
        f"predicts: always drafting 8 has {_part(said, 'longer')}, and choosing at every step adds {_part(said, 'choosing')} to it. "
        f"By what the same records measured, always 8 has {_part(did, 'longer')}, and choosing changes that by {_part(did, 'choosing')}."
    )


def explain(rows: Rows) -> dict[str, str]:
    """Finding -> two sentences. Findings that need timed runs are missing where there were none."""
    texts = {
        "tokens_per_step": _tokens_per_step(rows),
        "gain_split": _gain_split(rows),
        "predicted_and_measured": _predicted(rows),
        "held_out": _held_out(rows),
        "outcomes": _outcomes(rows),
        "leave_one_task_out": _task_out(rows),
        "leave_one_compression_out": _compression_out(rows),
    }
    if findings(rows, "cost"):
        texts |= {"tokens_per_second": _tokens_per_second(rows), "cost": _cost(rows)}
    return texts


def split_of(rows: Rows, basis: str) -> Mapping[str, Any]:
    """The gain split of all compressions together."""
    return next(row for row in findings(rows, "gain_split") if row["basis"] == basis and row["compression"] == ALL)


def _tokens_per_step(rows: Rows) -> str:
    tokens = {
        row["gamma"]: row["tokens_per_step"] for row in findings(rows, "tokens_per_step") if row["compression"] == ALL
    }
    told = ", ".join(f"{value:.3f} at {gamma}" for gamma, value in tokens.items())
    return (
        f"Measured over all runs, a step commits {told} drafted tokens. More drafted tokens can only add committed ones, so this measure "
        "prefers the longest draft whatever it costs."
    )


def _tokens_per_second(rows: Rows) -> str:
    always = {row["compression"]: row for row in findings(rows, "always_8")}
    told = "; ".join(
        f"{name}: {row['best_gamma']}, where always 8 gives {_always(row)}" for name, row in always.items()
    )
    return f"The fastest length of each compression is another matter ({told}). Tokens per step and tokens per second are different goals."


def _gain_split(rows: Rows) -> str:
    said, did = split_of(rows, "predicted"), split_of(rows, "tokens_per_step")
    return (
        f"As published, the gain over 4 is {_part(said, 'longer')} from always drafting 8, which needs no controller, and "
        f"{_part(said, 'choosing')} from choosing. On outcomes, always 8 gains {_part(did, 'longer')} and choosing changes that by "
        f"{_part(did, 'choosing')}, since a shorter draft never commits more tokens."
    )


def _predicted(rows: Rows) -> str:
    row = findings(rows, "predicted_and_measured")[-1]
    return (
        f"Asked about {GAMMA} = {row['gamma']} on every step, as the paper asks, the model predicts {row['predicted']:.2f} tokens; on the "
        f"steps that really drafted {row['gamma']} it predicts {row['predicted_where_drafted']:.2f}, and {row['measured']:.2f} were "
        "measured. The worst of a few tokens looks better than the worst of many, so the signals of a short draft promise too much when "
        "the question is a longer one."
    )


def _held_out(rows: Rows) -> str:
    score = {(row["model"], row["held_out"]): row["correlation"] for row in findings(rows, "held_out")}
    return (
        "With whole prompts held out instead of steps, the correlation "
        f"of MLP-16 goes from {score['MLP-16', 'steps']:.3f} to {score['MLP-16', 'prompts']:.3f} "
        f"and that of RF-100 from {score['RF-100', 'steps']:.3f} to {score['RF-100', 'prompts']:.3f}. "
        "Nearly the same text stands in the records at three compressions and four lengths, so a forest meets near copies of its test "
        "steps in training."
    )


def _outcomes(rows: Rows) -> str:
    score = {(row["policy"], row["compression"]): row for row in findings(rows, "outcomes")}
    fast, fixed = score["SpecKV-fast", ALL]["tokens_per_step"], score["fixed-best", ALL]["tokens_per_step"]
    text = (
        "A step that drafted 8 tokens shows what every shorter draft from there would have brought, so any choice can be scored by what "
        f"happened. SpecKV-fast, fitted without the prompt, then commits {fast:.3f} tokens a step, and always drafting 8 {fixed:.3f}"
    )
    speeds = [
        row
        for (policy, name), row in score.items()
        if policy == "SpecKV-fast" and name != ALL and "tokens_per_second" in row
    ]
    if not speeds:
        return f"{text}."
    told = ", ".join(f"{row['compression']} {row['over_best_fixed_percent']:+.1f}%" for row in speeds)
    return f"{text}; in tokens per second its gain over the best fixed length is {told}."


def _task_out(rows: Rows) -> str:
    chosen = [row for row in findings(rows, "leave_one_task_out") if row["model"] == "MLP-16"]
    return f"MLP-16 on a task it was not fitted on correlates {_list(chosen)}. {_against_mean(chosen)}"


def _compression_out(rows: Rows) -> str:
    found = findings(rows, "leave_one_compression_out")
    seen, unseen = (
        [row for row in found if row["model"] == "MLP-16" and row["prompts"] == kind] for kind in ("seen", "held out")
    )
    known, new = (
        sum(row["correlation"] for row in found if row["model"] == "RF-100" and row["prompts"] == kind) / len(seen)
        for kind in ("seen", "held out")
    )
    return (
        f"MLP-16 on a compression it was not fitted on correlates {_list(seen)}, and {_list(unseen)} where the prompts are new to it too. "
        f"RF-100 goes from {known:.2f} to {new:.2f} on average: the difference is not transfer but the same prompts met again."
    )


def _cost(rows: Rows) -> str:
    costs = findings(rows, "cost")
    told = ", ".join(f"{row['compression']} {row['draft_ms']:.1f} and {row['verify_ms']:.1f} ms" for row in costs)
    worst = max(row["residual_percent"] for row in costs)
    return (
        f"A step takes t_verify + {GAMMA} t_draft: drafting a token and verifying take {told}, and the times of whole runs lie within "
        f"{worst:.1f}% of that (root mean square). Compression moves the best length through the ratio of the two, "
        + ", ".join(f"{percent(row['cost_ratio'])} for {row['compression']}" for row in costs)
        + "."
    )


def _always(row: Mapping[str, Any]) -> str:
    over_4 = f"{row['against_4_percent']:+.1f}% over 4"
    return over_4 if row["best_gamma"] in (4, 8) else f"{row['against_best_percent']:+.1f}% over it and {over_4}"


def _list(rows: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['correlation']:.2f} ({row['left_out']})" for row in rows)


def _against_mean(rows: list[Mapping[str, Any]]) -> str:
    shares = [1 - row["mse"] / row["mse_of_mean"] for row in rows]
    return f"Its squared error is {percent(min(shares))} to {percent(max(shares))} below that of always saying the other tasks' mean rate."


def _part(row: Mapping[str, Any], name: str) -> str:
    """A part of the gain in percent with enough digits to tell it from 0."""
    value = row[f"{name}_percent"]
    return f"{value:+.1f}%" if abs(value) >= 1 else f"{value:+.2f}%"


def improvement(rows: Rows) -> str:
    """The published headline."""
    row = select(rows, "improvement")[0]
    p = "p < 0.001" if row["p_value"] < 0.001 else f"p = {row['p_value']:.3f}"
    return f"+{row['percent']:.1f}%, {p} ({row['resamples']:,} paired resamples of steps)"
