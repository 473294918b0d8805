"""What the rule of two sources takes: deciding about a drafted token, growing the index, replaying a step.

Decisions and the index are timed on the steps of a recorded run as live decoding asks for them; replay on the same
trace, once with everything that it derives from the trace and once with that at hand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save

from draftgauge.api.runs import read_run, select_runs
from draftgauge.policies.base import Signal, Step
from draftgauge.policies.registry import make_policy
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.policies.suffix import SuffixIndex
from draftgauge.policies.two_source import TwoSource
from draftgauge.replaying.simulate import replay
from draftgauge.traces.build import take
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Timed = ThroughputStopping | TwoSource
LEAST_POSITIONS = 200_000


def main() -> None:
    """Time all of it and write ``two-sources-speed.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument("--runs", type=Path, default=Path("docs/results/final/runs"), help="a recorded run")
    parser.add_argument("--policy", default="two-source", help="the policy, or a fitted file of it")
    parser.add_argument("--prompts", type=int, default=40, help="prompts to time decisions on")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    trace, costs = read_run(select_runs(args.runs)[0][0])
    rows = [_index_row(trace, args.rounds)]
    for spec in ("stopping", args.policy):
        policy = make_policy(spec, trace.gamma_max, costs)
        assert isinstance(policy, Timed)
        name = "stopping" if spec == "stopping" else "two-source"
        rows.append({"what": "decision", "policy": name} | _decisions(trace, policy, args.prompts))
        rows.append({"what": "replay", "policy": name} | _replays(trace, costs, spec, args.rounds))
    for row in rows:
        console.print("  ".join(f"{key} {value}" for key, value in row.items()), highlight=False)
    save(args.out, "two-sources-speed.json", rows)


def _microseconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - started)


def _index_row(trace: Trace, rounds: int) -> dict[str, Any]:
    """Growing an index by the outputs, token by token as steps commit them, and all at once."""
    outputs = [output.tolist() for output in np.split(trace.token, trace.offsets[1:-1])]
    tokens = sum(map(len, outputs))

    def grow(size: int) -> None:
        for prompt, output in zip(trace.prompts, outputs, strict=True):
            index = SuffixIndex()
            index.read(prompt.prompt_token)
            for begin in range(0, len(output), size):
                index.commit(output[begin : begin + size])

    def read() -> None:
        for prompt in trace.prompts:
            SuffixIndex().read(prompt.prompt_token)

    prompts = sum(prompt.prompt_tokens for prompt in trace.prompts)
    reading = min(_microseconds(read) for _ in range(rounds))
    growing = min(_microseconds(lambda: grow(4)) for _ in range(rounds))
    return {
        "what": "index",
        "reading_us_per_token": reading / prompts,
        "growing_us_per_token": (growing - reading) / tokens,
        "tokens": tokens,
    }


def _decisions(trace: Trace, policy: Timed, prompts: int) -> dict[str, Any]:
    """Every step of some prompts as the policy takes it; medians over prompts of the time by drafted token and step."""
    of_token, of_step, drafted_tokens = [], [], 0
    for number in range(min(prompts, len(trace.prompts))):
        first, end = trace.offsets[number : number + 2].tolist()
        policy.reset()
        policy.read(trace.prompts[number].prompt_token)
        row, asking, rest, asked, steps = first, 0.0, 0.0, 0, 0
        while row < end:
            columns = trace.confidence[row].tolist(), trace.draft_token[row].tolist()
            signals = [
                Signal(depth, sure, float("nan"), float("nan"), token)
                for depth, (sure, token) in enumerate(zip(*columns, strict=True), 1)
                if token >= 0
            ]
            begun = time.perf_counter()
            limit = policy.limit()
            limited = time.perf_counter()
            count = 0
            while count < min(limit, len(signals)):
                count += 1
                if not policy.keep_drafting(signals[count - 1]):
                    break
            kept = time.perf_counter()
            appended = policy.extend(end - row) if isinstance(policy, TwoSource) else ()
            extended = time.perf_counter()
            accepted = min(count, int(trace.accepted[row]))
            output = trace.token[row:end].tolist()
            if accepted == count:
                for token, own in zip(appended, output[count:], strict=False):
                    if token != own:
                        break
                    accepted += 1
            committed = output[: accepted + 1]
            step = Step(count, accepted, len(committed), signals[:count], tokens=committed, appended=len(appended))
            policy.observe(step)
            asking, rest = asking + kept - limited, rest + limited - begun + extended - kept
            asked, steps, row = asked + count, steps + 1, row + len(committed)
        of_step.append(1e6 * rest / steps)
        if asked:
            of_token.append(1e6 * asking / asked)
        drafted_tokens += asked
    return {
        "decision_us_per_drafted_token": float(np.median(of_token)) if of_token else None,
        "decision_us_per_step": float(np.median(of_step)),
        "drafted_tokens": drafted_tokens,
    }


def _replays(trace: Trace, costs: CostCurve, spec: str, rounds: int) -> dict[str, Any]:
    """Steps a second with nothing derived from the trace before, and with everything."""
    copies = LEAST_POSITIONS // trace.positions + 1
    large = take(trace, np.tile(np.arange(len(trace.prompts)), copies))
    policy = make_policy(spec, trace.gamma_max, costs)
    first, again = [], []
    for _ in range(rounds):
        fresh = replace(large)
        started = time.perf_counter()
        steps = int(replay(fresh, policy, costs).steps.sum())
        begun = time.perf_counter()
        replay(fresh, policy, costs)
        again.append(time.perf_counter() - begun)
        first.append(begun - started)
    return {
        "positions": large.positions,
        "steps": steps,
        "steps_per_second": steps / float(np.median(again)),
        "steps_per_second_first": steps / float(np.median(first)),
    }


if __name__ == "__main__":
    main()
