"""How far to draft: fitted and published policies on unseen prompts, replayed and live, and on other tasks and costs.

The script profiles the bundled pair with both draft sizes on all its prompts. ``--runs`` and ``--small-runs`` name
recorded runs to take instead. It fits throughput-optimal stopping on the training prompts, and compares all policies on
the test prompts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save, show_progress

from draftgauge.api.bench import bench
from draftgauge.api.fit import fit
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay as replay_verb
from draftgauge.api.runs import read_run, select_runs
from draftgauge.core.config import from_mapping
from draftgauge.core.prompts import TEST, TRAIN
from draftgauge.diagnostics.calibration import base_rates, calibration_rows, starts, visited
from draftgauge.diagnostics.leave_out import Recorded, leave_compression_out, leave_pair_out, leave_task_out
from draftgauge.fitting.continuation import fit_continuation
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.policies.acceptance_model import DERIVED, StoppingNumbers, columns_of
from draftgauge.policies.fitted import FittedPolicy, fitted_policy, load_fitted
from draftgauge.policies.registry import make_policy
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.policies.suffix_columns import SuffixColumns
from draftgauge.replaying.cost_sweep import at_cost_ratio
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.hindsight import hindsight_optimum
from draftgauge.replaying.simulate import Replay, replay, replay_fixed_all
from draftgauge.replaying.splits import split_trace
from draftgauge.replaying.views import text_view
from draftgauge.statistics.paired import paired_gain
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

COMPRESSIONS = ("none", "int8", "nf4")
FIELD = (
    "hf-heuristic",
    "hf-confidence",
    "hf-confidence:adaptive=true",
    "cumulative-confidence",
    "svip",
    "adaedl",
    "specdec++",
    "sglang-adaptive",
    "sglang-throughput",
    "vllm",
    "bandit",
)
SWEEP = (0.04, 0.10, 0.25, 0.50)
TIMED_REPLAYS = 9

Row = dict[str, Any]


def main() -> None:
    """Measure all of it and write ``speckv.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument(
        "--runs", type=Path, help="recorded runs of the pair on reference:all, one folder a compression"
    )
    parser.add_argument("--small-runs", type=Path, help="the same with the smaller draft")
    parser.add_argument("--per-task", type=int, default=6, help="test prompts of each task to decode live")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is decoded")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = args.runs or _profile(Path(scratch) / "runs", "reference", args.max_new_tokens)
        small = args.small_runs or _profile(Path(scratch) / "small", "reference/draft-small", args.max_new_tokens)
        fitted = Path(scratch) / "stopping.json"
        fit(runs, "stopping", fitted)
        rows = (
            _replayed(runs, fitted)
            + _swept(runs, fitted)
            + _rules(runs, fitted)
            + _moved(runs, small)
            + _calibrated(runs, fitted)
        )
        rows += _speeds(runs, fitted)
        rows += _live(runs, fitted, args.per_task, args.rounds)
    save(args.out, "choosing-length.json", rows)


def _profile(out: Path, draft: str, max_new_tokens: int) -> Path:
    profile(
        draft=draft,
        prompts="reference:all",
        out=out,
        compression=COMPRESSIONS,
        max_new_tokens=max_new_tokens,
        progress=show_progress,
    )
    return out


def _named(rows: Sequence[Row], table: str, fitted: Path) -> list[Row]:
    """Rows of a table; the fitted policy goes by its kind, not by the place of its file."""
    return [
        {"table": table} | row | {"policy": "stopping" if row["policy"] == str(fitted) else row["policy"]}
        for row in rows
    ]


def _replayed(runs: Path, fitted: Path) -> list[Row]:
    """Every policy on the test prompts of every compression, task by task."""
    rows: list[Row] = []
    for run, manifest in select_runs(runs):
        speckv = [
            f"speckv:reading={reading},compression={_as_published(manifest.target.compression)}"
            for reading in ("previous", "two")
        ]
        rows += _named(replay_verb(run, [str(fitted), *FIELD, *speckv], tune=True), "replay", fitted)
    for row in rows:
        if row["task"] == "all" and row["policy"] in ("stopping", "cumulative-confidence", "hindsight"):
            _show(row)
    return rows


def _as_published(compression: str) -> str:
    """SpecKV knows fp16, int8 and nf4; an uncompressed target counts as the first."""
    return compression if compression in ("int8", "nf4") else "none"


def _swept(runs: Path, fitted: Path) -> list[Row]:
    """The same against the cost ratio, on the uncompressed target's trace."""
    none = next(run for run, manifest in select_runs(runs) if manifest.target.compression == "none")
    rows = replay_verb(none, [str(fitted), "cumulative-confidence", "hf-confidence", "specdec++", "svip"], sweep=SWEEP)
    rows = _named([row for row in rows if row["task"] == "all"], "cost ratio", fitted)
    for row in rows:
        if row["policy"] == "stopping":
            _show(row)
    return rows


def _rules(runs: Path, fitted: Path) -> list[Row]:
    """Stopping rules on the same acceptance models: short and long look-ahead, online, least-squares Monte Carlo."""
    rows: list[Row] = []
    for run, _ in select_runs(runs):
        trace, measured = read_run(run)
        train, test = split_trace(trace, TRAIN), split_trace(trace, TEST)
        curves = {"measured": measured} | (
            {ratio: at_cost_ratio(measured, ratio) for ratio in SWEEP} if trace.compression == "none" else {}
        )
        for ratio, costs in curves.items():
            for rule, outcome in _by_rule(load_fitted(fitted), train, test, costs).items():
                key = {"table": "rules", "policy": rule, "compression": trace.compression, "cost_ratio": ratio}
                rows.append(key | _gain(outcome, train, test, costs))
                _show(rows[-1])
    return rows


def _by_rule(fitted: FittedPolicy, train: Trace, test: Trace, costs: CostCurve) -> dict[str, Replay]:
    numbers = from_mapping(StoppingNumbers, fitted.parameters, "fitted policy")
    found = {}
    for name, changes in {
        "one-step": {"horizon": 1},
        "horizon 4": {"horizon": 4},
        "horizon 8": {},
        "online": {"online": True},
    }.items():
        parameters = asdict(replace(numbers, **changes))  # type: ignore[arg-type]
        found[name] = replay(test, fitted_policy(replace(fitted, parameters=parameters), test.gamma_max, costs), costs)
    blind = fitted_policy(fit_stopping([_unread(train)], [costs]), test.gamma_max, costs)
    found["without the text"] = replay(_unread(test), blind, costs)
    found["least-squares Monte Carlo"] = fit_continuation(train, costs, numbers).replay(test, costs)
    return found


def _unread(trace: Trace) -> Trace:
    """The trace for policies that do not look at what the text has said before."""
    copy = replace(trace)
    read = columns_of(text_view(trace))
    nothing = SuffixColumns(*(np.zeros_like(column) for column in read.suffix))
    copy.derived[DERIVED] = read._replace(suffix=nothing)
    return copy


def _gain(outcome: Replay, train: Trace, test: Trace, costs: CostCurve) -> Row:
    fixed = replay_fixed_all(test, costs)[best_fixed_gamma(train, costs)]
    best = hindsight_optimum(test, costs)
    gain = paired_gain(outcome.committed, outcome.seconds, fixed.committed, fixed.seconds)
    captured = gain.estimate / (best.tokens_per_second / fixed.tokens_per_second - 1)
    return {"gain": gain.estimate, "gain_low": gain.low, "gain_high": gain.high, "captured": captured}


def _moved(runs: Path, small: Path) -> list[Row]:
    """Leave one task, compression or draft size out."""

    def recorded(folder: Path, pair: str) -> list[Recorded]:
        return [Recorded(*read_run(run), pair) for run, _ in select_runs(folder)]

    def fit_on(chosen: Sequence[Recorded]) -> FittedPolicy:
        return fit_stopping([one.trace for one in chosen], [one.costs for one in chosen])

    pairs = [*recorded(runs, "draft"), *recorded(small, "draft-small")]
    own = [one for one in pairs if one.pair == "draft"]
    rows = [
        dict(row)
        for row in (*leave_task_out(own, fit_on), *leave_compression_out(own, fit_on), *leave_pair_out(pairs, fit_on))
    ]
    rows = [{"table": "leave out"} | row for row in rows if row["policy"] in ("left-out", "left-in")]
    for row in rows:
        if row["policy"] == "left-out" and (row["design"] == "task" or row["task"] == "all"):
            _show(row | {"policy": f"without {row['left']}"})
    return rows


def _calibrated(runs: Path, fitted: Path) -> list[Row]:
    """The predicted chance of acceptance on test prompts, beside the draft's own confidence."""
    rows: list[Row] = []
    for run, _ in select_runs(runs):
        trace, costs = read_run(run)
        test = split_trace(trace, TEST)
        policy = fitted_policy(load_fitted(fitted), trace.gamma_max, costs)
        assert isinstance(policy, ThroughputStopping)
        view, base = text_view(test), base_rates(split_trace(trace, TRAIN))
        first = np.full(test.confidence.shape, np.nan)
        first[:, 0] = policy.first_chances(view)
        predictions = {"stopping": policy.acceptance(view), "confidence": test.confidence, "stopping, before": first}
        for positions, among in {
            "all": None,
            "drafted": visited(test, policy, costs),
            "starts": starts(test, policy, costs),
        }.items():
            rows += [
                {"table": "calibration", "positions": positions} | row
                for row in calibration_rows(test, predictions, base, among=among)
            ]
    return rows


def _speeds(runs: Path, fitted: Path) -> list[Row]:
    """Replayed steps a second, of a first replay and of later ones of the same trace, and the time of a decision."""
    rows = []
    run = select_runs(runs)[0][0]
    for name in (str(fitted), "specdec++", "speckv:reading=two", "svip", "fixed:4"):
        firsts, laters = [], []
        for _ in range(TIMED_REPLAYS):
            trace, costs = read_run(run)
            policy = make_policy(name, trace.gamma_max, costs)
            for taken in (firsts, laters):
                begun = time.perf_counter()
                outcome = replay(trace, policy, costs)
                taken.append(outcome.steps.sum() / (time.perf_counter() - begun))
        row = {
            "policy": name,
            "steps_per_second_first": float(np.median(firsts)),
            "steps_per_second": float(np.median(laters)),
        }
        if name == str(fitted):
            row["decision_microseconds"] = 1e6 * float(load_fitted(fitted).parameters["decision_seconds"])
        rows.append(row)
        console.print(row, highlight=False)
    return _named(rows, "speed", fitted)


def _live(runs: Path, fitted: Path, per_task: int, rounds: int) -> list[Row]:
    """Stopping, the best fixed length and no speculation, interleaved live; and replay of the same prompts."""
    rows: list[Row] = []
    for run, _ in select_runs(runs):
        live = bench(
            run, [str(fitted), "none"], baselines=False, rounds=rounds, per_task=per_task, progress=show_progress
        )
        rows += _named(live, "live", fitted)
        trace, costs = read_run(run)
        train, test = split_trace(trace, TRAIN), split_trace(trace, TEST)
        seen: Counter[str] = Counter()
        decoded = []
        for prompt in test.prompts:
            seen[prompt.task] += 1
            decoded.append(seen[prompt.task] <= per_task)
        same = select(test, np.array(decoded))
        outcome = replay(same, make_policy(str(fitted), same.gamma_max, costs), costs)
        for row in rows[-len(live) :]:
            if row["policy"] == "stopping" and row["task"] == "all":
                row["replayed_gain"] = _gain(outcome, train, same, costs)["gain"]
                row["replayed_tokens_per_step"] = outcome.tokens_per_step
                _show(row)
                console.print(f"    replayed on the same prompts: gain {row['replayed_gain']:+.3f}", highlight=False)
    return rows


def _show(row: Row) -> None:
    where = row.get("cost_ratio", row.get("design", ""))
    console.print(
        f"{row.get('table', ''):10} {row.get('compression', ''):5} {where!s:12.12} {row['policy']:28.28} "
        f"gain {row['gain']:+.3f} [{row['gain_low']:+.3f}, {row['gain_high']:+.3f}] "
        f"captured {row.get('captured') or float('nan'):.2f}",
        soft_wrap=True,
        highlight=False,
    )


if __name__ == "__main__":
    main()
