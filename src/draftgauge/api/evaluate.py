"""A trained drafter on held-out prompts: acceptance by depth with intervals, accepted tokens a step, speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.api.runs import prompt_file
from draftgauge.core.prompts import mixed_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.distance import distance_names, needed_context
from draftgauge.diagnostics.evaluation import DrafterEvaluation, EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.texts import greedy_texts
from draftgauge.drafters.reuse import load_drafter, read_description
from draftgauge.models.loading import end_tokens, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompts
from draftgauge.statistics.crossed import (
    Counts,
    Measure,
    alpha_intervals,
    at_depths,
    difference,
    interval,
    mean_accepted,
    retention,
)
from draftgauge.statistics.paired import ratio_interval

Row = dict[str, Any]
DEFAULT_DEPTHS = 7


def evaluate(
    drafter: Path,
    *,
    target: str | None = None,
    prompts: str | Path | None = None,
    per_task: int | None = None,
    max_new_tokens: int = 96,
    depths: int | None = None,
    device: str | None = None,
    engine: str = "auto",
    trust_remote_code: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Row]:
    """Measure a trained drafter on texts that its target decodes.

    Args:
        drafter: folder of a trained drafter.
        target: its target; the one that the folder names if None.
        prompts: a prompt file, or ``reference:SPLIT``; the bundled test prompts if None.
        per_task: the first so many prompts of each task.
        max_new_tokens: of each output.
        depths: tokens a draft; as many as it was trained for if None.
        device, engine, trust_remote_code: how to load the target.
        progress: told (what, done, total).

    Returns:
        One row a depth, ``depth`` (from 0), ``alpha``, ``low``, ``high``; one of the drafter as a whole, ``mat`` and ``retention`` with
        intervals, live and tree measures and speed; rows of ``mat`` by task and of ``alpha`` by the context that a token needs
        (``measure``, ``task`` or ``distance``, ``estimate``, ``low``, ``high``). Intervals are 95%, resampled by prompt.

    Raises:
        ModelError: if the folder holds no drafter, or one of another target.
        PromptError: if the prompts cannot be read.
    """
    description = read_description(drafter)
    source = target or description["config"]["target_source"]
    count = depths or description["extra"].get("request", {}).get("depths", DEFAULT_DEPTHS)
    model = load_model(source, device=device, engine=engine, trust_remote_code=trust_remote_code)
    net = load_drafter(drafter, model)
    tokenizer = load_tokenizer(source, trust_remote_code)
    settings = DecodingSettings(max_new_tokens, end_tokens=end_tokens(model, tokenizer))
    chosen = encode_prompts(
        mixed_prompts(prompt_file(prompts), per_task), tokenizer, model.spec.context - max_new_tokens
    )
    texts = greedy_texts(model, chosen, settings, progress)
    found = evaluate_drafter(
        net, model, texts, needed_context(model.module, texts), EvaluationPlan(count, settings), progress
    )
    return evaluation_rows(found)


def evaluation_rows(found: DrafterEvaluation) -> list[Row]:
    """What :func:`evaluate` returns, from the counts."""
    forced = Counts.of(found.reached, found.accepted)
    rows: list[Row] = [
        {"depth": depth, "alpha": alpha, "low": low, "high": high}
        for depth, (alpha, low, high) in enumerate(alpha_intervals(forced))
    ]
    rows.append(_whole(found, forced))
    tasks = np.array(found.tasks)
    rows += [
        _measured("mat", forced.prompts(tasks == task), mean_accepted, task=task) for task in dict.fromkeys(found.tasks)
    ]
    last = forced.reached.shape[-1] - 1
    ends: Sequence[tuple[str, Measure]] = (
        ("alpha_first", at_depths(0, 0)),
        ("alpha_deep", at_depths(min(4, last), min(6, last))),
    )
    for index, name in enumerate(distance_names()):
        at = Counts.of(found.distance_reached[:, index], found.distance_accepted[:, index])
        rows += [_measured(which, at, measure, distance=name) for which, measure in ends]
    return rows


def _whole(found: DrafterEvaluation, forced: Counts) -> Row:
    row: Row = {"texts": len(found.tasks)}
    for name, measure in (("mat", mean_accepted), ("retention", retention)):
        row |= _interval(name, *interval(forced, measure))
    live = Counts.of(found.live_reached, found.live_accepted)
    row |= _interval("live_mat", *interval(live, mean_accepted))
    gap = difference(live, Counts.of(found.walked_reached, found.walked_accepted), mean_accepted)
    row |= _interval("live_minus_forced", gap.estimate, gap.low, gap.high)
    row["live_mismatched_prompts"] = found.mismatched
    row |= _interval("tree_mat", *ratio_interval(found.tree_tokens, found.tree_steps))
    return row | ({} if found.latency is None else vars(found.latency))


def _interval(name: str, estimate: float, low: float, high: float) -> Row:
    return {name: estimate, f"{name}_low": low, f"{name}_high": high}


def _measured(name: str, counts: Counts, measure: Measure, **labels: str) -> Row:
    estimate, low, high = interval(counts, measure)
    return labels | {"measure": name, "estimate": estimate, "low": low, "high": high}
