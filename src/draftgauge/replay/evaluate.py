"""Policies on a trace as table rows: modelled speed with intervals, beside plain decoding, the best fixed length and hindsight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy
from draftgauge.replay.bootstrap import RESAMPLES, paired_gain, ratio_interval
from draftgauge.replay.hindsight import hindsight_optimum
from draftgauge.replay.simulate import Replay, context_lengths, prompt_of_rows, replay, replay_fixed_all, sum_by_prompt
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

ALL_TASKS = "all"
"""The task name of figures over all prompts together."""

Row = dict[str, str | int | float | None]


@dataclass(frozen=True)
class _Baselines:
    """What every policy is compared with, on the same prompts."""

    plain_seconds: NDArray[np.float64]
    best_gamma: int
    best_fixed: Replay
    hindsight: Replay


def evaluate(
    trace: Trace,
    costs: CostCurve,
    policies: Mapping[str, Policy | Replay],
    *,
    best_fixed: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Row]:
    """One flat row for every policy on every task of a trace, and on all prompts together (task "all").

    Seconds are modelled from the cost curve; intervals are 95%, resampled by prompt. Keys of a row:

    * ``policy``, ``compression``, ``task``, ``prompts``, ``steps``, ``tokens``;
    * ``tokens_per_step``, ``drafted_per_step``, ``acceptance_rate`` (None if nothing was drafted);
    * ``tokens_per_second`` with ``tokens_per_second_low`` and ``_high``;
    * ``ratio_to_plain``: over plain decoding as measured in the cost curve;
    * ``gain_over_best_fixed`` with ``gain_low``, ``gain_high``, ``gain_p_value``: over the one fixed length
      ``best_fixed_gamma``, the same for all tasks, minus 1;
    * ``captured_share``: of the way from that length to the hindsight optimum; negative below it, None where there is no way.

    Args:
        trace: dense.
        costs: of the same pair, compression and device.
        policies: by the name in their rows; new ones, as some learn across prompts. A finished replay of this trace does as well.
        best_fixed: the fixed length to compare with, chosen on other prompts. If None, the best one on these prompts, which
            favours the fixed length.
        resamples, seed: of the intervals.

    Raises:
        DraftgaugeError: if ``best_fixed`` is not in 0..gamma_max.
        TraceError: if the cost curve was measured up to less than the trace's ``gamma_max``.
    """
    baselines = _baselines(trace, costs, best_fixed)
    masks = list(task_masks(trace))
    rows: list[Row] = []
    for name, policy in policies.items():
        outcome = policy if isinstance(policy, Replay) else replay(trace, policy, costs)
        for task, mask in masks:
            key: Row = {"policy": name, "compression": trace.compression, "task": task}
            rows.append(key | _measures(outcome, baselines, mask, resamples, seed))
    return rows


def best_fixed_gamma(trace: Trace, costs: CostCurve) -> int:
    """The fixed draft length with the most modelled tokens per second, 0 if not speculating is best; the shortest of equals."""
    return _best_of(replay_fixed_all(trace, costs))


def hindsight_gain(trace: Trace, costs: CostCurve) -> float:
    """Modelled tokens per second of the hindsight optimum over those of the best fixed length (0 included), minus 1."""
    fixed = replay_fixed_all(trace, costs)
    return hindsight_optimum(trace, costs).tokens_per_second / fixed[_best_of(fixed)].tokens_per_second - 1


def plain_seconds(trace: Trace, costs: CostCurve) -> NDArray[np.float64]:
    """``[prompts]`` modelled seconds of decoding each output plainly, one token a step."""
    step_seconds = np.interp(context_lengths(trace), costs.contexts, costs.plain)
    return sum_by_prompt(prompt_of_rows(trace), step_seconds, len(trace.prompts))


def task_masks(trace: Trace) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Every task in order of first appearance with its prompts ``[prompts]``, then all of them as "all"."""
    tasks = np.array([prompt.task for prompt in trace.prompts])
    for task in dict.fromkeys(tasks.tolist()):
        yield task, tasks == task
    yield ALL_TASKS, np.ones(len(tasks), np.bool_)


def _best_of(fixed: list[Replay]) -> int:
    return int(np.argmax([outcome.tokens_per_second for outcome in fixed]))


def _baselines(trace: Trace, costs: CostCurve, best_fixed: int | None) -> _Baselines:
    if best_fixed is not None and not 0 <= best_fixed <= trace.gamma_max:
        raise DraftgaugeError(f"the fixed length to compare with must be 0 to {trace.gamma_max}, the trace's gamma_max, not {best_fixed}")
    fixed = replay_fixed_all(trace, costs)
    gamma = _best_of(fixed) if best_fixed is None else best_fixed
    return _Baselines(plain_seconds(trace, costs), gamma, fixed[gamma], hindsight_optimum(trace, costs).replay)


def _measures(outcome: Replay, baselines: _Baselines, mask: NDArray[np.bool_], resamples: int, seed: int) -> Row:
    """The figures of a row, over the prompts in ``mask``."""
    tokens, seconds = outcome.committed[mask], outcome.seconds[mask]
    steps, drafted = int(outcome.steps[mask].sum()), int(outcome.drafted[mask].sum())
    speed = ratio_interval(tokens, seconds, resamples=resamples, seed=seed)
    fixed = (baselines.best_fixed.committed[mask], baselines.best_fixed.seconds[mask])
    gain = paired_gain(tokens, seconds, *fixed, resamples=resamples, seed=seed)
    base = float(fixed[0].sum() / fixed[1].sum())
    way = float(baselines.hindsight.committed[mask].sum() / baselines.hindsight.seconds[mask].sum()) - base
    return {
        "prompts": int(mask.sum()),
        "steps": steps,
        "tokens": int(tokens.sum()),
        "tokens_per_step": float(tokens.sum() / steps),
        "drafted_per_step": drafted / steps,
        "acceptance_rate": float(outcome.accepted[mask].sum() / drafted) if drafted else None,
        "tokens_per_second": speed.estimate,
        "tokens_per_second_low": speed.low,
        "tokens_per_second_high": speed.high,
        "ratio_to_plain": float(baselines.plain_seconds[mask].sum() / seconds.sum()),
        "best_fixed_gamma": baselines.best_gamma,
        "gain_over_best_fixed": gain.estimate,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "gain_p_value": gain.p_value,
        # A way of rounding errors only is none.
        "captured_share": None if math.isclose(base + way, base, rel_tol=1e-9) else (speed.estimate - base) / way,
    }
