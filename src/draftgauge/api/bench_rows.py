"""What a live bench says: tokens over seconds of every way of decoding, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from draftgauge.api.arms import Arm, BenchPrompt
from draftgauge.api.requests import PLAIN
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import command_line
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.judging.statistics.paired import paired_gain, ratio_interval
from draftgauge.judging.verdict import recommended, verdict_of
from draftgauge.policies.registry import FIXED
from draftgauge.traces.repetition import distinct_share

SAME_RUNS = "same runs"  # a fixed length chosen by the very runs that it is compared on, which favours it
ASKED = "asked for"
NO_FIXED = "no fixed length among the policies"


@dataclass(frozen=True)
class Reference:
    """The arm that gains are stated over, and what it was chosen by: a split of prompts, or one of the words above."""

    arm: str
    chosen_from: str


def bench_rows(
    arms: Sequence[Arm], prompts: Sequence[BenchPrompt], compression: str, over: Reference | None = None
) -> list[dict[str, Any]]:
    """One flat row for every arm and task (and ``all``); the arm named ``plain`` must be among them.

    Rows hold ``policy, compression, task, prompts, tokens_per_step``, ``source_model`` and ``source_text`` (accepted
    tokens per step that were drafted, and looked up), ``distinct_4grams`` (the share of 4-grams that do not repeat),
    ``tokens_per_second``, ``ratio_to_plain`` and ``gain`` over the arm ``over`` (each with ``_low`` and ``_high``; the
    fastest fixed length if None), ``over_from``, ``ratio_to_best_transformers``, ``mismatches`` (positions whose token
    is not plain decoding's), ``mismatched_prompts``, ``prefill_seconds`` and ``recommended`` (of this draftgauge's own
    arms the simplest that is level with the fastest on all prompts, see
    :func:`~draftgauge.judging.verdict.recommended`). What cannot be known is None. The recommended arm's row over all
    tasks also has ``verdict``, in words.

    All speeds of a row are one estimator: tokens over seconds, summed over prompts, of each prompt the median of its
    rounds; intervals are 95%, by resampling conversations.
    """
    by_name = {arm.name: arm for arm in arms}

    def timed(arm: Arm, chosen: Sequence[int]) -> tuple[list[int], list[float]]:
        """Tokens and seconds of the prompts that all arms were timed on, summed by conversation."""
        # Where an output is over with its first pass, transformers' clock has not begun.
        every = [n for n in chosen if all(run.timed for each in arms for run in each.runs[n])] or chosen
        groups: dict[int, list[int]] = {}
        for n in every:
            conversation = prompts[n].conversation
            groups.setdefault(~n if conversation is None else conversation, []).append(n)
        tokens = [sum(arm.runs[n][0].timed for n in turns) for turns in groups.values()]
        seconds = [[float(np.median([run.seconds for run in arm.runs[n]])) for n in turns] for turns in groups.values()]
        return tokens, [sum(each) for each in seconds]

    def fastest(among: Sequence[Arm], chosen: Sequence[int]) -> Arm | None:
        return max(among, key=lambda arm: ratio_interval(*timed(arm, chosen)).estimate, default=None)

    if over is None:
        best = fastest([arm for arm in arms if arm.name.startswith(FIXED)], range(len(prompts)))
        over = Reference(PLAIN, NO_FIXED) if best is None else Reference(best.name, SAME_RUNS)
    own = {arm.name: timed(arm, range(len(prompts))) for arm in arms if not arm.outside}
    if not any(sum(tokens) for tokens, _ in own.values()):
        raise DraftgaugeError("no output has a token that was timed: ask for longer ones with --max-new-tokens")
    # Of lengths that were asked for by name each may be the best.
    best_setting = recommended(own, "" if over.chosen_from == ASKED else over.arm)
    rows: list[dict[str, Any]] = []
    for task in dict.fromkeys([*(p.task for p in prompts if p.task != ALL_TASKS), ALL_TASKS]):
        chosen = [n for n, p in enumerate(prompts) if task in (p.task, ALL_TASKS)]
        outside = fastest([arm for arm in arms if arm.name.startswith("transformers")], chosen)
        for arm in arms:
            spent = timed(arm, chosen)
            runs = [arm.runs[n][0] for n in chosen]
            steps = sum(run.steps for run in runs)
            outputs = [(arm.runs[n][0].tokens, by_name[PLAIN].runs[n][0].tokens) for n in chosen]
            differing = [sum(a != b for a, b in zip_longest(*both)) for both in outputs]
            over_plain = paired_gain(*spent, *timed(by_name[PLAIN], chosen))
            row = {
                "policy": arm.name,
                "compression": compression,
                "task": task,
                "prompts": len(chosen),
                "tokens_per_step": sum(len(run.tokens) for run in runs) / steps if steps else None,
                "source_model": sum(run.accepted_draft for run in runs) / steps if steps else None,
                "source_text": sum(run.accepted_text for run in runs) / steps if steps else None,
                "distinct_4grams": distinct_share([run.tokens for run in runs]),
                "mismatches": sum(differing),
                "mismatched_prompts": sum(count > 0 for count in differing),
                "prefill_seconds": float(np.median([run.prefill_seconds for n in chosen for run in arm.runs[n]])),
                **columns("tokens_per_second", ratio_interval(*spent)),
                **{name: 1 + value for name, value in columns("ratio_to_plain", over_plain).items()},
                "ratio_to_best_transformers": None,
                "best_transformers": None,
                "recommended": arm.name == best_setting,
                "over": over.arm,
                "over_from": over.chosen_from,
                **columns("gain", paired_gain(*spent, *timed(by_name[over.arm], chosen))),
            }
            if outside is not None:
                row["ratio_to_best_transformers"] = 1 + paired_gain(*spent, *timed(outside, chosen)).estimate
                row["best_transformers"] = outside.name
            rows.append({name: None if value != value else value for name, value in row.items()})
    pooled = [row for row in rows if row["task"] == ALL_TASKS and row["policy"] in own]
    next(row for row in pooled if row["recommended"])["verdict"] = str(verdict_of(pooled, command_line(), live=True))
    return rows
