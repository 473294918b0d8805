"""What a datastore of earlier outputs adds to rules that look tokens up in the text, replayed.

The outputs of the training prompts of ``--runs`` are the datastore, with their prompts and without; the other prompts
are judged on. What a look-up takes is measured here and charged.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import console, save

from draftgauge.api.datastore import build_datastore, read_stored
from draftgauge.api.runs import read_run, select_runs
from draftgauge.core.prompts import TRAIN, VALIDATION
from draftgauge.policies.registry import make_policy
from draftgauge.policies.stored_policies import with_stored
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.replaying.evaluate import task_masks
from draftgauge.replaying.simulate import Replay, replay
from draftgauge.statistics.paired import paired_gain
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.repetition import distinct_ratio, prompt_gram_counts
from draftgauge.traces.trace import Trace

POLICIES = ("lookup:least=2", "lookup:least=3", "gated-lookup", "lookup-else-stopping:least=2,tokens=4", "two-source")


def main() -> None:
    """Replay and write ``datastore.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument("--runs", type=Path, default=Path("docs/results/final/runs"), help="recorded runs")
    args = parser.parse_args()
    rows = [row for run, _ in select_runs(args.runs) for row in _compared(run)]
    for row in rows:
        if row["task"] == "all":
            console.print(
                f"{row['compression']:5} {row['policy']:38} prompts kept {row['with_prompts']!s:5} "
                f"{row['datastore_tokens']} tokens, gain {row['gain']:+.1%} [{row['gain_low']:+.1%}, "
                f"{row['gain_high']:+.1%}]; from text a step {row['source_text_without']:.2f} to "
                f"{row['source_text']:.2f}",
                highlight=False,
            )
    save(args.out, "datastore.json", rows)


def _compared(run: Path) -> Iterator[dict[str, Any]]:
    """Every policy with a datastore over the same without one."""
    trace, costs = read_run(run)
    part = select(trace, [prompt.split not in (TRAIN, VALIDATION) for prompt in trace.prompts])
    grams = prompt_gram_counts(part)
    judged = [prompt.prompt_token for prompt in part.prompts]
    without = {spec: _replayed(part, costs, spec, None) for spec in POLICIES}
    for with_prompts in (False, True):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "datastore.parquet"
            (built,) = build_datastore(run, out=path, with_prompts=with_prompts)
            stored = read_stored(path, costs.vocabulary, judged)
        for spec in POLICIES:
            outcome = _replayed(part, costs, spec, stored)
            for task, mask in task_masks(part):
                ours, theirs = ((each.committed[mask], each.seconds[mask]) for each in (outcome, without[spec]))
                gain = paired_gain(*ours, *theirs)
                yield {
                    "compression": trace.compression,
                    "policy": spec,
                    "task": task,
                    "prompts": int(mask.sum()),
                    "distinct_4grams": distinct_ratio(grams[mask]),
                    "with_prompts": with_prompts,
                    "datastore_tokens": stored.tokens,
                    "look_up_seconds": built["look_up_seconds"],
                    "gain": gain.estimate,
                    "gain_low": gain.low,
                    "gain_high": gain.high,
                    "source_text": float(outcome.accepted_text[mask].sum() / outcome.steps[mask].sum()),
                    "source_text_without": float(
                        without[spec].accepted_text[mask].sum() / without[spec].steps[mask].sum()
                    ),
                }


def _replayed(trace: Trace, costs: CostCurve, spec: str, stored: StoredTexts | None) -> Replay:
    policy = make_policy(spec, trace.gamma_max, costs)
    if stored is not None:
        with_stored([policy], stored)
    return replay(trace, policy, costs)


if __name__ == "__main__":
    main()
