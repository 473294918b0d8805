"""Replay against the live loop, part by part: is what a policy gains in replay what it gains live?

Decodes prompts of recorded runs live, every policy plainly and under a stopwatch, in random order, and measures the
cost curve anew in between. Then it replays the same prompts with that curve. Tokens per step must be equal; rows say
how far the gains over the best fixed length lie apart, and in which part of a step the seconds differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save
from curves import mean_curve
from step_parts import PARTS, Parts, charged_parts, live_parts

from draftgauge.api.costs import pair_costs
from draftgauge.api.recorded import load_pair_of
from draftgauge.api.requests import CostSpec
from draftgauge.api.runs import read_run, select_runs
from draftgauge.core.prompts import TRAIN, VALIDATION, in_turn
from draftgauge.core.seeds import generator
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.policies.base import Policy, decision_of
from draftgauge.policies.registry import make_policy
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.simulate import Replay, replay
from draftgauge.replaying.splits import split_trace
from draftgauge.statistics.bootstrap import LEVEL, interval_of
from draftgauge.statistics.paired import gain_resamples
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace

POLICIES = ("stopping", "lookup-else-stopping", "two-source")
BLOCKS = 3
"""Cost curves of a measurement: before, between and after live decoding, as the machine's speed drifts."""
LOADING = 15.0

Row = dict[str, Any]


@dataclass
class Timed:
    """One policy live: seconds of each prompt, and the parts of its steps, by prompt and round."""

    seconds: list[list[float]]
    parts: list[list[list[dict[str, float]]]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def main() -> None:
    """Measure, replay and write ``replay-live.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument("--runs", type=Path, default=Path("docs/results/final/runs"), help="recorded runs")
    parser.add_argument("--compression", action="append", help="of those runs; all by default; may be repeated")
    parser.add_argument("--policy", action="append", help=f"by default {', '.join(POLICIES)}; may be repeated")
    parser.add_argument("--prompts", type=int, default=16, help="prompts to decode, tasks in turn")
    parser.add_argument("--minutes", type=float, default=5.0, help="for everything")
    parser.add_argument("--curve-seconds", type=float, default=15.0, help="for each cost curve, of which there are 3")
    args = parser.parse_args()
    runs = [
        (run, manifest)
        for run, manifest in select_runs(args.runs)
        if args.compression is None or manifest.target.compression in args.compression
    ]
    rows: list[Row] = []
    for number, (run, manifest) in enumerate(runs):
        left = args.minutes * 60 - (time.monotonic() - _BEGUN)
        for row in _compared(run, manifest, args, left / (len(runs) - number)):
            rows.append({"compression": manifest.target.compression} | row)
            _show(rows[-1])
    save(args.out, "replay-live.json", rows)


def _compared(run: Path, manifest: Manifest, args: argparse.Namespace, seconds: float) -> Iterator[Row]:
    """Rows of one run: gains, then parts."""
    trace, recorded = read_run(run)
    evaluated = _unseen(trace)
    chosen = {prompt.index for prompt in in_turn(evaluated.prompts)[: args.prompts]}
    part = select(evaluated, [prompt.index in chosen for prompt in evaluated.prompts])
    fixed = f"fixed:{max(1, best_fixed_gamma(split_trace(trace, TRAIN), recorded))}"
    specs = [fixed, *(args.policy or POLICIES)]
    policies = {spec: make_policy(spec, trace.gamma_max, recorded) for spec in specs}
    timed, costs = _live(part, manifest, policies, args.curve_seconds, seconds)
    for spec, policy in policies.items():
        if hasattr(policy, "decision"):
            policy.decision = decision_of(make_policy(spec, trace.gamma_max, costs))  # as timed in these minutes
    replays = {spec: replay(part, policy, costs) for spec, policy in policies.items()}
    for spec in specs:
        yield _gains(timed, replays, spec, fixed)
    for spec, policy in policies.items():
        charged = charged_parts(part, replays[spec], policy, costs)
        yield from _parts(spec, timed[spec], replays[spec], charged)


def _unseen(trace: Trace) -> Trace:
    """The prompts that are not for fitting, or all where there are no others."""
    kept = [prompt.split not in (TRAIN, VALIDATION) for prompt in trace.prompts]
    return select(trace, kept) if any(kept) else trace


def _live(
    part: Trace, manifest: Manifest, policies: Mapping[str, Policy], curve_seconds: float, seconds: float
) -> tuple[dict[str, Timed], CostCurve]:
    """Decode as often as there is time for, and the mean of the cost curves measured before, between and after."""
    until = time.monotonic() + seconds - BLOCKS * curve_seconds - LOADING
    pair = load_pair_of(manifest)
    settings = DecodingSettings(max_new_tokens=manifest.max_new_tokens, end_tokens=pair.end_tokens)
    drafter, rng = pair.drafter(), generator(0, "replay and live", manifest.target.compression)
    timed = {spec: Timed([[] for _ in part.prompts], [[] for _ in part.prompts]) for spec in policies}
    measure = CostSpec(measure=True, cost_seconds=curve_seconds)
    begun, curves = time.monotonic(), [pair_costs(pair, measure, part.gamma_max)]
    until += min(0.0, curve_seconds - (time.monotonic() - begun))  # a curve may take longer than it was given
    for block in range(1, BLOCKS):
        stop = time.monotonic() + (until - time.monotonic()) / (BLOCKS - block)
        while True:
            begun = time.monotonic()
            _round(part, pair.target, drafter, policies, settings, timed, rng)
            if time.monotonic() + (time.monotonic() - begun) > stop:
                break
        curves.append(pair_costs(pair, measure, part.gamma_max))
    return timed, mean_curve(curves)


def _round(
    part: Trace,
    target: Any,
    drafter: Any,
    policies: Mapping[str, Policy],
    settings: DecodingSettings,
    timed: Mapping[str, Timed],
    rng: np.random.Generator,
) -> None:
    """Every prompt by every policy, once plainly and once under the stopwatch."""
    for number, prompt in enumerate(part.prompts):
        tokens, specs = list(prompt.prompt_token), list(policies)
        for turn in rng.permutation(2 * len(specs)):
            spec = specs[turn // 2]
            if turn % 2:
                timed[spec].parts[number].append(live_parts(target, drafter, policies[spec], tokens, settings))
            else:
                generation = speculative_decode(target, drafter, policies[spec], tokens, settings)
                timed[spec].seconds[number].append(generation.decode_seconds)


def _gains(timed: Mapping[str, Timed], replays: Mapping[str, Replay], spec: str, fixed: str) -> Row:
    """Live and replayed gain of a policy over the fixed length, and what lies between them, resampled by prompt."""
    live = {name: np.array([np.median(rounds) for rounds in timed[name].seconds]) for name in (spec, fixed)}
    ours, base = replays[spec], replays[fixed]
    gain, gains = gain_resamples(ours.committed, live[spec], base.committed, live[fixed])
    modelled, modelled_gains = gain_resamples(ours.committed, ours.seconds, base.committed, base.seconds)
    apart = interval_of(modelled - gain, modelled_gains - gains, LEVEL)
    steps = [[len(each) for each in rounds] for rounds in timed[spec].parts]
    equal = [set(counts) == {count} for counts, count in zip(steps, ours.steps.tolist(), strict=True)]
    return {
        "table": "gain",
        "policy": spec,
        "over": fixed,
        "prompts": len(ours.steps),
        "rounds": len(timed[spec].seconds[0]),
        "tokens_per_step": ours.tokens_per_step,
        "equal_steps": float(np.mean(equal)),
        "gain": gain,
        "replayed_gain": modelled,
        "apart": apart.estimate,
        "apart_low": apart.low,
        "apart_high": apart.high,
        "live_over_replayed_seconds": float(live[spec].sum() / ours.seconds.sum()),
    }


def _parts(spec: str, timed: Timed, outcome: Replay, charged: Parts) -> Iterator[Row]:
    """Microseconds a step of every part, live and charged; prompts whose steps differ are left out."""
    prompts = outcome.record.prompt
    same = [
        number
        for number, rounds in enumerate(timed.parts)
        if {len(steps) for steps in rounds} == {int(outcome.steps[number])}
    ]
    chosen = np.isin(prompts, same)
    if not chosen.any():
        return
    for name in PARTS:
        live = np.concatenate(
            [np.median([[step[name] for step in steps] for steps in timed.parts[n]], axis=0) for n in same]
        )
        ours, theirs = 1e6 * float(live.mean()), 1e6 * float(charged[name][chosen].mean())
        yield {
            "table": "parts",
            "policy": spec,
            "part": name,
            "steps": len(live),
            "live_us_per_step": ours,
            "charged_us_per_step": theirs,
            "difference_us_per_step": ours - theirs,
        }


def _show(row: Row) -> None:
    if row["table"] == "gain":
        text = (
            f"{row['compression']:5} {row['policy']:22} over {row['over']}: live {row['gain']:+.1%}, replayed "
            f"{row['replayed_gain']:+.1%}, apart {100 * row['apart']:+.1f} [{100 * row['apart_low']:+.1f}, "
            f"{100 * row['apart_high']:+.1f}] points; live / replayed seconds "
            f"{row['live_over_replayed_seconds']:.3f}; equal steps {row['equal_steps']:.0%}"
        )
    else:
        text = (
            f"{row['compression']:5} {row['policy']:22} {row['part']:9} live {row['live_us_per_step']:8.1f} us a step, "
            f"charged {row['charged_us_per_step']:8.1f}, difference {row['difference_us_per_step']:+7.1f}"
        )
    console.print(text, highlight=False)


_BEGUN = time.monotonic()

if __name__ == "__main__":
    main()
