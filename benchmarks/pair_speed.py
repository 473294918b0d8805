"""Speculation on the bundled pair: its gain over plain decoding, and the decoder's gain over transformers, apart.

The fixed length is chosen on the bundled *training* prompts by replay, and measured live on the *test* prompts.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from common import arguments, console, save, show_progress

from draftgauge.api.arms import Arm, BenchPrompt, bench_arms, plain_arm, policy_arm, transformers_arms
from draftgauge.api.bench_rows import bench_rows
from draftgauge.api.pair import load_pair
from draftgauge.api.profile import profile
from draftgauge.api.replay import best_gamma_of
from draftgauge.api.runs import first_per_task, prompt_file
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.policies.registry import make_policy


def measure(compression: str, per_task: int, rounds: int, max_new_tokens: int) -> list[dict[str, object]]:
    """Rows of the bench of one precision."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        profile(
            prompts="reference:train",
            out=run,
            compression=compression,
            per_task=per_task,
            max_new_tokens=max_new_tokens,
        )
        best = max(1, best_gamma_of(run))
    console.print(f"{compression}: best fixed length on training prompts {best}", highlight=False)
    pair = load_pair(compression=compression)
    modules = load_pair(compression=compression, engine="modules")
    settings = DecodingSettings(max_new_tokens=max_new_tokens, end_tokens=pair.end_tokens)
    lengths = sorted({max(1, best - 1), best, best + 1})
    arms: list[Arm] = [plain_arm(pair, settings)]
    arms += [policy_arm(pair, f"fixed:{gamma}", make_policy(f"fixed:{gamma}", 16), settings) for gamma in lengths]
    same, other = (
        plain_arm(modules, settings),
        policy_arm(modules, f"modules:fixed:{best}", make_policy(f"fixed:{best}", 16), settings),
    )
    same.name = "modules:plain"
    arms += [same, other, *transformers_arms(pair, max_new_tokens, best)]
    prompts = [
        BenchPrompt(pair.encode(p), p.task)
        for p in first_per_task(read_prompts(prompt_file("reference:test")), per_task)
    ]
    show = partial(show_progress, f"bench {compression}")
    bench_arms(arms, prompts, rounds, np.random.default_rng(0), show)
    rows = bench_rows(arms, prompts, compression)
    for row in rows:
        row["best_fixed_gamma"] = best
        row["engine"] = (
            "modules" if "modules" in row["policy"] else "transformers" if "transformers" in row["policy"] else "lean"
        )
    return rows


def main() -> None:
    """Measure in float32 and bfloat16 and write ``pair-speed.json``."""
    args = arguments(__doc__)
    rows = [
        row
        for compression in ("none", "bf16")
        for row in measure(compression, args.per_task, args.rounds, args.max_new_tokens)
    ]
    for row in rows:
        if row["task"] == "all":
            console.print(
                f"{row['compression']:5} {row['policy']:34} {row['tokens_per_second']:7.1f} tokens/s  "
                f"{row['ratio_to_plain']:.2f}x plain "
                f"[{row['ratio_to_plain_low']:.2f}, {row['ratio_to_plain_high']:.2f}]  "
                f"{row['ratio_to_best_transformers']:.2f}x best transformers  "
                f"{row['mismatches']} mismatches",
                highlight=False,
            )
    save(args.out, "pair-speed.json", rows)


if __name__ == "__main__":
    main()
