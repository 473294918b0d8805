"""Makes the table "bundled pair" of the README: policies on the bundled pair's sealed prompts.

    python benchmarks/bundled_pair.py             # replays docs/results/final/runs/none, no model is loaded
    python benchmarks/bundled_pair.py --record    # first records the pair again and decodes live: 15 minutes

Policies are fitted, tuned and chosen on the training prompts; nothing else reads the sealed ones.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from typing import Any

from common import RESULTS, save, show_progress

from draftgauge.api.bench import bench
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.models.reference import PAIR_FOLDER

RUN = RESULTS / "final" / "runs" / "none"
ROWS, LIVE = "bundled-pair.json", "bundled-pair-live.json"
RULES = ("cumulative-confidence", "stopping", "lookup-else-stopping", "two-source")
FITTED = ("stopping", "two-source")  # not tuned: fitted on the training prompts
SWEEP = (0.05, 0.1, 0.25)  # a drafted token over a verification
SEALED = PAIR_FOLDER / "sealed.jsonl"
KEPT = (
    *("policy", "tuned", "task", "cost_ratio", "tokens_per_step", "ratio_to_plain", "best_fixed_gamma"),
    *("gain", "gain_low", "gain_high", "distinct_4grams"),
)


def main() -> None:
    """Record if asked to, replay, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the pair again and decode live")
    parser.add_argument("--minutes", type=float, default=5.0, help="of live decoding")
    args = parser.parse_args()
    if args.record:
        record()
    rows = judged()
    save(RESULTS, ROWS, rows)
    if args.record:
        save(RESULTS, LIVE, live(rows, 60 * args.minutes))


def record() -> None:
    """Training and sealed prompts with their costs, as one run."""
    shutil.rmtree(RUN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as prompts:
        for path in (PAIR_FOLDER / "prompts" / "train.jsonl", SEALED):
            shutil.copy(path, prompts)
        profile(out=RUN, prompts=prompts, max_new_tokens=200, cost_seconds=30, progress=show_progress)


def judged() -> list[dict[str, Any]]:
    """Replayed on the sealed prompts at the measured costs, and on all of them at other costs of a drafted token."""
    asked = {"policies": ("fixed", *RULES), "split": "sealed", "tune": True}
    rows = replay(RUN, **asked)
    rows += [row for row in replay(RUN, sweep=SWEEP, **asked) if row["task"] == "all"]
    return [{key: row[key] for key in KEPT if key in row} for row in rows if _shown(row)]


def _shown(row: dict[str, Any]) -> bool:
    """Rules as they are used: the fitted ones, the others tuned; fixed lengths and the hindsight optimum."""
    name = row["policy"].partition(":")[0]
    return name in ("fixed", "hindsight", *FITTED) or (name in RULES and row["tuned"])


def live(rows: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The same policies decoding the sealed prompts, interleaved."""
    measured = [row for row in rows if row["task"] == "all" and row["cost_ratio"] not in SWEEP]
    fixed = f"fixed:{measured[0]['best_fixed_gamma']}"
    policies = [row["policy"] for row in measured if row["policy"].partition(":")[0] in RULES]
    return bench(
        policies=(fixed, *policies),
        over=fixed,
        prompts=SEALED,
        max_new_tokens=200,
        seconds=seconds,
        baselines=False,
        progress=show_progress,
    )


if __name__ == "__main__":
    main()
