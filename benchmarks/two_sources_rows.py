"""Rows of the benchmark of two sources: what its policies gain on parts of a trace, replayed and live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from curves import imagined
from numpy.typing import NDArray

from draftgauge.api.arms import Arm, BenchPrompt
from draftgauge.fitting.tuning import tune
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FittedPolicy, fitted_policy
from draftgauge.policies.registry import make_policy
from draftgauge.replaying.evaluate import ALL_TASKS, BOUNDS, Compared, best_fixed_gamma, evaluate, task_masks
from draftgauge.replaying.hindsight import any_order_seconds, hindsight_optimum
from draftgauge.replaying.simulate import Replay, replay
from draftgauge.statistics.paired import paired_gain
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.repetition import cut_at_repetition, distinct_share, prompt_gram_counts
from draftgauge.traces.trace import Trace

RIVALS = ("lookup", "hf-prompt-lookup", "gated-lookup", "lookup-else-stopping")
FIXED, STOPPING, BOTH = "fixed", "stopping", "two-source"
ALONE = (f"{BOTH}:model", f"{BOTH}:text")
DISTINCT = 0.8
LEAST_GAINS = {"all": 0.15, f"over {DISTINCT:.0%} distinct 4-grams": 0.08}
"""Of both sources over stopping, live, by subset."""
THIRDS = ("least", "middle", "most")
MEASURED = "measured"
DIGITS = 5
LEFT_OUT = {
    *("compression", "split", "cost_ratio", "tuned", "steps", "tokens", "drafted_per_step", "appended_per_step"),
    *("acceptance_rate", "tokens_per_second_low", "tokens_per_second_high", "ratio_to_plain", "best_fixed_gamma"),
    *("best_fixed_from", "p_value", "p_holm"),
}
"""Columns of replayed rows that are not published: the same everywhere, or that no table of this benchmark shows."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """Policies of the training prompts.

    Attributes:
        train: the prompts that rivals are tuned on.
        stopping, both: fitted.
    """

    train: Trace
    stopping: FittedPolicy
    both: FittedPolicy

    def tuned(self, costs: CostCurve) -> dict[str, str]:
        """The best fixed length and the rivals, tuned for a cost curve, by name."""
        rivals = {name: tune(name, self.train, costs).spec for name in RIVALS}
        return {FIXED: f"fixed:{max(1, best_fixed_gamma(self.train, costs))}"} | rivals

    def arms(self, specs: Mapping[str, str], costs: CostCurve) -> dict[str, Policy]:
        """New policies by name: those of :meth:`tuned`, and the fitted ones, which are not fitted again."""
        longest = self.train.gamma_max
        alone = {
            name: replace(self.both, parameters={**self.both.parameters, "sources": name.partition(":")[2]})
            for name in ALONE
        }
        fitted = {STOPPING: self.stopping, **alone, BOTH: self.both}
        made = {name: make_policy(spec, longest, costs) for name, spec in specs.items()}
        return made | {name: fitted_policy(each, longest, costs) for name, each in fitted.items()}


def curves_of(costs: CostCurve) -> dict[str, CostCurve]:
    """The measured curve, and two imagined ones in units of its verification of one token."""
    return {
        MEASURED: costs,
        "flat verification, draft 5%": imagined(costs, 0.05, 0.0),
        "verification +2% a token, draft 10%": imagined(costs, 0.10, 0.02),
    }


def subsets(trace: Trace) -> Iterator[tuple[str, Trace]]:
    """The prompts, those of distinct outputs, all outputs cut where they begin to repeat, and thirds by acceptance."""
    yield "all", trace
    distinct = _distinct(trace) > DISTINCT
    if distinct.any():
        yield f"over {DISTINCT:.0%} distinct 4-grams", select(trace, distinct)
    yield "cut at the first repeated 8-gram", cut_at_repetition(trace)
    right = np.add.reduceat((trace.accepted > 0).astype(np.float64), trace.offsets[:-1]) / np.diff(trace.offsets)
    for name, chosen in zip(THIRDS, np.array_split(np.argsort(right, kind="stable"), len(THIRDS)), strict=True):
        if len(chosen):
            yield f"{name} acceptance", select(trace, np.isin(np.arange(len(right)), chosen))


def _distinct(trace: Trace) -> NDArray[np.float64]:
    grams = prompt_gram_counts(trace)
    return grams[:, 0] / np.maximum(grams[:, 1], 1)


def replay_rows(trace: Trace, costs: CostCurve, fitted: Fitted, specs: Mapping[str, str]) -> Iterator[Row]:
    """Every arm on a trace, task by task."""
    best_fixed = int(specs[FIXED].partition(":")[2])
    outcomes = {name: replay(trace, policy, costs) for name, policy in fitted.arms(specs, costs).items()}
    bounds = {name: hindsight_optimum(trace, costs, sources).replay for name, sources in BOUNDS.items()}
    compared = Compared(best_fixed, STOPPING, RIVALS, {FIXED, *bounds})
    over_alone = _over_better_source(trace, outcomes)
    any_order = any_order_seconds(trace, costs)
    masks = dict(task_masks(trace))
    for row in evaluate(trace, costs, {**outcomes, **bounds}, compared=compared):
        name, mask = str(row["policy"]), masks[str(row["task"])]
        ordered = float(outcomes[BOTH].committed[mask].sum() / any_order[mask].sum())
        extra = {"table": "replay", "spec": specs.get(name, name), "any_order_tokens_per_second": ordered}
        yield extra | row | (over_alone[str(row["task"])] if name == BOTH else {})


def _over_better_source(trace: Trace, outcomes: Mapping[str, Replay]) -> dict[str, Row]:
    """By task what both sources gain over the better one alone."""
    rows = {}
    for task, mask in task_masks(trace):
        alone = {name: outcomes[name].committed[mask].sum() / outcomes[name].seconds[mask].sum() for name in ALONE}
        better = max(alone, key=alone.__getitem__)
        rows[task] = {"better_source": better} | _gain(
            "gain_over_better_source",
            *((outcome.committed[mask], outcome.seconds[mask]) for outcome in (outcomes[BOTH], outcomes[better])),
        )
    return rows


def _gain(name: str, ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> Row:
    gain = paired_gain(*ours, *theirs)
    return {name: gain.estimate, f"{name}_low": gain.low, f"{name}_high": gain.high}


def live_rows(
    arms: list[Arm], prompts: list[BenchPrompt], replays: Mapping[str, Replay], replayed: NDArray[np.int64]
) -> Iterator[Row]:
    """What the arms took on each task, on all prompts and those of distinct outputs, beside what replay says of the
    same prompts; ``replayed`` is the number of each prompt there.
    """
    by_name = {arm.name: arm for arm in arms}
    tasks, plain = np.array([prompt.task for prompt in prompts]), by_name["plain"]
    outputs = [runs[0].tokens for runs in plain.runs[: len(prompts)]]
    distinct = np.array([distinct_share([output]) for output in outputs]) > DISTINCT
    subsets = {"all": np.ones(len(tasks), np.bool_), f"over {DISTINCT:.0%} distinct 4-grams": distinct}
    for subset, inside in subsets.items():
        for task in [*dict.fromkeys(tasks.tolist()), "all"]:
            numbers = np.flatnonzero(inside & ((tasks == task) | (task == "all")))
            if not len(numbers):
                continue
            for name, arm in by_name.items():
                row: Row = {"table": "live", "subset": subset, "task": task, "policy": name, "prompts": len(numbers)}
                row |= _live_figures(arm, by_name, numbers, outputs)
                if name in replays:
                    row |= _modelled(replays[name], replays, replayed[numbers])
                yield row


def _live_figures(arm: Arm, arms: Mapping[str, Arm], numbers: NDArray[np.int64], outputs: list[list[int]]) -> Row:
    runs = [arm.runs[n][0] for n in numbers]
    tokens, seconds = _timed(arm, numbers)
    steps = sum(run.steps for run in runs)
    row: Row = {
        "distinct_4grams": distinct_share([outputs[n] for n in numbers]),
        "tokens_per_second": float(tokens.sum() / seconds.sum()),
        "tokens_per_step": float(tokens.sum() / steps),
        "source_model": sum(run.accepted_draft for run in runs) / steps,
        "source_text": sum(run.accepted_text for run in runs) / steps,
        "mismatched_prompts": sum(arm.runs[n][0].tokens != outputs[n] for n in numbers),
    }
    row |= _gain("gain", (tokens, seconds), _timed(arms[FIXED], numbers))
    row |= {"best_rival": STOPPING}
    row |= _gain("gain_over_rival", (tokens, seconds), _timed(arms[STOPPING], numbers))
    if arm.name == BOTH:
        better = max(ALONE, key=lambda name: np.divide(*map(np.sum, _timed(arms[name], numbers))))
        row |= {"better_source": better}
        row |= _gain("gain_over_better_source", (tokens, seconds), _timed(arms[better], numbers))
    return row


def _timed(arm: Arm, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Timed tokens and seconds of some prompts, the median of their rounds."""
    tokens = np.array([arm.runs[n][0].timed for n in numbers])
    return tokens, np.array([np.median([run.seconds for run in arm.runs[n]]) for n in numbers])


def _modelled(outcome: Replay, outcomes: Mapping[str, Replay], chosen: NDArray[np.int64]) -> Row:
    """The same prompts replayed."""
    ours = outcome.committed[chosen], outcome.seconds[chosen]
    row = {"replayed_tokens_per_step": float(outcome.committed[chosen].sum() / outcome.steps[chosen].sum())}
    for name, over in (("replayed_gain", FIXED), ("replayed_gain_over_rival", STOPPING)):
        other = outcomes[over]
        row |= _gain(name, ours, (other.committed[chosen], other.seconds[chosen]))
    return row


def verdicts(rows: Iterable[Row]) -> Iterator[Row]:
    """How far the live gain over stopping is from what it must reach, and whether any task is better off with one
    source alone by more than the interval.
    """
    for row in rows:
        if (row["table"], row["policy"]) != ("live", BOTH):
            continue
        key = {name: row[name] for name in ("prompts_of", "subset", "task")} | {"table": "verdict", "policy": BOTH}
        if row["task"] == ALL_TASKS and row["subset"] in LEAST_GAINS:
            interval = {"low": row["gain_over_rival_low"], "high": row["gain_over_rival_high"]}
            judged = {"value": row["gain_over_rival"], "least": LEAST_GAINS[row["subset"]]}
            yield key | {"what": f"gain over {STOPPING}"} | judged | interval
        yield (
            key
            | {"what": "gain over the better source alone, at most", "least": 0.0}
            | {"value": row["gain_over_better_source_high"]}
        )


def published(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows that are written, rounded: of replayed ones all tasks at the measured costs, and elsewhere, and for
    thirds of the prompts, all tasks together. The others can be replayed again.
    """
    thirds = {f"{third} acceptance" for third in THIRDS}
    for row in rows:
        if row["table"] == "replay":
            if row["task"] != ALL_TASKS and (row["curve"] != MEASURED or row["subset"] in thirds):
                continue
            row = {name: value for name, value in row.items() if name not in LEFT_OUT and value is not None}
        yield {name: _rounded(value) for name, value in row.items()}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
