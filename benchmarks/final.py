"""The final benchmark: the bundled pair on its sealed prompts, which nothing else reads.

Records the training and the sealed prompts at three compressions, measures several cost curves of each, fits
throughput-optimal stopping on the training prompts, and decodes sealed prompts live. What it leaves in its folder is
all that ``benchmarks/figures.py`` needs to compute the tables of the README, without a model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from common import console, save, show_progress

from draftgauge.api.bench import bench
from draftgauge.api.costs import pair_costs
from draftgauge.api.fit import fit
from draftgauge.api.pair import load_pair
from draftgauge.api.profile import profile
from draftgauge.api.requests import CostSpec, PairSpec
from draftgauge.api.runs import read_run, select_runs
from draftgauge.fitting.tuning import tune_rivals
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.replay.evaluate import best_fixed_gamma
from draftgauge.replay.splits import TRAIN, split_trace

COMPRESSIONS = ("none", "int8", "nf4")
SEALED = PAIR_FOLDER / "sealed.jsonl"
FITTED = "stopping.json"


def main() -> None:
    """Record, measure, fit and decode live."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/final"), help="folder for runs and results")
    parser.add_argument("--curves", type=int, default=3, help="cost curves of each compression")
    parser.add_argument("--per-task", type=int, default=8, help="sealed prompts of each task to decode live")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is decoded")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    args = parser.parse_args()
    runs = args.out / "runs"
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch) / "prompts"
        prompts.mkdir()
        for path in (PAIR_FOLDER / "prompts" / "train.jsonl", SEALED):
            shutil.copy(path, prompts)
        profile(
            out=runs,
            prompts=prompts,
            compression=COMPRESSIONS,
            max_new_tokens=args.max_new_tokens,
            progress=show_progress,
        )
    _more_curves(runs, args.curves)
    fit(runs, policy="stopping", out=args.out / FITTED)
    rows = []
    for run, manifest in select_runs(runs):
        trace, costs = read_run(run)
        train = split_trace(trace, TRAIN)
        fixed, rival = best_fixed_gamma(train, costs), tune_rivals(train, costs).best
        rows += bench(
            policies=(str(args.out / FITTED), f"fixed:{fixed}", rival, "none"),
            prompts=SEALED,
            per_task=args.per_task,
            compression=manifest.target.compression,
            max_new_tokens=args.max_new_tokens,
            rounds=args.rounds,
            baselines=False,
            progress=show_progress,
        )
    for row in rows:
        row["policy"] = "stopping" if row["policy"].endswith(FITTED) else row["policy"]
    save(args.out, "live.json", rows)


def _more_curves(runs: Path, count: int) -> None:
    """Further cost curves of every run, measured after all else, beside the one that recording measured."""
    for number in range(2, count + 1):
        for run, manifest in select_runs(runs):
            pair = load_pair(PairSpec(compression=(manifest.target.compression,)))
            curve = pair_costs(pair, CostSpec(measure=True), manifest.gamma_max, progress=show_progress)
            curve.save(run / f"costs-{number}.json")
            console.print(f"curve {number} of {manifest.target.compression}", highlight=False)


if __name__ == "__main__":
    main()
