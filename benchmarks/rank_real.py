"""Makes docs/results/rank-qwen.json: the draft of the published real pair, prompt lookup and both together, ranked.

The run of ``real_pair.py`` holds the target's outputs and what the draft model drafts from every position. What prompt
lookup drafts there follows from the text alone, so no model is loaded. A step verifies for both what was measured for
the pair; a lookup is charged 10 microseconds a token, more than any measurement of one.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from common import RESULTS, save

from draftgauge.cli.rank import show_ranking
from draftgauge.drafters.dense import draft_position_by_position
from draftgauge.drafters.prompt_lookup import PromptLookupDrafter
from draftgauge.judging.ranking import rank_rows
from draftgauge.traces.run import Run
from draftgauge.traces.trace import Trace, make_record
from draftgauge.traces.writer import make_trace

RUN = RESULTS / "real" / "runs" / "bf16"
LOOKUP_SECONDS = 1e-5  # a token; a pass of the target takes 2e4 times as long


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    trace, costs = Run(RUN).read()
    free = tuple(tuple(LOOKUP_SECONDS * n for n in range(len(row))) for row in costs.draft)
    cheap = replace(costs, draft=free, catch_up=(), signals=0.0)
    drafters = {"Qwen2.5-Coder-0.5B": (trace, costs), "lookup": (looked_up(trace), cheap)}
    save(RESULTS, "rank-qwen.json", rows := rank_rows(drafters))
    show_ranking(rows)


def looked_up(trace: Trace) -> Trace:
    """What prompt lookup drafts along the same outputs."""
    records = []
    for info, start, stop in zip(trace.prompts, trace.offsets[:-1], trace.offsets[1:], strict=True):
        output = trace.token[start:stop].tolist()
        drafts = draft_position_by_position(PromptLookupDrafter(), list(info.prompt_token), output, trace.gamma_max)
        proposed = [[token for token in row if token >= 0] for row in drafts.tokens.tolist()]
        records.append(make_record(info, output, proposed, trace.gamma_max))
    return make_trace(records, trace.max_new_tokens, trace.compression)


if __name__ == "__main__":
    main()
