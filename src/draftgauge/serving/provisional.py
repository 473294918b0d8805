"""Advice before an engine's costs are known: from acceptance alone, and what measures them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.replay import replay_lengths
from draftgauge.policies.spec import FIXED
from draftgauge.serving.advice import cost_ranges
from draftgauge.serving.client import CLIENTS
from draftgauge.serving.engines import GGUF, LANGUAGE_MODEL, PLAIN, Engine, gguf_or
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import Manifest, Run
from draftgauge.traces.trace import Trace, context_lengths


def provisional(trace: Trace, costs: CostCurve, engine: Engine, run: Run) -> tuple[list[dict[str, Any]], str]:
    """Every fixed length by its acceptance alone, and what that says of an engine whose costs are not measured.

    Args:
        costs: of the run's own loop, whose cost of a drafted token stands in for the engine's.

    Returns:
        One row a length, 0 (plain) first, with ``best_from`` and ``best_below``; the advice in words.
    """
    replays = [replay_lengths(trace, np.full(trace.positions, length)) for length in range(trace.gamma_max + 1)]
    steps = [float(outcome.steps.sum()) for outcome in replays]
    committed = [float(outcome.committed.sum()) / n for outcome, n in zip(replays, steps, strict=True)]
    drafted = [float(outcome.drafted.sum()) / n for outcome, n in zip(replays, steps, strict=True)]
    here = token_cost(trace, costs)
    speeds = [tokens / (1 + here * n) for tokens, n in zip(committed, drafted, strict=True)]
    best, ranges = int(np.argmax(speeds)), cost_ranges(committed, drafted)
    rows = [
        {
            "policy": f"{FIXED}{length}" if length else PLAIN,
            "tokens_per_step": committed[length],
            "drafted_per_step": drafted[length],
            "acceptance_rate": accepted / drafted[length] / steps[length] if drafted[length] else None,
            "pays_below": committed[length],
            **ranges[length],
            "recommended": length == best,
        }
        for length, accepted in enumerate(float(outcome.accepted.sum()) for outcome in replays)
    ]
    pays, holds = ranges[0]["best_from"], ranges[best]
    assert pays is not None
    doubt = " (where costs are in doubt: profile again with --measure)" if costs.doubt() else ""
    cost = f"drafting and verifying a token costs {here:.3f} plain steps"
    until = "" if holds["best_below"] is None else f" to {holds['best_below']:.3f}"
    advice = f"draft with {FIXED}{best}: the best length from {holds['best_from'] or 0.0:.3f}{until}" if best else ""
    file = Path(f"{engine.name}-costs.json")
    again = "" if engine.loop else f", and `{_again(engine, run, file)}`"
    return rows, (
        f"Not known yet: what a step costs in {engine.name} is not measured. By acceptance alone, if {cost}, as in "
        f"draftgauge's own loop on {costs.device}{doubt}, {advice or 'do not draft'}. From {pays:.3f} on no "
        f"length pays. To settle it, {to_measure(engine, run.manifest, file)}{again}"
    )


def token_cost(trace: Trace, costs: CostCurve) -> float:
    """Plain steps that drafting and verifying a token costs: the median over lengths, at a trace's contexts."""
    contexts = context_lengths(trace)
    plain = float(np.interp(contexts, costs.contexts, costs.plain).mean())
    lengths = range(1, min(trace.gamma_max, costs.gamma_max) + 1)
    extra = [(float(costs.step_seconds(n, contexts).mean()) / plain - 1) / n for n in lengths]
    return max(0.0, float(np.median(extra)))


def refuse_costs(engine: Engine, run: Run, costs: Path) -> None:
    """Refuse costs that were measured in another engine's decoding loop."""
    if not engine.loop:
        file = Path(f"{engine.name}-costs.json")
        raise DraftgaugeError(
            f"what a step costs in {engine.name} is not known from {costs}: "
            f"{to_measure(engine, run.manifest, file)}, and `{_again(engine, run, file)}` (docs/serving.md says more)"
        )
    recorded = run.manifest.target.engine
    if not engine.priced_by(recorded):
        again = "a run with --target TARGET.gguf" if engine.name == "gguf" else "one with the model it was made from"
        raise DraftgaugeError(
            f"{run} was recorded with the engine {recorded}, whose costs are not those of {engine.name}: record "
            f"{again}, or give costs with --costs"
        )


def _again(engine: Engine, run: Run, file: Path) -> str:
    return shlex.join(["draftgauge", "advise", str(run), "--engine", engine.name, "--costs", str(file)])


def to_measure(engine: Engine, manifest: Manifest, file: Path) -> str:
    """What to do to have a file of what a step costs in a serving engine."""
    if engine.loop:
        target = f"TARGET{GGUF}" if engine.name == "gguf" else "TARGET"
        words = ["draftgauge", "profile", "--target", target, "--drafter", "DRAFTER"]
        words += ["--prompts", manifest.prompts.path]
        return f"record a run there: `{shlex.join([*words, '--out', f'{engine.name}-run'])}`"
    if engine.name not in CLIENTS:
        return f"write what a step takes there to {file} (docs/costs.md shows how)"
    kind, draft = manifest.drafter, manifest.draft
    target, source = manifest.target.source, None if draft is None else draft.source
    if engine.name == "llama-server":
        target, source = gguf_or(target, "TARGET"), source and gguf_or(source, "DRAFT")
    words = ["draftgauge", "costs", "--start", "--engine", engine.name, "--target", target]
    words += ["--drafter", source or kind]
    if source is not None and kind != LANGUAGE_MODEL:
        words += ["--kind", (draft and draft.family) or kind]
    return (
        f"run `{shlex.join([*words, '--out', str(file)])}`, which starts {engine.name} here, measures it and stops it"
    )
