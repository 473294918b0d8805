"""How wrong is a trace that is imported from vLLM's answers, for drafters that start anew from the target's state?

Of recorded runs: vLLM's answers at one fixed length follow from a dense trace, are imported as ``draftgauge advise
--requests`` does, and every shorter length is replayed on both traces. Of a drafter that depends on the text alone only
what is drawn can be wrong.

    python benchmarks/imported_requests.py --run draft=RUN --run hidden=RUN --out docs/results
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import console, save

from draftgauge.api.runs import read_run
from draftgauge.replaying.evaluate import plain_seconds
from draftgauge.replaying.simulate import replay_fixed_all, replay_lengths
from draftgauge.serving.requests_trace import RequestSteps, trace_of_requests
from draftgauge.traces.build import narrow
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

NAME = "imported-requests.json"
SERVED = (2, 4, 7)
"""Lengths that the server drafts."""
SEEDS = range(5)
"""Of what is drawn; figures are means over them."""


def main() -> None:
    """Compare every run's imports with its trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", required=True, metavar="NAME=RUN", help="a recorded run, named")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, _, folder in (text.partition("=") for text in given.run):
        trace, costs = read_run(Path(folder))
        for served in SERVED:
            rows += [{"drafter": name, "served": served} | row for row in import_errors(trace, costs, served)]
            show(rows[-served:])
    save(given.out, NAME, rows)


def import_errors(trace: Trace, costs: CostCurve, served: int) -> Iterator[dict[str, Any]]:
    """For each length up to the one served, tokens a step and the speed over plain decoding, recorded and imported."""
    answers = requests_at(trace, served)
    imports = [trace_of_requests(answers, seed) for seed in SEEDS]
    exact = speeds(narrow(trace, served), costs)
    guessed = [speeds(imported.trace, costs) for imported in imports]
    for index, (tokens, speed) in enumerate(exact):
        their_tokens, their_speed = np.mean([guess[index] for guess in guessed], axis=0).tolist()
        yield {
            "length": index + 1,
            "prompts": len(trace.prompts),
            "tokens_per_step": tokens,
            "imported_tokens_per_step": their_tokens,
            "error": their_tokens / tokens - 1,
            "speedup": speed,
            "imported_speedup": their_speed,
            "drawn": float(np.mean([imported.drawn for imported in imports])),
        }


def requests_at(trace: Trace, served: int) -> list[RequestSteps]:
    """What vLLM would tell of the prompts of a trace, drafting ``served`` tokens at every step."""
    steps = replay_lengths(trace, np.full(trace.positions, served)).record
    answers = []
    for index, prompt in enumerate(trace.prompts):
        own = steps.prompt == index
        drafted, accepted = (tuple(each[own].tolist()) for each in (steps.drafted, steps.accepted))
        answers.append(RequestSteps(prompt.prompt_tokens, prompt.output_tokens + 1, drafted, accepted, served))
    return answers


def speeds(trace: Trace, costs: CostCurve) -> list[tuple[float, float]]:
    """Tokens a step, and modelled speed over plain decoding, of fixed lengths 1, 2, .. of a trace."""
    plain = float(plain_seconds(trace, costs).sum())
    return [(r.tokens_per_step, plain / float(r.seconds.sum())) for r in replay_fixed_all(trace, costs)[1:]]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """One line a served length."""
    errors = ", ".join(f"{row['length']}: {row['error']:+.1%}" for row in rows)
    console.print(f"{rows[0]['drafter']} served at {rows[0]['served']}: {errors}", highlight=False)


if __name__ == "__main__":
    main()
