"""Replayed steps a second, on a trace of a million positions made by repeating recorded ones."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import arguments, console, save, show_progress

from draftgauge.api.profile import profile
from draftgauge.api.runs import read_run
from draftgauge.policies.registry import make_policy
from draftgauge.replaying.hindsight import hindsight_optimum
from draftgauge.replaying.simulate import replay
from draftgauge.traces.build import take
from draftgauge.traces.trace import Trace

POSITIONS = 1_000_000
POLICIES = (
    "none",
    "fixed:1",
    "fixed:4",
    "fixed:8",
    "hf-confidence",
    "cumulative-confidence",
    "hf-heuristic",
    "hf-confidence:adaptive=true",
)


def enlarged(trace: Trace, positions: int) -> Trace:
    """The same prompts over and over, with indices of their own."""
    copies = positions // trace.positions + 1
    order = np.tile(np.arange(len(trace.prompts)), copies)
    many = take(trace, order)
    return replace(many, prompts=tuple(replace(p, index=n) for n, p in enumerate(many.prompts)))


def main() -> None:
    """Time every policy and write ``replay-speed.json``."""
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        profile(
            prompts="reference:test",
            out=run,
            per_task=args.per_task,
            max_new_tokens=args.max_new_tokens,
            progress=show_progress,
        )
        trace, costs = read_run(run)
    large = enlarged(trace, POSITIONS)
    rows = []
    for name in POLICIES:
        seconds = []
        for _ in range(args.rounds):
            policy = make_policy(name, large.gamma_max)
            started = time.perf_counter()
            outcome = replay(large, policy, costs)
            seconds.append(time.perf_counter() - started)
        steps = int(outcome.steps.sum())
        rows.append(
            {
                "policy": name,
                "positions": large.positions,
                "steps": steps,
                "steps_per_second": steps / float(np.median(seconds)),
            }
        )
    started = time.perf_counter()
    hindsight_optimum(large, costs)
    seconds_hindsight = time.perf_counter() - started
    rows.append(
        {
            "policy": "hindsight",
            "positions": large.positions,
            "positions_per_second": large.positions / seconds_hindsight,
        }
    )
    for row in rows:
        console.print(
            f"{row['policy']:28} {row.get('steps_per_second', row.get('positions_per_second')):12,.0f} /s",
            highlight=False,
        )
    save(args.out, "replay-speed.json", rows)


if __name__ == "__main__":
    main()
