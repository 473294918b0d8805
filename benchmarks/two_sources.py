"""Two sources in one draft: what the model, the text and both gain, replayed and live, and where they do not.

Fits ``stopping`` and ``two-source`` on the training prompts of ``--runs`` and tunes the rules of lookup on them. Every
table says how much the outputs repeat themselves: the share of distinct 4-grams, the prompts whose outputs are over 80%
distinct, and all outputs cut at their first repeated 8-gram; and thirds of prompts by how often the draft is right. It
does so on the other prompts of ``--runs`` and on those of ``--prompts``, which it records, at three cost curves, and
decodes some of the prompts live between two new cost curves.

Every part is kept in ``--work`` when it is finished, so that what was interrupted goes on when it is run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save, show_progress
from curves import mean_curve
from two_sources_rows import (
    BOTH,
    STOPPING,
    Fitted,
    Row,
    curves_of,
    live_rows,
    published,
    replay_rows,
    subsets,
    verdicts,
)

from draftgauge.api.arms import BenchPrompt, bench_arms, plain_arm, policy_arm
from draftgauge.api.costs import pair_costs
from draftgauge.api.fit import fit
from draftgauge.api.profile import profile
from draftgauge.api.recorded import load_pair_of
from draftgauge.api.requests import CostSpec
from draftgauge.api.runs import read_run, select_runs
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text
from draftgauge.core.prompts import TRAIN, VALIDATION, in_turn
from draftgauge.core.seeds import generator
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.policies.fitted import load_fitted
from draftgauge.replaying.simulate import replay
from draftgauge.replaying.splits import names_splits, split_trace
from draftgauge.traces.build import select
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

SEALED, OTHER = "sealed", "other"
LEAST_LIVE = 20.0
"""Seconds of live decoding of each set of prompts, however long the rest took."""


def main() -> int:
    """Fit, tune, record, replay, decode, and write ``two-sources.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument("--work", type=Path, default=Path("build/two-sources"), help="folder for finished parts")
    parser.add_argument(
        "--runs", type=Path, default=Path("docs/results/final/runs"), help="recorded training and sealed prompts"
    )
    parser.add_argument("--compression", default="none", help="which of the runs")
    parser.add_argument(
        "--prompts", type=Path, default=Path("../shared/prompts"), help="other prompts, left out if absent"
    )
    parser.add_argument("--per-task", type=int, default=8, help="how many of those to record, of each task")
    parser.add_argument("--minutes", type=float, default=12.0, help="for everything; live decoding takes what is left")
    parser.add_argument("--rounds", type=int, default=2, help="how often each prompt is decoded live at most")
    parser.add_argument("--curve-seconds", type=float, default=15.0, help="for each new cost curve")
    parser.add_argument("--fresh", action="store_true", help="forget finished parts")
    args = parser.parse_args()
    if args.fresh:
        shutil.rmtree(args.work, ignore_errors=True)
    try:
        rows = _rows(args, time.monotonic() + 60 * args.minutes)
    except DraftgaugeError as error:
        console.print(f"error: {error}", highlight=False)
        return 2
    for row in rows:
        if row.get("task") == "all" and row["policy"] in (STOPPING, BOTH) and "gain" in row:
            _show(row)
    judged = list(verdicts(rows))
    for row in judged:
        reached = "reached" if row["value"] >= row["least"] else "MISSED"
        console.print(
            f"{row['prompts_of']:7} {row['subset']:34} {row['task']:14} {row['what']}: {row['value']:+.1%}"
            f"{_interval(row)}, at least {row['least']:+.0%}: {reached}",
            highlight=False,
        )
    save(args.out, "two-sources.json", list(published([*rows, *judged])))
    return 0


def _rows(args: argparse.Namespace, until: float) -> list[Row]:
    """All parts, from the work folder where they are finished."""
    run, manifest = _run(args.runs, args.compression)
    _check_work(args.work, manifest)
    trace, costs = read_run(run)
    fitted = _fitted(args.work, run, split_trace(trace, TRAIN))
    sets, rows = {SEALED: run}, []
    if args.prompts.exists():
        sets[OTHER] = _recorded(args, manifest)
    else:
        console.print(f"{args.prompts} is not there: other prompts are left out", highlight=False)
        rows.append({"table": "left out", "prompts_of": OTHER, "policy": "", "why": "the prompts are not there"})
    curves = curves_of(costs)
    tuned = {name: _part(args.work, f"tuned {name}", lambda c=curve: fitted.tuned(c)) for name, curve in curves.items()}
    for name, folder in sets.items():
        for subset, part in subsets(_evaluated(read_run(folder)[0])):
            rows += _part(
                args.work,
                f"replay {name} {subset}",
                lambda n=name, s=subset, p=part: [
                    {"prompts_of": n, "curve": curve, "subset": s} | row
                    for curve, given in curves.items()
                    for row in replay_rows(p, given, fitted, tuned[curve])
                ],
            )
    for turn, (name, folder) in enumerate(sets.items()):
        seconds = max(LEAST_LIVE, (until - time.monotonic()) / (len(sets) - turn))
        rows += _part(
            args.work,
            f"live {name}",
            lambda f=folder, n=name, s=seconds: [
                {"prompts_of": n} | row for row in _live(f, fitted, tuned["measured"], args, s)
            ],
        )
    return rows


def _run(folder: Path, compression: str) -> tuple[Path, Manifest]:
    for run, manifest in select_runs(folder):
        if manifest.target.compression == compression:
            return run, manifest
    raise DraftgaugeError(f"{folder} holds no run of a target compressed as {compression!r}")


def _check_work(work: Path, manifest: Manifest) -> None:
    """Refuse finished parts of another pair or other prompts."""
    assert manifest.draft is not None
    identity = [manifest.target.fingerprint, manifest.draft.fingerprint, manifest.prompts.sha256]
    if _part(work, "of", lambda: identity) != identity:
        raise DraftgaugeError(f"{work} holds parts of another pair or of other prompts: run with --fresh")


def _part(work: Path, name: str, compute: Callable[[], Any]) -> Any:
    """A finished part, or computed now and kept."""
    path = work / f"{name.replace(' ', '-').replace('%', '')}.json"
    if not path.exists():
        begun = time.monotonic()
        result = compute()
        work.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, json.dumps(result) + "\n")
        console.print(f"{name}: {time.monotonic() - begun:.0f} s", highlight=False)
    return json.loads(path.read_text(encoding="utf-8"))


def _fitted(work: Path, run: Path, train: Trace) -> Fitted:
    """Both policies, fitted on the training prompts."""
    files = {name: work / f"{name}-fitted.json" for name in (STOPPING, BOTH)}
    for name, path in files.items():
        if not path.exists():
            begun = time.monotonic()
            fit(run, policy=name, out=path)
            console.print(f"fit {name}: {time.monotonic() - begun:.0f} s", highlight=False)
    return Fitted(train, load_fitted(files[STOPPING]), load_fitted(files[BOTH]))


def _recorded(args: argparse.Namespace, manifest: Manifest) -> Path:
    """A run of the other prompts with the same pair; recording goes on where it was stopped."""
    folder = args.work / OTHER
    profile(
        out=folder,
        prompts=args.prompts,
        per_task=args.per_task,
        compression=(args.compression,),
        max_new_tokens=manifest.max_new_tokens,
        gamma_max=manifest.gamma_max,
        cost_seconds=args.curve_seconds,
        progress=show_progress,
    )
    return folder


def _evaluated(trace: Trace) -> Trace:
    """The prompts that are not for fitting."""
    if not names_splits(trace):
        return trace
    return select(trace, [prompt.split not in (TRAIN, VALIDATION) for prompt in trace.prompts])


def _live(
    run: Path, fitted: Fitted, specs: Mapping[str, str], args: argparse.Namespace, seconds: float
) -> Iterable[Row]:
    """Some prompts live, interleaved, between two cost curves; beside what replay says of the same prompts."""
    until = time.monotonic() + seconds - args.curve_seconds
    manifest, trace = Manifest.load(run), _evaluated(read_run(run)[0])
    pair = load_pair_of(manifest)
    settings = DecodingSettings(max_new_tokens=manifest.max_new_tokens, end_tokens=pair.end_tokens)
    measure = CostSpec(measure=True, cost_seconds=args.curve_seconds)
    before = pair_costs(pair, measure, trace.gamma_max, progress=show_progress)
    policies = fitted.arms(specs, before)
    arms = [plain_arm(pair, settings), *(policy_arm(pair, name, each, settings) for name, each in policies.items())]
    order = in_turn(trace.prompts)
    prompts = [BenchPrompt(list(prompt.prompt_token), prompt.task) for prompt in order]
    rng = generator(0, "two sources", manifest.target.compression)
    decoded = bench_arms(
        arms,
        prompts,
        args.rounds,
        rng,
        lambda done, total: show_progress("live", done, total),
        max(until, time.monotonic()),
    )
    after = pair_costs(pair, measure, trace.gamma_max, progress=show_progress)
    costs = mean_curve([before, after])
    rows = {prompt.index: row for row, prompt in enumerate(trace.prompts)}
    replays = {name: replay(trace, each, costs) for name, each in policies.items()}
    return live_rows(arms, prompts[:decoded], replays, np.array([rows[prompt.index] for prompt in order[:decoded]]))


def _interval(row: Row) -> str:
    return f" [{row['low']:+.1%}, {row['high']:+.1%}]" if "low" in row else ""


def _show(row: Row) -> None:
    console.print(
        f"{row['prompts_of']:7} {row['table']:7} {row.get('curve', ''):36} {row['subset']:34} {row['policy']:11} "
        f"distinct {row['distinct_4grams']:.2f}  over fixed {row['gain']:+.1%}  over stopping "
        f"{row['gain_over_rival']:+.1%} [{row['gain_over_rival_low']:+.1%}, {row['gain_over_rival_high']:+.1%}]",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
