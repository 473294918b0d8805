"""The final benchmark: the bundled pair on its sealed prompts, which nothing else reads.

Records the training and the sealed prompts at three compressions, measures their costs, fits throughput-optimal
stopping and the rule of two sources on the training prompts, and decodes the sealed prompts live. What it leaves in its
folder is all that ``benchmarks/figures.py`` needs to compute the tables of the README, without a model.

What was interrupted goes on when it is run again. Run when all is there, it begins another *sitting*: new cost curves
and new live measurements of the same recorded runs. The README shows how far sittings lie apart, so let hours pass.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from common import console, save, show_progress
from final_files import (
    COMPRESSIONS,
    FITTED,
    RUNS,
    SITTINGS,
    curve_file,
    finished,
    fitted_file,
    later_curve_file,
    live_file,
    runs_of,
    sittings_of,
)

from draftgauge.api.bench import bench
from draftgauge.api.costs import pair_costs
from draftgauge.api.fit import fit
from draftgauge.api.pair import load_pair
from draftgauge.api.profile import profile
from draftgauge.api.requests import CostSpec, PairSpec
from draftgauge.api.runs import read_run
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import TRAIN, prompts_sha256
from draftgauge.fitting.tuning import tune_rivals
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.splits import split_trace
from draftgauge.traces.manifest import MANIFEST_NAME, Manifest

SEALED = PAIR_FOLDER / "sealed.jsonl"
LEAST_LIVE = 20.0  # seconds of live decoding at each compression, however long the recording took
MARGIN = 10.0  # seconds for loading models and choosing rivals, at each compression


def main() -> int:
    """Record, fit and sit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/final"), help="folder for runs and results")
    parser.add_argument("--work", type=Path, default=Path("build/final"), help="folder to record in; may be deleted")
    parser.add_argument("--minutes", type=float, default=12.0, help="for everything; recording comes first and whole")
    parser.add_argument("--curve-seconds", type=float, default=15.0, help="for each cost curve")
    parser.add_argument("--per-task", type=int, help="sealed prompts of each task to decode live at most")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is decoded live at most")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--fresh", action="store_true", help="forget everything that was recorded and measured before")
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    if args.fresh:
        for folder in (args.work, args.out):
            shutil.rmtree(folder, ignore_errors=True)
    try:
        if not _recorded(args.out, _prompts(args.work)):
            _record(args)
        for policy in FITTED:
            if not fitted_file(args.out, policy).exists():
                fit(args.out / RUNS, policy=policy, out=fitted_file(args.out, policy))
        sitting = _sitting(args.out)
        console.print(f"sitting {sitting.name}", highlight=False)
        for number, compression in enumerate(COMPRESSIONS):
            if not live_file(sitting, compression).exists():
                _sit(args, sitting, compression, _seconds_for(args, COMPRESSIONS[number:], until))
    except DraftgaugeError as error:
        console.print(f"error: {error}", highlight=False)
        return 2
    return 0


def _prompts(work: Path) -> Path:
    """A folder with the training and the sealed prompts."""
    prompts = work / "prompts"
    prompts.mkdir(parents=True, exist_ok=True)
    for path in (PAIR_FOLDER / "prompts" / "train.jsonl", SEALED):
        shutil.copy(path, prompts)
    return prompts


def _recorded(out: Path, prompts: Path) -> bool:
    """Whether all runs are there, and of this pair and these prompts.

    Raises:
        DraftgaugeError: if they are of others.
    """
    manifests = [Manifest.load(run) for run in runs_of(out) if (run / MANIFEST_NAME).exists()]
    if not manifests:
        return False
    fingerprints = load_pair(PairSpec()).fingerprints()
    digest = prompts_sha256(prompts)
    for manifest in manifests:
        assert manifest.draft is not None
        models = {"target": manifest.target.fingerprint, "draft": manifest.draft.fingerprint}
        if models != {role: fingerprints[role] for role in models} or manifest.prompts.sha256 != digest:
            raise DraftgaugeError(f"{out} was recorded with another pair or other prompts: run with --fresh")
    return len(manifests) == len(COMPRESSIONS)


def _record(args: argparse.Namespace) -> None:
    """Record all prompts, then keep each run beside the results."""
    profile(
        out=args.work / RUNS,
        prompts=args.work / "prompts",
        compression=COMPRESSIONS,
        max_new_tokens=args.max_new_tokens,
        cost_seconds=args.curve_seconds,
        progress=show_progress,
    )
    for run in runs_of(args.out):
        shutil.copytree(args.work / RUNS / run.name, run, dirs_exist_ok=True)


def _sitting(out: Path) -> Path:
    """The sitting to go on with, or a new one."""
    last = next(reversed(sittings_of(out)), None)
    if last is not None and not finished(last):
        return last
    new = out / SITTINGS / datetime.now(UTC).strftime("%Y-%m-%dT%H%MZ")
    new.mkdir(parents=True, exist_ok=True)
    return new


def _seconds_for(args: argparse.Namespace, ahead: tuple[str, ...], until: float) -> float:
    """Seconds of live decoding at the first of the compressions ahead: what is left, shared as decoding takes."""
    plain = [float(np.mean(read_run(args.out / RUNS / compression)[1].plain)) for compression in ahead]
    left = until - time.monotonic() - len(ahead) * (2 * args.curve_seconds + MARGIN)
    return max(LEAST_LIVE, left * plain[0] / sum(plain))


def _sit(args: argparse.Namespace, sitting: Path, compression: str, seconds: float) -> None:
    """Live measurements at one compression between two new cost curves, as the machine's speed drifts.

    What is decoded is chosen on the training prompts with the first cost curve of all, as in replay.
    """
    run = args.out / RUNS / compression
    trace, costs = read_run(run)
    train = split_trace(trace, TRAIN)
    gamma, rival = best_fixed_gamma(train, costs), tune_rivals(train, costs).best
    fixed = f"fixed:{gamma}" if gamma else "none"
    pair = load_pair(PairSpec(compression=(compression,)))
    asked = CostSpec(measure=True, cost_seconds=args.curve_seconds)
    curve = pair_costs(pair, asked, trace.gamma_max, progress=show_progress)
    curve.save(curve_file(sitting, compression))
    names = {str(fitted_file(args.out, policy)): policy for policy in FITTED}
    rows = bench(
        pair,  # the copy that the costs are measured with: another can be 10% faster or slower at drafting
        policies=tuple(dict.fromkeys((*names, fixed, rival, "none"))),
        over=fixed,
        prompts=SEALED,
        per_task=args.per_task,
        max_new_tokens=args.max_new_tokens,
        gamma_max=trace.gamma_max,
        rounds=args.rounds,
        seconds=seconds,
        baselines=False,
        progress=show_progress,
    )
    later = pair_costs(pair, asked, trace.gamma_max, progress=show_progress)
    later.save(later_curve_file(sitting, compression))
    tuned = {**names, fixed: fixed, rival: rival}
    named = [row | {"policy": tuned.get(row["policy"], row["policy"]), "tuned": row["policy"] in tuned} for row in rows]
    save(sitting, live_file(sitting, compression).name, named)


if __name__ == "__main__":
    sys.exit(main())
