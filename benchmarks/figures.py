"""The tables of the README, computed from recorded runs and results, without a model.

Reads what ``benchmarks/final.py`` left (or a copy of it), writes ``speckv.json`` and puts the tables into the README.
With ``--check`` nothing is written, and any digit that differs is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save

from draftgauge.api.replay import replay as replay_verb
from draftgauge.api.runs import read_run, select_runs
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.fitting.tuning import tune_rivals
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import fitted_policy
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.registry import compared_policies
from draftgauge.replay.evaluate import best_fixed_gamma, task_masks
from draftgauge.replay.simulate import replay
from draftgauge.replay.splits import TRAIN, split_trace
from draftgauge.statistics.paired import gain_resamples, pooled
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

SEALED = "sealed"
KEPT_OUT = 5
"""Each fit leaves out one in so many training prompts, another part with every cost curve."""
STOPPING, FITTED = "stopping", "stopping.json"
GRAM = 4
END = "<!-- end of figures -->"

Row = dict[str, Any]


def main() -> int:
    """Compute, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/results/final"), help="folder of benchmarks/final.py")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for speckv.json")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    rows = judged(args.runs) + spread(args.runs) + repetition(args.runs)
    text = args.readme.read_text(encoding="utf-8")
    written = with_table(text, "choosing", readme_table(rows, _rows(args.runs / "live.json")))
    written = with_table(written, "pair", pair_table(_rows(args.out / "reference-pair.json")))
    if args.check:
        published = _rows(args.out / "speckv.json")
        different = [*differences(rows, published), *(["the tables of the README"] if written != text else [])]
        for line in different[:20]:
            console.print(f"differs: {line}", highlight=False)
        return 1 if different else 0
    save(args.out, "speckv.json", rows)
    args.readme.write_text(written, encoding="utf-8")
    return 0


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def with_table(text: str, name: str, lines: Iterable[str]) -> str:
    """The text with the lines between the two comments that mark a table's place."""
    begin = f"<!-- figures: {name} -->"
    before, found, rest = text.partition(begin)
    assert found, f"the README has no place for the table {name!r}"
    return "\n".join([before + begin, *lines, END + rest.partition(END)[2]])


def pair_table(rows: Sequence[Row]) -> Iterator[str]:
    """What the target's greedy answers on test prompts are like, a line for each task."""
    yield "| task | right | distinct 4-grams | `draft` accepted at depth 1 |"
    yield "|---|---:|---:|---:|"
    for row in (row for row in rows if "right" in row):
        yield (
            f"| {row['task']} | {row['right']:.0%} | {row['distinct_4grams']:.2f} | {row['acceptance_depth_1']:.2f} |"
        )


def judged(folder: Path) -> list[Row]:
    """Every policy of the field at its defaults and tuned, and stopping, on the sealed prompts, task by task."""
    rows: list[Row] = []
    for run, _ in select_runs(folder / "runs"):
        arms = (str(folder / FITTED), *compared_policies())
        rows += replay_verb(run, policies=tuple(dict.fromkeys(arms)), split=SEALED, tune=True)
    for row in rows:
        row["policy"] = STOPPING if row["policy"].endswith(FITTED) else row["policy"]
    return [{"table": "replay"} | row for row in rows]


def curves_of(run: Path) -> list[CostCurve]:
    """All cost curves that were measured of a run, the one that recording measured first."""
    _, first = read_run(run)
    return [first, *(CostCurve.load(path) for path in sorted(run.glob("costs-*.json")))]


def spread(folder: Path) -> list[Row]:
    """Gains of stopping with intervals over prompts, cost curves and fits together.

    Everything is fitted, tuned and chosen with one cost curve and judged with another one of the same pair.
    """
    runs = [run for run, _ in select_runs(folder / "runs")]
    traces = [read_run(run)[0] for run in runs]
    curves = [curves_of(run) for run in runs]
    count = min(len(each) for each in curves)
    rows: list[Row] = []
    for number, trace in enumerate(traces):
        parts: dict[tuple[str, str], list[tuple[float, np.ndarray]]] = {}
        test = split_trace(trace, SEALED)
        for fit_with, judge_with in product(range(count), repeat=2):
            if fit_with == judge_with and count > 1:
                continue
            arms = _arms(traces, [each[fit_with] for each in curves], number, fit_with)
            outcomes = {name: replay(test, policy, curves[number][judge_with]) for name, policy in arms.items()}
            ours = outcomes[STOPPING]
            for (task, mask), base in product(task_masks(test), ("best fixed", "best tuned rival")):
                other = outcomes[base]
                resampled = gain_resamples(
                    ours.committed[mask], ours.seconds[mask], other.committed[mask], other.seconds[mask], seed=number
                )
                parts.setdefault((task, base), []).append(resampled)
        for (task, base), resampled in parts.items():
            gain = pooled(resampled)
            key = {
                "table": "spread",
                "policy": STOPPING,
                "compression": trace.compression,
                "split": SEALED,
                "task": task,
            }
            rows.append(
                key
                | {"over": base, "gain": gain.estimate, "gain_low": gain.low, "gain_high": gain.high}
                | {"repetitions": len(resampled), "tuned": True}
            )
    return rows


def _arms(traces: Sequence[Trace], curves: Sequence[CostCurve], number: int, turn: int) -> dict[str, Policy]:
    """Stopping, the best fixed length and the best tuned rival, all chosen on most of the training prompts."""
    train = [_without_a_part(split_trace(trace, TRAIN), turn) for trace in traces]
    own, costs = train[number], curves[number]
    rivals = tune_rivals(own, costs)
    return {
        STOPPING: fitted_policy(fit_stopping(train, list(curves)), own.gamma_max, costs),
        "best fixed": FixedLength(best_fixed_gamma(own, costs)),
        "best tuned rival": rivals.arms[rivals.best],
    }


def _without_a_part(trace: Trace, turn: int) -> Trace:
    return select(trace, np.arange(len(trace.prompts)) % KEPT_OUT != turn % KEPT_OUT)


def repetition(folder: Path) -> list[Row]:
    """Share of different 4-grams within the outputs, by task."""
    rows = []
    for run, _ in select_runs(folder / "runs"):
        test = split_trace(read_run(run)[0], SEALED)
        for task, mask in task_masks(test):
            counts = [_distinct(output) for output, chosen in zip(_outputs(test), mask, strict=True) if chosen]
            share = sum(part for part, _ in counts) / sum(whole for _, whole in counts)
            rows.append(
                {"table": "repetition", "compression": test.compression, "split": SEALED, "task": task}
                | {"distinct_4grams": share}
            )
    return rows


def _outputs(trace: Trace) -> Iterator[list[int]]:
    for first, end in zip(trace.offsets[:-1], trace.offsets[1:], strict=True):
        yield trace.token[first:end].tolist()


def _distinct(tokens: Sequence[int]) -> tuple[int, int]:
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return len(set(grams)), len(grams)


def readme_table(rows: Sequence[Row], live: Sequence[Row]) -> Iterator[str]:
    """The README's table: a line for each compression and task."""
    yield "| target | task | distinct 4-grams | best fixed | stopping over it | over the best tuned rule | it | live |"
    yield "|---|---|---:|---:|---:|---:|---|---:|"
    for own in (row for row in rows if row["table"] == "replay" and row["policy"] == STOPPING):
        key = {"compression": own["compression"], "task": own["task"]}
        over = {row["over"]: row for row in _matching(rows, key | {"table": "spread"})}
        repeated = next(_matching(rows, key | {"table": "repetition"}))["distinct_4grams"]
        measured = next(_matching(live, key | {"policy": STOPPING}), None)
        yield (
            f"| {own['compression']} | {own['task']} | {repeated:.2f} | {own['best_fixed_gamma']} "
            f"| {_gain(over['best fixed'])} | {_gain(over['best tuned rival'])} | `{own['best_rival']}` "
            f"| {_gain(measured) if measured and 'gain' in measured else ''} |"
        )


def _matching(rows: Sequence[Row], key: Mapping[str, Any]) -> Iterator[Row]:
    return (row for row in rows if all(row.get(name) == value for name, value in key.items()))


def _gain(row: Mapping[str, Any]) -> str:
    return f"{100 * row['gain']:+.1f}% [{100 * row['gain_low']:.1f}, {100 * row['gain_high']:.1f}]"


def differences(rows: Sequence[Row], published: Sequence[Row], tolerance: float = 1e-6) -> Iterator[str]:
    """Where recomputed rows differ from published ones by more than rounding."""
    if len(rows) != len(published):
        yield f"{len(rows)} rows instead of {len(published)}"
    for row, known in zip(rows, published, strict=False):
        for name, value in known.items():
            new = row.get(name)
            both = isinstance(value, float) and isinstance(new, float)
            if not (abs(new - value) <= tolerance if both else new == value):
                where = [str(known.get(each)) for each in ("table", "policy", "compression", "task")]
                yield f"{' '.join(where)}, {name}: {new} instead of {value}"


if __name__ == "__main__":
    sys.exit(main())
