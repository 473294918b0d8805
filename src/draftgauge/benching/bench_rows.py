"""What a live bench says: tokens over seconds of every way of decoding, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from draftgauge.benching.arms import Arm, BenchPrompt
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import COMPRESSED_BEFORE
from draftgauge.core.provenance import command_line
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.judging.verdict import recommend, say_verdict
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.policies.spec import FIXED
from draftgauge.requests import PLAIN
from draftgauge.traces.trace import distinct_share

SAME_RUNS = "same runs"  # a fixed length chosen by the very runs that it is compared on, which favours it
ASKED = "asked for"
PERCENTILES = (50, 90, 99)
NO_FIXED = "no fixed length among the policies"
NEAR_TIE = {True: 1e-3, False: 0.5}  # logits that are less apart, in float32 and in what rounds more, count as equal


@dataclass(frozen=True)
class Reference:
    """The arm that gains are stated over, and what it was chosen by: a split of prompts, or one of the words above."""

    arm: str
    chosen_from: str


@torch.inference_mode()
def note_near_ties(target: CachedModel, arms: Sequence[Arm], prompts: Sequence[BenchPrompt]) -> None:
    """Note the prompts whose output differs from plain decoding's, the first arm, at a near-tie.

    There the target's logits of both tokens are less apart than roundings make them.
    """
    exact = target.spec.dtype == torch.float32 and not target.spec.engine.startswith(COMPRESSED_BEFORE)
    for arm in arms:
        arm.near_ties = set()
        for number, prompt in enumerate(prompts):
            plain, own = (each.runs[number][0].tokens for each in (arms[0], arm))
            at = next((place for place, (a, b) in enumerate(zip(plain, own, strict=False)) if a != b), None)
            if at is not None:
                target.reset()
                text = upload([*prompt.tokens, *plain[:at]], target.spec.device)
                logits = target.forward(text, last_only=True)[-1]
                if logits.max() - logits[own[at]] < NEAR_TIE[exact]:
                    arm.near_ties.add(number)
    target.reset()


def bench_rows(
    arms: Sequence[Arm], prompts: Sequence[BenchPrompt], compression: str, over: Reference | None = None
) -> list[dict[str, Any]]:
    """One flat row for every arm and task (and ``all``); the arm named ``plain`` must be among them.

    Rows hold ``policy, compression, task, prompts, tokens_per_step, prefill_seconds``; what cannot be known is None.
    ``ttft_p50_ms`` is to the first token, ``tpot_p50_ms`` for each further one; ``_p90_ms`` and ``_p99_ms`` too.
    ``source_model`` and ``source_text`` are accepted tokens per step that were drafted, and looked up;
    ``distinct_4grams`` is the share of 4-grams that do not repeat. ``tokens_per_second``, ``ratio_to_plain`` and
    ``gain`` over the arm ``over`` (the fastest fixed length if None) have ``_low`` and ``_high``; ``over_from``,
    ``ratio_to_best_transformers``. ``mismatches`` are positions whose token is not plain decoding's, also behind the
    first. ``mismatched_prompts`` are outputs that differ. ``near_ties`` are those whose first difference is one, see
    :func:`note_near_ties`; None of servers.

    ``recommended`` is the simplest of this draftgauge's own arms that is level with the fastest on all prompts, see
    :func:`~draftgauge.judging.verdict.recommended`. Its row over all tasks also has ``verdict``, in words.

    All speeds of a row are one estimator: tokens over seconds, summed over prompts, each with the median of its rounds.
    Intervals are 95%, by resampling conversations.
    """
    by_name = {arm.name: arm for arm in arms}

    def timed(arm: Arm, chosen: Sequence[int]) -> Speed:
        """Of the prompts that all arms were timed on."""
        # Where an output is over with its first pass, transformers' clock has not begun.
        every = [n for n in chosen if all(run.timed for each in arms for run in each.runs[n])] or chosen
        own = (prompts[n].conversation for n in every)
        conversation = np.array([~n if of is None else of for n, of in zip(every, own, strict=True)])
        seconds = [np.median([run.seconds for run in arm.runs[n]]) for n in every]
        return Speed.by(conversation, [arm.runs[n][0].timed for n in every], seconds)

    def fastest(among: Sequence[Arm], chosen: Sequence[int]) -> Arm | None:
        return max(among, key=lambda arm: np.nan_to_num(timed(arm, chosen).estimate), default=None)

    if over is None:
        best = fastest([arm for arm in arms if arm.name.startswith(FIXED)], range(len(prompts)))
        over = Reference(PLAIN, NO_FIXED) if best is None else Reference(best.name, SAME_RUNS)
    own = {arm.name: timed(arm, range(len(prompts))) for arm in arms if not arm.outside}
    if not any(np.sum(speed.tokens) for speed in own.values()):
        raise DraftgaugeError("no output has a token that was timed: ask for longer ones with --max-new-tokens")
    rows: list[dict[str, Any]] = []
    for task in dict.fromkeys([*(p.task for p in prompts if p.task != ALL_TASKS), ALL_TASKS]):
        chosen = [n for n, p in enumerate(prompts) if task in (p.task, ALL_TASKS)]
        outside = fastest([arm for arm in arms if arm.name.startswith("transformers")], chosen)
        plain, base = timed(by_name[PLAIN], chosen), timed(by_name[over.arm], chosen)
        for arm in arms:
            speed = timed(arm, chosen)
            runs = [arm.runs[n][0] for n in chosen]
            usual = [sorted(arm.runs[n], key=lambda run: run.seconds)[(len(arm.runs[n]) - 1) // 2] for n in chosen]
            steps = sum(run.steps for run in runs)
            outputs = [(arm.runs[n][0].tokens, by_name[PLAIN].runs[n][0].tokens) for n in chosen]
            differing = [sum(a != b for a, b in zip_longest(*both)) for both in outputs]
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
                "near_ties": None if arm.near_ties is None else len(arm.near_ties.intersection(chosen)),
                "prefill_seconds": float(np.median([run.prefill_seconds for n in chosen for run in arm.runs[n]])),
                **percentiles("ttft", [run.prefill_seconds for run in usual]),
                **percentiles("tpot", [run.seconds / run.timed for run in usual if run.timed]),
                **columns("tokens_per_second", speed.interval()),
                **columns("ratio_to_plain", speed.over(plain)),
                "ratio_to_best_transformers": None if outside is None else speed.over(timed(outside, chosen)).estimate,
                "best_transformers": None if outside is None else outside.name,
                "over": over.arm,
                "over_from": over.chosen_from,
                **columns("gain", speed.over(base).gain),
            }
            rows.append({name: None if value != value else value for name, value in row.items()})
    # Of lengths that were asked for by name each may be the best.
    recommend(rows, own, "" if over.chosen_from == ASKED else over.arm)
    pooled = [row for row in rows if row["task"] == ALL_TASKS and row["policy"] in own]
    say_verdict(pooled, command_line(), live=True)
    return rows


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """``NAME_p50_ms`` and so on of prompts, each at its median round; None where no time was told."""
    known = [1e3 * each for each in seconds if each > 0]
    return {f"{name}_p{p}_ms": float(np.percentile(known, p)) if known else None for p in PERCENTILES}


def hold_to(rows: Sequence[dict[str, Any]], at_least: float | None) -> list[dict[str, Any]]:
    """The rows; those with a verdict say whether the advised arm ``reached`` a speed over plain decoding."""
    for row in rows if at_least is not None else ():
        if "verdict" in row:
            row |= {"at_least": at_least, "reached": row["ratio_to_plain"] >= at_least}
    return list(rows)
