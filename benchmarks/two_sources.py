"""Two sources in one draft: what the model, the text and both gain, replayed and live, and where they do not.

Fits ``stopping`` and ``two-source`` on the training prompts of ``--runs`` and tunes the rules of lookup on them. Every
table says how much the outputs repeat themselves: the share of distinct 4-grams, the prompts whose outputs are over 80%
distinct, and all outputs cut at their first repeated 8-gram; and thirds of prompts by how often the draft is right. It
does so on the other prompts of ``--runs`` and on all prompts of ``--other``, at three cost curves, and decodes some of
the prompts live.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save, show_progress
from numpy.typing import NDArray

from draftgauge.api.arms import Arm, BenchPrompt, bench_arms, plain_arm, policy_arm
from draftgauge.api.fit import fit
from draftgauge.api.recorded import load_pair_of
from draftgauge.api.runs import read_run, select_runs
from draftgauge.core.seeds import generator
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.fitting.tuning import tune
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FittedPolicy, fitted_policy, load_fitted
from draftgauge.policies.registry import make_policy
from draftgauge.replay.evaluate import BOUNDS, Compared, best_fixed_gamma, evaluate, task_masks
from draftgauge.replay.hindsight import any_order_seconds, hindsight_optimum
from draftgauge.replay.simulate import Replay, replay
from draftgauge.replay.splits import TRAIN, VALIDATION, names_splits, split_trace
from draftgauge.statistics.paired import paired_gain
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.repetition import cut_at_repetition, distinct_share, prompt_gram_counts
from draftgauge.traces.trace import Trace

RIVALS = ("lookup", "hf-prompt-lookup", "gated-lookup", "lookup-else-stopping")
STOPPING, BOTH = "stopping", "two-source"
ALONE = (f"{BOTH}:model", f"{BOTH}:text")
DISTINCT = 0.8
THIRDS = ("least", "middle", "most")

Row = dict[str, Any]
MakePolicy = Callable[[CostCurve], Policy]


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

    def arms(self, costs: CostCurve) -> dict[str, MakePolicy]:
        """Factories by name, rivals tuned for a cost curve; policies are not fitted again."""
        longest = self.train.gamma_max
        arms: dict[str, MakePolicy] = {
            "fixed": lambda curve: make_policy(f"fixed:{self.best_fixed(costs)}", longest),
            STOPPING: lambda curve: fitted_policy(self.stopping, longest, curve),
        }
        for name in RIVALS:
            arms[name] = _made(tune(name, self.train, costs).spec, longest)
        for name in ALONE:
            part = replace(self.both, parameters={**self.both.parameters, "sources": name.partition(":")[2]})
            arms[name] = _fitted(part, longest)
        arms[BOTH] = _fitted(self.both, longest)
        return arms

    def best_fixed(self, costs: CostCurve) -> int:
        """The best fixed length of the training prompts."""
        return best_fixed_gamma(self.train, costs)


def _made(spec: str, longest: int) -> MakePolicy:
    return lambda curve: make_policy(spec, longest, curve)


def _fitted(fitted: FittedPolicy, longest: int) -> MakePolicy:
    return lambda curve: fitted_policy(fitted, longest, curve)


def main() -> None:
    """Fit, tune, replay, decode, and write ``two-sources.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument(
        "--runs", type=Path, default=Path("docs/results/final/runs"), help="recorded training and sealed prompts"
    )
    parser.add_argument("--other", type=Path, help="a recorded run of other prompts, all of which are evaluated on")
    parser.add_argument("--policy", type=Path, help="a fitted two-source to take instead of fitting one")
    parser.add_argument("--per-task", type=int, default=8, help="prompts of each task to decode live; 0 for none")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is decoded")
    args = parser.parse_args()
    run, _ = select_runs(args.runs)[0]
    trace, _ = read_run(run)
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / f"{name}.json" for name in (STOPPING, BOTH)}
        for name, path in files.items():
            if name == STOPPING or args.policy is None:
                fit(run, name, path)
        fitted = Fitted(
            split_trace(trace, TRAIN), load_fitted(files[STOPPING]), load_fitted(args.policy or files[BOTH])
        )
    sets = {"sealed": run} | ({} if args.other is None else {"other": select_runs(args.other)[0][0]})
    rows: list[Row] = []
    for name, folder in sets.items():
        evaluated, measured = _evaluated(folder)
        for curve, given in _curves(measured).items():
            labels = {"prompts_of": name, "curve": curve}
            rows += [labels | row for row in _replayed(evaluated, given, fitted)]
        if args.per_task:
            rows += [{"prompts_of": name} | row for row in _live(folder, fitted, args.per_task, args.rounds)]
    for row in rows:
        if row["task"] == "all" and row["policy"] in (STOPPING, BOTH):
            _show(row)
    save(args.out, "two-sources.json", rows)


def _evaluated(run: Path) -> tuple[Trace, CostCurve]:
    """The prompts of a run that are not for fitting, and its cost curve."""
    trace, costs = read_run(run)
    if not names_splits(trace):
        return trace, costs
    return select(trace, [prompt.split not in (TRAIN, VALIDATION) for prompt in trace.prompts]), costs


def _curves(costs: CostCurve) -> dict[str, CostCurve]:
    """The measured curve, and two imagined ones in units of its verification of one token."""
    return {
        "measured": costs,
        "flat verification, draft 5%": _imagined(costs, 0.05, 0.0),
        "verification +2% a token, draft 10%": _imagined(costs, 0.10, 0.02),
    }


def _imagined(costs: CostCurve, draft: float, verify: float) -> CostCurve:
    """A drafted token costs ``draft`` and each further verified one ``verify`` of verifying one token."""
    lengths = np.arange(costs.gamma_max + 1)
    one = np.asarray(costs.verify)[:, :1]
    verified, drafted = (tuple(map(tuple, (one * each).tolist())) for each in (1 + verify * lengths, draft * lengths))
    tables = dict.fromkeys(("verify", "verify_low", "verify_high"), verified)
    tables |= dict.fromkeys(("draft", "draft_low", "draft_high"), drafted)
    return replace(costs, **tables, overhead=0.0, plain=tuple(one[:, 0].tolist()), catch_up=())


def _subsets(trace: Trace) -> Iterator[tuple[str, Trace]]:
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


def _replayed(trace: Trace, costs: CostCurve, fitted: Fitted) -> Iterator[Row]:
    """Every arm on every subset, task by task."""
    arms, best_fixed = fitted.arms(costs), fitted.best_fixed(costs)
    for subset, part in _subsets(trace):
        outcomes = {name: replay(part, make(costs), costs) for name, make in arms.items()}
        bounds = {name: hindsight_optimum(part, costs, sources).replay for name, sources in BOUNDS.items()}
        compared = Compared(best_fixed, STOPPING, RIVALS, {"fixed", *bounds})
        over_alone = _over_better_source(part, outcomes)
        any_order = any_order_seconds(part, costs)
        masks = dict(task_masks(part))
        for row in evaluate(part, costs, {**outcomes, **bounds}, compared=compared):
            name, mask = str(row["policy"]), masks[str(row["task"])]
            ordered = float(outcomes[BOTH].committed[mask].sum() / any_order[mask].sum())
            extra = {"table": "replay", "subset": subset, "any_order_tokens_per_second": ordered}
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


def _live(run: Path, fitted: Fitted, per_task: int, rounds: int) -> list[Row]:
    """Some prompts live, interleaved; beside what replay says of the same prompts."""
    manifest = Manifest.load(run)
    trace, costs = _evaluated(run)
    pair = load_pair_of(manifest)
    settings = DecodingSettings(max_new_tokens=manifest.max_new_tokens, end_tokens=pair.end_tokens)
    made = fitted.arms(costs)
    arms = [plain_arm(pair, settings), *(policy_arm(pair, name, make(costs), settings) for name, make in made.items())]
    tasks = np.array([prompt.task for prompt in trace.prompts])
    chosen = np.sort(np.concatenate([np.flatnonzero(tasks == task)[:per_task] for task in dict.fromkeys(tasks)]))
    prompts = [BenchPrompt(list(trace.prompts[n].prompt_token), trace.prompts[n].task) for n in chosen]
    rng = generator(0, "two sources", manifest.target.compression)
    bench_arms(arms, prompts, rounds, rng, lambda done, total: show_progress("live", done, total))
    part = select(trace, np.isin(np.arange(len(tasks)), chosen))
    replays = {name: replay(part, make(costs), costs) for name, make in made.items()}
    return list(_live_rows(arms, prompts, replays))


def _live_rows(arms: list[Arm], prompts: list[BenchPrompt], replays: Mapping[str, Replay]) -> Iterator[Row]:
    by_name = {arm.name: arm for arm in arms}
    tasks, plain = np.array([prompt.task for prompt in prompts]), by_name["plain"]
    outputs = [runs[0].tokens for runs in plain.runs]
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
                    row |= _modelled(replays[name], replays[STOPPING], numbers)
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
    row |= _gain("gain", (tokens, seconds), _timed(arms["fixed"], numbers))
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


def _modelled(outcome: Replay, stopping: Replay, chosen: NDArray[np.int64]) -> Row:
    """The same prompts replayed."""
    sides = [(each.committed[chosen], each.seconds[chosen]) for each in (outcome, stopping)]
    row = {"replayed_tokens_per_step": float(outcome.committed[chosen].sum() / outcome.steps[chosen].sum())}
    return row | _gain("replayed_gain_over_rival", *sides)


def _show(row: Row) -> None:
    console.print(
        f"{row['prompts_of']:7} {row['table']:7} {row.get('curve', ''):36} {row['subset']:34} {row['policy']:11} "
        f"distinct {row['distinct_4grams']:.2f}  over fixed {row['gain']:+.1%}  over stopping "
        f"{row['gain_over_rival']:+.1%} [{row['gain_over_rival_low']:+.1%}, {row['gain_over_rival_high']:+.1%}]",
        highlight=False,
    )


if __name__ == "__main__":
    main()
