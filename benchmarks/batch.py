"""Which draft length at which load: batches of the static engine, replayed from a trace of single requests, and live.

The bundled pair in float32. What passes of several requests cost is measured first, inside the batched loop; then every
length is decoded live in batches, interleaved, over the same queue of prompts that replay walks. Rows, one a batch size
and policy:

* ``replayed_*`` and ``live_*``: tokens a second of all requests, tokens a step of one, best fixed length;
* ``replayed_over_live``: how far the model of the costs is off;
* ``equal_steps``: replay and loop took the same steps;
* ``mismatches``: outputs that are not those of plain decoding, of all that were finished.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save, show_progress

from draftgauge.api.batches import batch_models, measure_pair_batches
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile import profile
from draftgauge.api.recorded import prompts_of
from draftgauge.api.runs import read_run
from draftgauge.decoding.batch_meter import BatchMeterPlan
from draftgauge.decoding.batched import BatchPlan, BatchRun, batched_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.static_rows import StaticRows
from draftgauge.policies.batches import make_batch_policy
from draftgauge.replay.batched import BatchReplay, replay_batch, resampled
from draftgauge.traces.batch_costs import BatchCosts
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

POLICIES = ("stopping", "shared-budget")


@dataclass
class Arm:
    """One policy at one batch size: its replay, and its live runs."""

    spec: str
    replayed: BatchReplay
    speeds: list[float] = field(default_factory=list)
    run: BatchRun | None = None


def main() -> None:
    """Record, measure, decode and write ``batch.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--gamma-max", type=int, default=8)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--lengths", default="0,1,2,3,4,6,8", help="decoded live, beside the policies")
    parser.add_argument("--rounds", type=int, default=2, help="how often every length is decoded live")
    parser.add_argument("--seconds", type=float, default=12.0, help="of measuring every batch size")
    args = parser.parse_args()
    batches, lengths = ([int(each) for each in text.split(",")] for text in (args.batches, args.lengths))
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        profile(
            prompts="reference:test",
            out=run,
            engine="static",
            per_task=args.per_task,
            max_new_tokens=args.max_new_tokens,
            gamma_max=args.gamma_max,
            progress=show_progress,
        )
        manifest = Manifest.load(run)
        pair = load_pair(engine="static")
        prompts = [tokens for _, tokens in prompts_of(run, manifest, pair)]
        trace, costs = read_run(run)
    contexts = sorted({min(map(len, prompts)), max(map(len, prompts)) + args.max_new_tokens})
    rows: list[dict[str, Any]] = []
    for batch in batches:
        text = [token for prompt in prompts for token in prompt]
        plan = BatchMeterPlan(text, (batch,), contexts, args.gamma_max, args.seconds)
        passes = measure_pair_batches(pair, plan, batch, show_progress)
        arms = bench_batch(pair, (trace, costs, passes), prompts, batch, (lengths, args))
        rows += batch_rows_of(arms, trace, batch)
    save(args.out, "batch.json", rows)


def bench_batch(
    pair: Pair,
    recorded: tuple[Trace, CostCurve, BatchCosts],
    prompts: Sequence[list[int]],
    batch: int,
    asked: tuple[Sequence[int], argparse.Namespace],
) -> list[Arm]:
    """Replay every policy, then decode with all of them, interleaved."""
    trace, costs, passes = recorded
    lengths, args = asked
    queue = resampled(len(prompts), batch, np.random.default_rng(batch))
    specs = [*(f"fixed:{gamma}" for gamma in range(args.gamma_max + 1)), *POLICIES]

    def make(spec: str) -> Any:
        return make_batch_policy(spec, batch, args.gamma_max, costs, passes)

    arms = [Arm(spec, replay_batch(trace, make(spec), passes, batch, queue)) for spec in specs]
    best = max(arms[: args.gamma_max + 1], key=lambda arm: arm.replayed.tokens_per_second)
    live = [arm for arm in arms if arm is best or arm.spec in {*(f"fixed:{each}" for each in lengths), *POLICIES}]
    capacity = max(map(len, prompts)) + args.max_new_tokens
    target, draft = (StaticRows(model, batch, capacity) for model in batch_models(pair))
    settings = DecodingSettings(args.max_new_tokens, end_tokens=pair.end_tokens)
    rng = np.random.default_rng(0)
    chosen = [prompts[index] for index in queue]
    for number in range(args.rounds + 1):
        for index in rng.permutation(len(live)):
            arm = live[index]
            plan = BatchPlan(batch, args.gamma_max, drain=False)
            took = chosen if number else chosen[: 2 * batch]  # the first round warms up
            run = batched_decode(target, draft, make(arm.spec), took, settings, plan)
            if number:
                arm.speeds.append(run.tokens_per_second)
                arm.run = run
        console.print(f"batch {batch}: round {number} of {args.rounds}", highlight=False)
    for arm in live:
        assert arm.run is not None
        for output in arm.run.outputs:
            output.prompt = queue[output.prompt]
    return arms


def batch_rows_of(arms: Sequence[Arm], trace: Trace, batch: int) -> list[dict[str, Any]]:
    """The rows of one batch size."""
    fixed = [arm for arm in arms if arm.spec.startswith("fixed")]
    best = max(fixed, key=lambda arm: arm.replayed.tokens_per_second)
    best_live = max((arm for arm in fixed if arm.speeds), key=lambda arm: float(np.median(arm.speeds)))
    none = arms[0]
    rows = []
    for arm in arms:
        replayed = arm.replayed
        row: dict[str, Any] = {
            "batch": batch,
            "policy": arm.spec,
            "replayed_tokens_per_second": replayed.tokens_per_second,
            "replayed_tokens_per_step": replayed.tokens_per_step,
            "replayed_over_none": replayed.tokens_per_second / none.replayed.tokens_per_second,
            "best_replayed": arm is best,
        }
        if arm.run is not None:
            speed = float(np.median(arm.speeds))
            row |= {
                "live_tokens_per_second": speed,
                "live_over_none": speed / float(np.median(none.speeds)),
                "best_live": arm is best_live,
                "replayed_over_live": replayed.tokens_per_second / speed,
                "equal_steps": replayed.steps == len(arm.run.seconds) and replayed.committed == arm.run.committed,
                "finished": sum(output.finished for output in arm.run.outputs),
                "mismatches": mismatches(arm.run, trace),
            }
            console.print(
                f"batch {batch} {arm.spec:14} x{row['live_over_none']:.3f} live, x{row['replayed_over_none']:.3f} "
                f"replayed; replayed / live {row['replayed_over_live']:.3f}; mismatches {row['mismatches']}",
                highlight=False,
            )
        rows.append(row)
    return rows


def mismatches(run: BatchRun, trace: Trace) -> int:
    """Finished outputs that are not those of the trace, which were decoded plainly one by one."""
    return sum(
        output.tokens != trace.token[trace.offsets[output.prompt] : trace.offsets[output.prompt + 1]].tolist()
        for output in run.outputs
        if output.finished
    )


if __name__ == "__main__":
    main()
