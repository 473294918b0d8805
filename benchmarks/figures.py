"""The tables of the README and of pages in docs, computed from recorded runs and results, without a model.

Reads what ``benchmarks/final.py`` left (or a copy of it), writes ``speckv.json`` and puts the tables into the README.
With ``--check`` nothing is written, and any digit that differs is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save
from curves import mean_curve
from final_files import (
    COMPRESSIONS,
    FITTED,
    RUNS,
    curve_file,
    curves_of,
    decoded_with,
    finished,
    fitted_file,
    later_curve_file,
    live_file,
    runs_of,
    sittings_of,
)
from readme_tables import (
    FIXED,
    RIVAL,
    choosing_live_table,
    choosing_summary,
    choosing_table,
    curves_table,
    depths_table,
    designs_table,
    estimates_table,
    norms_table,
    pair_table,
    remedies_table,
    rows_table,
    sources_table,
    starts_table,
    states_table,
    with_table,
)

from draftgauge.api.arms import PLAIN
from draftgauge.api.replay import replay as replay_verb
from draftgauge.api.runs import read_run
from draftgauge.core.prompts import in_turn
from draftgauge.core.provenance import read_measurement
from draftgauge.fitting.registry import fit_policy
from draftgauge.fitting.tuning import tune_rivals
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import fitted_policy, load_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.registry import compared_policies, make_policy, tunable_policies
from draftgauge.replaying.evaluate import NOTHING, best_fixed_gamma, task_masks
from draftgauge.replaying.simulate import replay
from draftgauge.replaying.splits import TRAIN, split_trace
from draftgauge.statistics.paired import gain_resamples, paired_gain, pooled
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.repetition import distinct_ratio, prompt_gram_counts
from draftgauge.traces.trace import Trace

SEALED = "sealed"
KEPT_OUT = 5
"""Each fit leaves out one in so many training prompts, another part with every cost curve."""

OTHERS = ("reference-pair.json", "kvshot-quick.json")  # whose rows stand in tables of the README

DRAFTERS = {
    "norms": ("norms.json", norms_table),
    "starts": ("starts.json", starts_table),
    "estimates": ("query-estimates.json", estimates_table),
    "depths": ("kvshot-depth.json", depths_table),
    "remedies": ("kvshot-full.json", remedies_table),
    "rows": ("kvshot-full.json", rows_table),
    "widths": ("kvshot-width.json", rows_table),
}
"""Tables of docs/drafters.md: the file of the rows of each, and what makes lines of them."""

SOURCES = "two-sources.json"  # of the tables of docs/two-sources.md
STATES = "target-states.json"  # of the table of docs/stopping.md

KEY = ("table", "policy", "compression", "split", "task", "tuned")
GAIN = ("gain", "gain_low", "gain_high")
COLUMNS = {
    "replay": (
        *(*KEY, "tokens_per_step", "tokens_per_second", "ratio_to_plain", "best_fixed_gamma", *GAIN, "best_rival"),
        *("gain_over_rival", "gain_over_rival_low", "gain_over_rival_high", "distinct_4grams"),
    ),
    "live": (
        *(*KEY, "sitting", "over", "prompts", "distinct_4grams", "tokens_per_second", "ratio_to_plain", *GAIN),
        *("replayed_gain", "replayed_tokens_per_step", "other_cores", "steal"),
    ),
}
"""What is published of the rows of a table; of others all columns are."""

Row = dict[str, Any]
Published = Mapping[str, Any]


def main() -> int:
    """Compute, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("docs/results/final"), help="folder of benchmarks/final.py")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for speckv.json")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--drafters", type=Path, default=Path("docs/drafters.md"))
    parser.add_argument("--sources", type=Path, default=Path("docs/two-sources.md"))
    parser.add_argument("--stopping", type=Path, default=Path("docs/stopping.md"))
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    rows = published(judged(args.runs) + spread(args.runs) + repetition(args.runs) + live(args.runs))
    pages = {
        args.readme: with_tables(_text(args.readme), rows, *(_rows(args.out, name) for name in OTHERS)),
        args.drafters: with_drafter_tables(_text(args.drafters), drafter_rows(args.out)),
        args.sources: with_source_tables(_text(args.sources), _rows(args.out, SOURCES)),
        args.stopping: with_table(_text(args.stopping), "states", states_table(_rows(args.out, STATES))),
    }
    if args.check:
        different = [*differences(rows, _rows(args.out, "speckv.json"))]
        different += [f"the tables of {page}" for page, written in pages.items() if written != _text(page)]
        for line in different[:20]:
            console.print(f"differs: {line}", highlight=False)
        return 1 if different else 0
    save(args.out, "speckv.json", rows)
    for page, written in pages.items():
        page.write_text(written, encoding="utf-8")
    return 0


def published(rows: Sequence[Row]) -> list[Row]:
    """The rows and columns that the published file holds, figures to six digits."""
    return [
        {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in row.items()
            if name in COLUMNS.get(row["table"], row)
        }
        for row in rows
        if not (row["table"] == "live" and row["policy"] in (PLAIN, NOTHING))
    ]


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _rows(results: Path, name: str) -> Sequence[Published]:
    return read_measurement(results / name).rows


def with_tables(text: str, rows: Sequence[Row], pair: Sequence[Published], designs: Sequence[Published]) -> str:
    """The README with its tables computed from the rows of ``speckv.json`` and of the files of ``OTHERS``."""
    tables = {"choosing summary": choosing_summary(rows), "choosing": choosing_table(rows)}
    tables |= {"choosing live": choosing_live_table(rows)}
    tables |= {"pair": pair_table(pair), "designs": designs_table(designs)}
    for name, lines in tables.items():
        text = with_table(text, name, lines)
    return text


def with_source_tables(text: str, rows: Sequence[Published]) -> str:
    """The page on two sources with its tables computed from the rows of ``SOURCES``."""
    for name, lines in {"sources": sources_table(rows), "curves": curves_table(rows)}.items():
        text = with_table(text, name, lines)
    return text


def drafter_rows(results: Path) -> dict[str, list[Published]]:
    """The published rows of every table of the page on drafters."""
    return {table: [*read_measurement(results / name).rows] for table, (name, _) in DRAFTERS.items()}


def with_drafter_tables(text: str, rows: Mapping[str, Sequence[Published]]) -> str:
    """The page on drafters with its tables computed from published rows."""
    for table, (_, lines) in DRAFTERS.items():
        text = with_table(text, table, lines(rows[table]))
    return text


def judged(folder: Path, compressions: Sequence[str] = COMPRESSIONS) -> list[Row]:
    """Every policy of the field at its defaults and tuned, and those of draftgauge, bundled and fitted, on the sealed
    prompts.
    """
    rows: list[Row] = []
    names = {str(fitted_file(folder, policy)): policy for policy in FITTED}
    arms = (*names, *dict.fromkeys([*compared_policies(), *tunable_policies()]))
    for compression in compressions:
        rows += replay_verb(folder / RUNS / compression, policies=arms, split=SEALED, tune=True)
    for row in rows:
        if row["policy"] in names:  # fitted on the training prompts, with this cost curve among others
            row |= {"policy": names[row["policy"]], "tuned": True}
    return [{"table": "replay"} | row for row in rows]


def spread(folder: Path) -> list[Row]:
    """Gains of the fitted policies with intervals over prompts, cost curves and fits together.

    Everything is fitted, tuned and chosen with one cost curve and judged with another one of the same pair.
    """
    runs = runs_of(folder)
    traces = [read_run(run)[0] for run in runs]
    curves = [curves_of(folder, run) for run in runs]
    count = min(len(each) for each in curves)
    tests = [split_trace(trace, SEALED) for trace in traces]
    parts: dict[tuple[str, str, str, str], list[tuple[float, np.ndarray]]] = {}
    for fit_with in range(count):
        arms = _arms(traces, [each[fit_with] for each in curves], fit_with)
        for judge_with in [turn for turn in range(count) if turn != fit_with] or [fit_with]:
            for number, test in enumerate(tests):
                for key, gain in _gains(test, arms[number], curves[number][judge_with], number):
                    parts.setdefault((test.compression, *key), []).append(gain)
    return [_spread_row(key, repetitions) for key, repetitions in parts.items()]


def _gains(test: Trace, arms: Mapping[str, Policy], costs: CostCurve, seed: int) -> Iterator[tuple[Any, Any]]:
    """Gains of the fitted policies, resampled by prompt, for each of them, each task and what it is compared with."""
    outcomes = {name: replay(test, policy, costs) for name, policy in arms.items()}
    for name, (task, mask), over in product(FITTED, task_masks(test), (FIXED, RIVAL)):
        ours, other = outcomes[name], outcomes[over]
        timed = (ours.committed[mask], ours.seconds[mask], other.committed[mask], other.seconds[mask])
        yield (name, task, over), gain_resamples(*timed, seed=seed)


def _spread_row(key: tuple[str, str, str, str], repetitions: Sequence[tuple[float, np.ndarray]]) -> Row:
    compression, policy, task, over = key
    gain = pooled(repetitions)
    return {
        "table": "spread",
        "policy": policy,
        "compression": compression,
        "split": SEALED,
        "task": task,
        "tuned": True,
        "over": over,
        "gain": gain.estimate,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "repetitions": len(repetitions),
    }


def _arms(traces: Sequence[Trace], curves: Sequence[CostCurve], turn: int) -> list[dict[str, Policy]]:
    """Of each trace: the fitted policies, the best fixed length and the best tuned rival, all chosen on most training
    prompts.
    """
    train = [_without_a_part(split_trace(trace, TRAIN), turn) for trace in traces]
    fitted = {name: fit_policy(name, train, list(curves)) for name in FITTED}
    arms = []
    for own, costs in zip(train, curves, strict=True):
        rivals = tune_rivals(own, costs)
        arms.append(
            {
                **{name: fitted_policy(each, own.gamma_max, costs) for name, each in fitted.items()},
                FIXED: FixedLength(best_fixed_gamma(own, costs)),
                RIVAL: rivals.arms[rivals.best],
            }
        )
    return arms


def _without_a_part(trace: Trace, turn: int) -> Trace:
    return select(trace, np.arange(len(trace.prompts)) % KEPT_OUT != turn % KEPT_OUT)


def live(folder: Path) -> list[Row]:
    """What every finished sitting measured, with what else the machine did meanwhile, and what replay says of the same
    prompts. Fitted policies that a sitting keeps of its own are of an earlier rule and left out.
    """
    rows: list[Row] = []
    for sitting in filter(finished, sittings_of(folder)):
        for compression in COMPRESSIONS:
            measured = read_measurement(live_file(sitting, compression))
            load = measured.environment["load"] or {}
            busy = {name: load.get(name, 0.0) for name in ("load_average", "other_cores", "steal")}
            key = {"table": "live", "sitting": sitting.name, "split": SEALED}
            replayed = _replayed(folder, sitting, compression, measured.rows)
            present = [row for row in measured.rows if not fitted_file(sitting, row["policy"]).exists()]
            rows += [key | dict(row) | busy | replayed.get((row["policy"], row["task"]), {}) for row in present]
    return rows


@cache
def _decoded_live(run: Path, count: int) -> Trace:
    """A run's sealed prompts, as many as a sitting decoded; most sittings decoded the same."""
    test = split_trace(read_run(run)[0], SEALED)
    decoded = {prompt.index for prompt in in_turn(test.prompts)[:count]}
    return select(test, [prompt.index in decoded for prompt in test.prompts])


def _replayed(
    folder: Path, sitting: Path, compression: str, rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], Row]:
    """By policy and task, the prompts that a sitting decoded live, replayed with the cost curves that it measured."""
    run, measured = folder / RUNS / compression, curve_file(sitting, compression)
    if not (run.exists() and measured.exists()):
        return {}
    part = _decoded_live(run, max(row["prompts"] for row in rows))
    weighed = CostCurve.load(measured)
    later = later_curve_file(sitting, compression)
    costs = mean_curve([weighed, CostCurve.load(later)]) if later.exists() else weighed
    fitted, longest = {name: load_fitted(decoded_with(folder, sitting, name)) for name in FITTED}, part.gamma_max
    outcomes = {
        name: replay(
            part,
            fitted_policy(fitted[name], longest, weighed) if name in fitted else make_policy(name, longest, weighed),
            costs,
        )
        for name in {row["policy"] for row in rows} - {PLAIN}
    }
    base = outcomes[rows[0]["over"]]
    return {
        (name, task): {
            "replayed_gain": paired_gain(
                *(outcome.committed[mask], outcome.seconds[mask]), *(base.committed[mask], base.seconds[mask])
            ).estimate,
            "replayed_tokens_per_step": float(outcome.committed[mask].sum() / outcome.steps[mask].sum()),
        }
        for name, outcome in outcomes.items()
        for task, mask in task_masks(part)
    }


def repetition(folder: Path) -> list[Row]:
    """Share of different 4-grams within the outputs, by task."""
    rows = []
    for run in runs_of(folder):
        test = split_trace(read_run(run)[0], SEALED)
        counts = prompt_gram_counts(test)
        for task, mask in task_masks(test):
            share = distinct_ratio(counts[mask])
            rows.append(
                {"table": "repetition", "compression": test.compression, "split": SEALED, "task": task}
                | {"distinct_4grams": share}
            )
    return rows


def differences(rows: Sequence[Row], wanted: Sequence[Mapping[str, Any]], tolerance: float = 1e-4) -> Iterator[str]:
    """Where recomputed rows differ from published ones by more than rounding."""
    if len(rows) != len(wanted):
        yield f"{len(rows)} rows instead of {len(wanted)}"
    for row, expected in zip(rows, wanted, strict=False):
        for name, value in expected.items():
            new = row.get(name)
            both = isinstance(value, float) and isinstance(new, float)
            if not (isclose(new, value, rel_tol=tolerance, abs_tol=1e-6) if both else new == value):
                where = [str(expected.get(each)) for each in ("table", "policy", "compression", "task")]
                yield f"{' '.join(where)}, {name}: {new} instead of {value}"


if __name__ == "__main__":
    sys.exit(main())
