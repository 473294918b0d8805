"""Replay of a sampled trace against live sampling: tokens a step, drafted and committed, within standard errors.

The replay averages over the outputs that were recorded, live decoding over outputs of its own, so both have an error;
the table says how many live runs of a prompt would give an error as small as that of one recorded output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from common import arguments, console, save, show_progress
from numpy.typing import NDArray

from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.runs import first_per_task, prompt_file
from draftgauge.core.prompts import Prompt, read_prompts
from draftgauge.core.seeds import derive_seed
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.policies.registry import make_policy
from draftgauge.replaying import replay
from draftgauge.traces.build import make_trace
from draftgauge.traces.trace import Trace
from draftgauge.verification import Sampling

POLICIES = (
    "fixed:1",
    "fixed:2",
    "fixed:4",
    "fixed:8",
    "hf-confidence:0.4",
    "cumulative-confidence:0.3",
    "hf-heuristic",
)
TEMPERATURES = (0.6, 1.0)
GAMMA_MAX = 8
Sums = NDArray[np.float64]  # [rounds, prompts, 3]: tokens, steps, drafted tokens


def main() -> None:
    """Record ``--rounds`` outputs of every prompt, decode it as often live, and write ``sampled-live.json``."""
    args = arguments(__doc__)
    pair = load_pair()
    prompts = first_per_task(read_prompts(prompt_file(None)), args.per_task)
    rows: list[dict[str, Any]] = []
    for temperature in TEMPERATURES:
        settings = DecodingSettings(args.max_new_tokens, Sampling(temperature), pair.end_tokens)
        traces = []
        for seed in range(args.rounds):
            show_progress(f"record T {temperature}", seed, args.rounds)
            traces.append(record(pair, prompts, settings, seed))
        for name in POLICIES:
            row = {"policy": name, "temperature": temperature, "max_new_tokens": args.max_new_tokens}
            rows.append(row | compare(replayed(traces, name), live(pair, prompts, settings, name, args.rounds)))
            show(rows[-1])
    save(args.out, "sampled-live.json", rows)


def record(pair: Pair, prompts: list[Prompt], settings: DecodingSettings, seed: int) -> Trace:
    """One output of every prompt with its chances."""
    drawing = torch.Generator(pair.target.spec.device).manual_seed(derive_seed(seed, "record"))
    drafter = pair.drafter(settings.sampling, drawing)
    records = [
        record_prompt(
            pair.target, drafter, p, pair.encode(p), RecordingPlan(settings, GAMMA_MAX), pair.tokenizer, drawing
        )
        for p in prompts
    ]
    return make_trace(records, settings.max_new_tokens)


def replayed(traces: list[Trace], name: str) -> Sums:
    """Expectations of a policy on every recorded output."""
    outcomes = [replay(trace, make_policy(name, GAMMA_MAX)) for trace in traces]
    return np.array([np.stack([o.committed, o.steps, o.drafted], axis=1) for o in outcomes], np.float64)


def live(pair: Pair, prompts: list[Prompt], settings: DecodingSettings, name: str, rounds: int) -> Sums:
    """The same prompts decoded live, with draws that the traces have not seen."""
    policy = make_policy(name, GAMMA_MAX)
    sums = np.zeros((rounds, len(prompts), 3))
    for index in range(rounds):
        drawing = torch.Generator(pair.target.spec.device).manual_seed(derive_seed(index, "live", name))
        drafter = pair.drafter(settings.sampling, drawing)
        for place, prompt in enumerate(prompts):
            out = speculative_decode(pair.target, drafter, policy, pair.encode(prompt), settings, drawing)
            sums[index, place] = len(out.tokens), len(out.steps), sum(step.drafted for step in out.steps)
    return sums


def compare(model: Sums, found: Sums) -> dict[str, Any]:
    """Ratios of sums with standard errors within prompts (the prompts are the same), and their distance in those."""
    row: dict[str, Any] = {"rounds": len(found), "prompts": found.shape[1]}
    for label, above in (("tokens_per_step", 0), ("drafted_per_step", 2)):
        (value, error), (truth, noise) = ratio(model, above), ratio(found, above)
        row |= {
            f"replayed_{label}": value,
            f"replayed_{label}_error": error,
            f"live_{label}": truth,
            f"live_{label}_error": noise,
            f"{label}_distance": (value - truth) / np.hypot(error, noise) if error or noise else 0.0,
            f"{label}_live_runs_per_output": (noise / error) ** 2 if error else None,
        }
    return row


def ratio(sums: Sums, above: int) -> tuple[float, float]:
    """A ratio of sums to steps and its standard error over draws (delta method, variance within prompts)."""
    total = sums.sum((0, 1))
    value = total[above] / total[1]
    residual = sums[..., above] - value * sums[..., 1]
    variance = residual.var(axis=0, ddof=1).sum() * len(sums) if len(sums) > 1 else float("nan")
    return float(value), float(np.sqrt(variance) / total[1])


def show(row: dict[str, Any]) -> None:
    """One line."""
    model, live = (
        f"{row[f'{kind}_tokens_per_step']:.3f} ± {row[f'{kind}_tokens_per_step_error']:.3f}"
        for kind in ("replayed", "live")
    )
    console.print(
        f"T {row['temperature']}  {row['policy']:26} tokens/step {model} replayed, {live} live, "
        f"{row['tokens_per_step_distance']:+.1f} "
        f"errors apart; drafted/step {row['drafted_per_step_distance']:+.1f} errors apart",
        highlight=False,
    )


if __name__ == "__main__":
    main()
