"""What a live bench says: speeds paired by prompt and round, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgauge.api.arms import PLAIN, Arm, BenchPrompt
from draftgauge.replaying.evaluate import ALL_TASKS
from draftgauge.statistics.bootstrap import Comparison, Interval, columns
from draftgauge.statistics.paired import paired_gain, ratio_interval
from draftgauge.traces.repetition import distinct_share

SAME_RUNS = "same runs"
"""Where a fixed length was chosen by the very runs that it is compared on, which favours it."""
ASKED = "asked for"
NO_FIXED = "no fixed length among the policies"
FIXED = "fixed:"

Conversations = Sequence[Sequence[int]]
"""Numbers of prompts, those that are turns of one conversation together: resampling draws them so."""


@dataclass(frozen=True)
class Reference:
    """What gains are stated over.

    Attributes:
        arm: its name.
        chosen_from: what made it the one: the split of prompts that it was best on, :data:`SAME_RUNS`,
            :data:`ASKED` or :data:`NO_FIXED`.
    """

    arm: str
    chosen_from: str


def bench_rows(
    arms: Sequence[Arm], prompts: Sequence[BenchPrompt], compression: str, over: Reference | None = None
) -> list[dict[str, Any]]:
    """One flat row for every arm and task (and ``all``); the arm named ``plain`` must be among them.

    Rows hold ``policy, compression, task, prompts, tokens_per_step``, ``source_model`` and ``source_text`` (accepted
    tokens per step that were drafted, and that were looked up in the text), ``distinct_4grams`` (the share of the
    outputs' 4-grams that do not repeat), ``tokens_per_second`` (with
    ``_low`` and ``_high``), ``ratio_to_plain`` (with ``_low`` and ``_high``), ``ratio_to_best_transformers``,
    ``mismatches`` (positions whose token is not plain decoding's), ``mismatched_prompts``, ``prefill_seconds``, and
    ``gain`` (with ``_low``, ``_high``) over the arm ``over``; ``over_from`` says what that arm was chosen by. Without a
    reference it is the fastest of the fixed lengths on all these prompts, or plain decoding where there is no fixed
    length.

    All speeds of a row are one estimator: tokens over seconds, summed over prompts, of each prompt the median of its
    rounds; intervals are 95%, by resampling conversations.
    """
    plain = next(arm for arm in arms if arm.name == PLAIN)
    reference = over or _fastest_fixed(arms, _together(prompts, _clocked(arms, range(len(prompts)))))
    base = next(arm for arm in arms if arm.name == reference.arm)
    rows = []
    for task in [*(task for task in dict.fromkeys(p.task for p in prompts) if task != ALL_TASKS), ALL_TASKS]:
        chosen = [n for n, p in enumerate(prompts) if task in (p.task, ALL_TASKS)]
        outside = [arm for arm in arms if arm.name.startswith("transformers")]
        clocked = _together(prompts, _clocked(arms, chosen))
        best = max(outside, key=lambda arm: _speed(arm, clocked)[0], default=None)
        for arm in arms:
            row = {"policy": arm.name, "compression": compression, "task": task, "prompts": len(chosen)}
            row |= _figures(arm, plain, chosen) | _speeds(arm, plain, best, clocked)
            row |= {"over": base.name, "over_from": reference.chosen_from}
            rows.append(row | columns("gain", _gain(arm, base, clocked)))
    return rows


def _clocked(arms: Sequence[Arm], chosen: Sequence[int]) -> Sequence[int]:
    """The prompts whose outputs all arms were clocked on, if there is one: where an output is over with its first pass,
    transformers' clock has not begun.
    """
    clocked = [n for n in chosen if all(run.timed for arm in arms for run in arm.runs[n])]
    return clocked or chosen


def _together(prompts: Sequence[BenchPrompt], chosen: Sequence[int]) -> Conversations:
    """Prompts by their conversation."""
    groups: dict[int, list[int]] = {}
    for n in chosen:
        conversation = prompts[n].conversation
        groups.setdefault(~n if conversation is None else conversation, []).append(n)
    return list(groups.values())


def _figures(arm: Arm, plain: Arm, chosen: Sequence[int]) -> dict[str, Any]:
    steps = sum(arm.runs[n][0].steps for n in chosen)
    differing = [_mismatches(arm.runs[n][0].tokens, plain.runs[n][0].tokens) for n in chosen]
    return {
        "tokens_per_step": sum(len(arm.runs[n][0].tokens) for n in chosen) / steps if steps else None,
        "source_model": sum(arm.runs[n][0].accepted_draft for n in chosen) / steps if steps else None,
        "source_text": sum(arm.runs[n][0].accepted_text for n in chosen) / steps if steps else None,
        "distinct_4grams": distinct_share([arm.runs[n][0].tokens for n in chosen]),
        "mismatches": sum(differing),
        "mismatched_prompts": sum(d > 0 for d in differing),
        "prefill_seconds": float(np.median([r.prefill_seconds for n in chosen for r in arm.runs[n]])),
    }


def _speeds(arm: Arm, plain: Arm, best: Arm | None, clocked: Conversations) -> dict[str, Any]:
    return {
        **columns("tokens_per_second", _speed(arm, clocked)),
        **columns("ratio_to_plain", Interval(*(1 + value for value in _gain(arm, plain, clocked)[:3]))),
        "ratio_to_best_transformers": None if best is None else 1 + _gain(arm, best, clocked).estimate,
        "best_transformers": best.name if best is not None else None,
    }


def _fastest_fixed(arms: Sequence[Arm], chosen: Conversations) -> Reference:
    fixed = [arm for arm in arms if arm.name.startswith(FIXED)]
    fastest = max(fixed, key=lambda arm: _speed(arm, chosen)[0], default=None)
    return Reference(PLAIN, NO_FIXED) if fastest is None else Reference(fastest.name, SAME_RUNS)


def _mismatches(tokens: list[int], reference: list[int]) -> int:
    """Positions at which two outputs differ; missing ones differ too."""
    return sum(a != b for a, b in zip(tokens, reference, strict=False)) + abs(len(tokens) - len(reference))


def _speed(arm: Arm, chosen: Conversations) -> Interval:
    """Tokens per second with its interval over prompts; the median of the rounds stands for each prompt."""
    return ratio_interval(*_timed(arm, chosen))


def _timed(arm: Arm, chosen: Conversations) -> tuple[list[int], list[float]]:
    """Timed tokens and seconds, of each prompt the median of its rounds, summed by conversation."""
    tokens = [sum(arm.runs[n][0].timed for n in turns) for turns in chosen]
    return tokens, [sum(float(np.median([r.seconds for r in arm.runs[n]])) for n in turns) for turns in chosen]


def _gain(arm: Arm, other: Arm, chosen: Conversations) -> Comparison:
    """Speed of one arm over that of another, minus 1."""
    return paired_gain(*_timed(arm, chosen), *_timed(other, chosen))
