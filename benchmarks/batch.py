"""Makes the table of docs/load.md: the best draft length by batch size, replayed and live, on the static engine.

The bundled pair in float32; policies are fitted on training prompts. Rounds decode with every length and policy at
every batch size, in an order drawn anew, over the same queues of prompts that replay walks, until the time is up. Costs
of passes of several requests are measured before. Rows, one a batch size and policy:

* ``replayed_*`` and ``live_*``: tokens a second of all requests and over no drafts, tokens a step of one;
* ``best_replayed``, ``best_live``: the best fixed length; ``share_of_best_live``: what of its live speed is reached;
* ``distinct_4grams``: of the outputs, the share that does not repeat;
* ``replayed_over_live``: how far the model of the costs is off;
* ``*_low``, ``*_high``: 95% intervals of medians over ``rounds``: what the machine does, not which prompts they are;
* ``equal_steps``: replay and loop took the same steps;
* ``mismatches``: outputs that are not those of plain decoding, of all that were ``finished``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, console, save, show_progress
from torch import Tensor

from draftgauge.api.fit import fit
from draftgauge.api.profile import profile
from draftgauge.api.runs import Run
from draftgauge.decoding.batched import BatchPlan, BatchRun, batched_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.judging.batch_rows import BatchReplay, replay_batch
from draftgauge.meter import BatchMeterPlan, measure_batches
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static import StaticRows
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.pair.prompts import prompts_of
from draftgauge.pair.recording import batch_models
from draftgauge.policies.batch import BatchPolicy, make_batch_policy
from draftgauge.traces.costs import BatchCosts, CostCurve
from draftgauge.traces.trace import Trace, distinct_ratio, prompt_gram_counts

REQUESTS = 4  # that each slot serves at least


@dataclass
class Arm:
    """One policy at one batch size: its replay, and its live runs."""

    batch: int
    label: str
    spec: str
    queue: list[int]
    speeds: list[float] = field(default_factory=list)
    run: BatchRun | None = None
    replayed: BatchReplay | None = None

    @property
    def fixed(self) -> bool:
        """Whether it drafts as many tokens at every step."""
        return self.label.startswith("fixed")


@dataclass(frozen=True)
class Recorded:
    """The trace and what policies decide by: costs of single requests, and of batches as measured at first."""

    trace: Trace
    prompts: list[list[int]]
    costs: CostCurve
    args: argparse.Namespace

    def policy(self, arm: Arm) -> BatchPolicy:
        """A new one."""
        return make_batch_policy(arm.spec, arm.batch, self.args.gamma_max, self.costs)


class KeptPrompts(StaticRows):
    """Takes a prompt in once and copies its keys and values later: taking in is not part of what is measured."""

    def __init__(self, model: LeanModel, rows: int, capacity: int, kept: dict[tuple[int, ...], Tensor]) -> None:
        super().__init__(model, rows, capacity)
        self._kept = kept  # by tokens: ``[layers, 2 KV, tokens, D]``

    @torch.inference_mode()
    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        """As for any other rows."""
        known, places = self._kept.get(tuple(tokens)), self._cache[:, row, :, : len(tokens)]
        if known is None:
            super().prefill(row, tokens)
            self._kept[tuple(tokens)] = places.clone()
        else:
            places.copy_(known)
            self._lengths[row] = len(tokens)


def main() -> None:
    """Record, measure, decode and write ``batch.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=6.0, help="for decoding live; two rounds at least")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--gamma-max", type=int, default=8)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--lengths", default="0,1,2,3,4,5,6,8", help="decoded live; all are replayed")
    parser.add_argument("--training", type=int, default=8, help="training prompts of each task, to fit chances on")
    args = parser.parse_args()
    batches, lengths = ([int(each) for each in text.split(",")] for text in (args.batches, args.lengths))
    with tempfile.TemporaryDirectory() as scratch:
        run, stopping = Path(scratch) / "run", Path(scratch) / "stopping.json"
        record(run, "test", args.per_task, args)
        record(Path(scratch) / "training", "train", args.training, args)
        fit(Path(scratch) / "training", policy="stopping", out=stopping)
        pair = load_pair(engine="static")
        prompts = [tokens for _, tokens in prompts_of(Run(run))]
        trace, costs = Run(run).read()
        recorded = Recorded(trace, prompts, costs, args)
        arms = [arm for batch in batches for arm in arms_of(batch, len(prompts), args.gamma_max, stopping)]
        live = [arm for arm in arms if not arm.fixed or int(arm.label.partition(":")[2]) in lengths]
        charged = measured(pair, prompts, batches, args)
        decode_rounds(pair, recorded, live)
        for arm in arms:
            arm.replayed = replay_batch(trace, recorded.policy(arm), charged, arm.batch, arm.queue)
    rows = [row for batch in batches for row in rows_of([arm for arm in arms if arm.batch == batch], trace)]
    save(args.out, "batch.json", rows)


def record(run: Path, split: str, per_task: int, args: argparse.Namespace) -> None:
    """A run of bundled prompts."""
    profile(
        prompts=f"reference:{split}",
        out=run,
        engine="static",
        per_task=per_task,
        max_new_tokens=args.max_new_tokens,
        gamma_max=args.gamma_max,
        progress=show_progress,
    )


def measured(pair: Pair, prompts: Sequence[list[int]], batches: Sequence[int], args: argparse.Namespace) -> BatchCosts:
    """What passes of batches of these prompts take."""
    contexts = sorted({min(map(len, prompts)), max(map(len, prompts)) + args.max_new_tokens})
    plan = BatchMeterPlan([token for prompt in prompts for token in prompt], batches, contexts, args.gamma_max)
    progress = partial(show_progress, "batches")
    return measure_batches(*batch_models(pair), plan, np.random.default_rng(0), progress)


def arms_of(batch: int, prompts: int, gamma_max: int, stopping: Path) -> list[Arm]:
    """All policies at a batch size, over one queue: every prompt as often as any other, in an order drawn anew."""
    count = max(prompts, REQUESTS * batch)
    rng = np.random.default_rng(batch)
    queue = np.concatenate([rng.permutation(prompts) for _ in range(-(-count // prompts))])[:count].tolist()
    specs = {f"fixed:{gamma}": f"fixed:{gamma}" for gamma in range(gamma_max + 1)}
    specs |= {"stopping": str(stopping)}
    return [Arm(batch, label, spec, queue) for label, spec in specs.items()]


def decode_rounds(pair: Pair, recorded: Recorded, arms: Sequence[Arm]) -> None:
    """Decode with all arms, round by round, until the time is up; the first round warms up."""
    args = recorded.args
    capacity = max(map(len, recorded.prompts)) + args.max_new_tokens
    settings = DecodingSettings(args.max_new_tokens, end_tokens=pair.end_tokens)
    models: list[tuple[LeanModel, dict[tuple[int, ...], Tensor]]] = [(model, {}) for model in batch_models(pair)]
    rows = {
        batch: [KeptPrompts(model, batch, capacity, kept) for model, kept in models]
        for batch in {arm.batch for arm in arms}
    }
    rng = np.random.default_rng(0)
    until, number, took = time.monotonic() + 60 * args.minutes, 0, 0.0
    while number < 3 or time.monotonic() + took < until:
        began = time.monotonic()
        for index in rng.permutation(len(arms)):
            arm = arms[index]
            queue = arm.queue if number else arm.queue[: 2 * arm.batch]
            plan = BatchPlan(arm.batch, args.gamma_max, drain=False)
            target, draft = rows[arm.batch]
            texts = [recorded.prompts[prompt] for prompt in queue]
            run = batched_decode(target, draft, recorded.policy(arm), texts, settings, plan)
            if number:
                arm.speeds.append(run.tokens_per_second)
                arm.run = run
        took = time.monotonic() - began
        console.print(f"round {number}: {took:.0f} s", highlight=False)
        number += 1


def rows_of(arms: Sequence[Arm], trace: Trace) -> Iterable[dict[str, Any]]:
    """The rows of one batch size."""
    fixed, none = [arm for arm in arms if arm.fixed], arms[0]
    best = max(fixed, key=replayed_speed)
    best_live = max((arm for arm in fixed if arm.speeds), key=lambda arm: float(np.median(arm.speeds)))
    for arm in arms:
        replayed = arm.replayed
        assert replayed is not None
        row: dict[str, Any] = {
            "batch": arm.batch,
            "policy": arm.label,
            "replayed_tokens_per_second": replayed_speed(arm),
            "replayed_tokens_per_step": replayed.tokens_per_step,
            "replayed_over_none": replayed_speed(arm) / replayed_speed(none),
            "best_replayed": arm is best,
            "distinct_4grams": distinct_ratio(prompt_gram_counts(trace)),
        }
        if arm.run is not None:
            speeds, of_none = np.array(arm.speeds), np.array(none.speeds)
            row |= interval("live_tokens_per_second", speeds) | interval("live_over_none", speeds / of_none)
            row |= interval("share_of_best_live", speeds / np.array(best_live.speeds))
            row |= interval("replayed_over_live", replayed_speed(arm) / speeds)
            row |= {
                "rounds": len(speeds),
                "best_live": arm is best_live,
                "equal_steps": replayed.steps == len(arm.run.seconds) and replayed.committed == arm.run.committed,
                "finished": sum(output.finished for output in arm.run.outputs),
                "mismatches": mismatches(arm, trace),
            }
            console.print(
                f"batch {arm.batch} {arm.label:14} x{row['live_over_none']:.3f} live, x{row['replayed_over_none']:.3f} "
                f"replayed; replayed / live {row['replayed_over_live']:.3f} "
                f"[{row['replayed_over_live_low']:.3f}, {row['replayed_over_live_high']:.3f}]; mismatches "
                f"{row['mismatches']}{'  best live' if arm is best_live else ''}{'  best' if arm is best else ''}",
                highlight=False,
                soft_wrap=True,
            )
        yield row


def replayed_speed(arm: Arm) -> float:
    """Tokens a second of its replay."""
    assert arm.replayed is not None
    return arm.replayed.tokens_per_second


def interval(name: str, values: np.ndarray) -> dict[str, float]:
    """The median over rounds and its interval."""
    drawn = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.nanquantile(np.nanmedian(drawn, axis=1), [0.025, 0.975])
    return {name: float(np.nanmedian(values)), f"{name}_low": float(low), f"{name}_high": float(high)}


def mismatches(arm: Arm, trace: Trace) -> int:
    """Finished outputs that are not those of the trace, which were decoded plainly one by one."""
    assert arm.run is not None
    return sum(
        output.tokens != trace.token[slice(*trace.offsets[arm.queue[output.prompt] :][:2].tolist())].tolist()
        for output in arm.run.outputs
        if output.finished
    )


if __name__ == "__main__":
    main()
