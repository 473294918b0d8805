"""Time to record a dense trace, generation included, over the time of plain generation; interleaved by prompt."""

from __future__ import annotations

import time

import numpy as np
from common import arguments, console, save

from draftgauge.api.pair import load_pair
from draftgauge.api.runs import first_per_task, prompt_file
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.decoding.settings import DecodingSettings

GAMMA_MAX = 16


def main() -> None:
    """Measure in float32 and write ``trace-cost.json``."""
    args = arguments(__doc__)
    pair = load_pair()
    settings = DecodingSettings(max_new_tokens=args.max_new_tokens, end_tokens=pair.end_tokens)
    drafter = pair.drafter()
    rows = []
    for number, prompt in enumerate(first_per_task(read_prompts(prompt_file("reference:test")), args.per_task)):
        tokens = pair.encode(prompt)
        ratios = []
        for round_ in range(args.rounds + (number == 0)):  # the very first pass warms up
            started = time.perf_counter()
            plain = plain_decode(pair.target, tokens, settings)
            between = time.perf_counter()
            record = record_prompt(
                pair.target, drafter, prompt, tokens, RecordingPlan(settings, GAMMA_MAX), pair.tokenizer
            )
            ended = time.perf_counter()
            assert record.token.tolist() == plain.tokens
            if number or round_:
                ratios.append((ended - between) / (between - started))
        rows.append(
            {
                "task": prompt.task,
                "prompt": prompt.identifier,
                "prompt_tokens": len(tokens),
                "output_tokens": len(plain.tokens),
                "trace_over_plain": float(np.median(ratios)),
            }
        )
    found = np.array([row["trace_over_plain"] for row in rows])
    low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
    rows.append(
        {
            "task": "all",
            "trace_over_plain": middle,
            "quartile_low": low,
            "quartile_high": high,
            "largest": found.max(),
            "prompts": len(found),
        }
    )
    console.print(
        f"dense trace over plain generation: median {middle:.2f} [{low:.2f}, {high:.2f}], largest {found.max():.2f}",
        highlight=False,
    )
    save(args.out, "trace-cost.json", rows)


if __name__ == "__main__":
    main()
