"""Replay against the live loop, for every fixed length: tokens per step must be equal, modelled speed close."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import arguments, console, save, show_progress

from draftgauge.api.bench import bench
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay


def main() -> None:
    """Profile, replay and bench the same prompts, and write ``replay-live.json``."""
    args = arguments(__doc__)
    policies = ["none", "fixed"]
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        profile(
            prompts="reference:test",
            out=run,
            per_task=args.per_task,
            max_new_tokens=args.max_new_tokens,
            progress=show_progress,
        )
        replayed = {(r["policy"], r["task"]): r for r in replay(run, policies)}
        live = bench(run, policies, baselines=False, rounds=args.rounds, progress=show_progress)
    rows = []
    for row in live:
        model = replayed.get((row["policy"], row["task"]))
        if model is None:
            continue
        rows.append(
            {
                "policy": row["policy"],
                "compression": row["compression"],
                "task": row["task"],
                "replayed_tokens_per_step": model["tokens_per_step"],
                "live_tokens_per_step": row["tokens_per_step"],
                "equal": model["tokens_per_step"] == row["tokens_per_step"],
                "modelled_tokens_per_second": model["tokens_per_second"],
                "live_tokens_per_second": row["tokens_per_second"],
                "modelled_over_live": model["tokens_per_second"] / row["tokens_per_second"],
                "mismatches": row["mismatches"],
            }
        )
    for row in rows:
        if row["task"] == "all":
            console.print(
                f"{row['policy']:9} equal {row['equal']}  modelled / live {row['modelled_over_live']:.3f}",
                highlight=False,
            )
    save(args.out, "replay-live.json", rows)


if __name__ == "__main__":
    main()
