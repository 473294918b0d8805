"""Whether to speculate in an engine, how and how far: its settings on a trace with its costs, and how sure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from draftgauge.judging.batch_rows import batch_rows
from draftgauge.judging.fitting import FITTED
from draftgauge.judging.replay import Replay, plain_replay, replay, replay_fixed_all, replay_lengths
from draftgauge.judging.splits import EVERYTHING, Design
from draftgauge.judging.statistics.bootstrap import TEST_RESAMPLES, columns
from draftgauge.judging.verdict import LOOKUP as RULE
from draftgauge.judging.verdict import Verdict, recommend, verdict_of
from draftgauge.policies.spec import FIXED, make_policy
from draftgauge.policies.two_source import TWO_SOURCE
from draftgauge.serving.counters import SpeculationCounts
from draftgauge.serving.engines import ENGINES, LOOKUP, P_MIN, PLAIN, Deployment, Engine, p_min_of, setting_length
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, context_lengths, conversations, sum_by_prompt

Floats = NDArray[np.float64]
FITTED_FILE = f"{TWO_SOURCE}.json"


def advise_settings(
    design: Design,
    costs: CostCurve,
    settings: Sequence[str],
    command: str = "",
    measure: str = "",
    fitted: Mapping[str, Replay] | None = None,
) -> tuple[list[dict[str, Any]], Verdict]:
    """Judge settings (``plain`` among them, ``fixed:4``, ``p-min:0.8,16`` or a policy) on a trace, with what a step
    costs in the engine.

    The setting advised is the simplest that is level with the fastest, see
    :func:`~draftgauge.judging.verdict.recommended`. Of fixed lengths only the best one is a candidate, chosen on the
    design's training prompts where it has any.

    Args:
        command, measure: see :class:`~draftgauge.judging.verdict.Verdict`.
        fitted: finished replays, by the name of the setting.

    Returns:
        One row a setting, in their order; and the verdict. Rows have ``policy``, ``ratio_to_plain``,
        ``tokens_per_second``, ``tokens_per_step``, ``drafted_per_step``, ``appended_per_step``, ``acceptance_rate``,
        ``prompts``, ``cost_doubt`` and ``recommended``, as of :func:`~draftgauge.judging.evaluate.evaluate`.
    """
    trace = design.trace
    if trace.sampled is not None:  # the recorded signals are then of refused drafts
        settings = [setting for setting in settings if not setting.startswith(P_MIN)]
    replays = {setting: _run(setting, trace, costs) for setting in settings} | dict(fitted or {})
    numbers = conversations(trace)
    speeds = {setting: run.speed(numbers) for setting, run in replays.items()}
    plain = plain_replay(trace, costs).speed(numbers)

    def row(setting: str, run: Replay) -> dict[str, Any]:
        steps, drafted = float(run.steps.sum()), float(run.drafted.sum())
        proposed = drafted + float((run.appended - run.dropped).sum())
        return {
            "policy": setting,
            **columns("ratio_to_plain", speeds[setting].over(plain, TEST_RESAMPLES)),
            **columns("tokens_per_second", speeds[setting].interval(TEST_RESAMPLES)),
            "tokens_per_step": float(run.committed.sum()) / steps,
            "drafted_per_step": drafted / steps,
            "appended_per_step": float(run.appended.sum()) / steps,
            "acceptance_rate": float(run.accepted.sum()) / proposed if proposed else None,
            "prompts": len(trace.prompts),
            "cost_doubt": costs.doubt() or None,
        }

    rows = [row(setting, run) for setting, run in replays.items()]
    length = best_length(design, costs)
    recommend(rows, speeds, f"{FIXED}{length}" if length else PLAIN)
    return rows, verdict_of(rows, command, measure=measure)


def flags_of(
    engine: Engine, setting: str, deployment: Deployment, run: Path | None, split: str, tasks: Sequence[str] = ()
) -> str:
    """What to paste for a setting that was judged on a split of a run: before a fitted rule what fits it."""
    if setting == RULE:  # needs no draft model
        deployment = replace(deployment, drafter=LOOKUP, draft=LOOKUP)
    if setting != FITTED:
        return engine.flags(setting, deployment)
    learn = ["--split", split] if split == EVERYTHING else []
    learn += ["--tasks", ",".join(tasks)] if tasks else []
    fit = ["draftgauge", "fit", str(run), "--policy", TWO_SOURCE, *learn, "--out", FITTED_FILE]
    return f"{shlex.join(fit)}\n{engine.flags(FITTED_FILE, deployment)}"


SWITCHES = {"confidence-scheduled": "a checkpoint with DSpark's confidence head"} | {
    rule: f"{engine.name}: {how}" for engine in ENGINES.values() for rule, how in engine.adaptive.items()
}  # where engines have the rules for whole batches


def advise_batch(design: Design, costs: CostCurve, batch: int) -> str:
    """Whether rules that adapt to the load pay over the best fixed length in a batch, in words."""
    rows = batch_rows(design.trace, costs, [batch], tuple(SWITCHES))
    fixed = next(row for row in rows if row["best"])
    said = [f"At {batch} requests the best length is {fixed['gamma']} ({fixed['ratio_to_plain']:.2f} x plain)"]
    for row in rows:
        if row["gamma"] is None:
            low, high = row["gain_low"], row["gain_high"]  # NaN of a single prompt
            advice = f"switch it on ({SWITCHES[row['policy']]})" if low > 0 else "leave it off"
            unknown = "" if low > 0 or high < 0 else ", not known to pay"
            interval = "" if low != low else f" (95%: {low:+.1%} to {high:+.1%})"
            said.append(f"{row['policy']} {row['gain']:+.1%} over it{interval}{unknown}: {advice}")
    return "; ".join(said)


def thresholds(design: Design, curves: Mapping[int, CostCurve], lengths: Mapping[int, int]) -> str | None:
    """Tokens a second with both lengths, either side of each batch size at which the best one changes; None if none."""
    sizes, said = sorted(curves), []

    def rate(size: int, length: int) -> float:
        curve = curves[size]
        run = _run(f"{FIXED}{length}" if length else PLAIN, design.trace, curve)
        return size * float(run.committed.sum() / run.seconds.sum())

    for below, above in pairwise(sizes):
        if lengths[below] != lengths[above]:
            rates = [
                f"{rate(size, lengths[below]):.0f} with {lengths[below]} and {rate(size, lengths[above]):.0f} with "
                f"{lengths[above]} at {size} requests"
                for size in (below, above)
            ]
            said.append("; ".join(rates))
    return f"Tokens a second either side of a change of length: {'; '.join(said)}" if said else None


def server_row(design: Design, counts: SpeculationCounts | None) -> dict[str, Any]:
    """Tokens per step of a running server, beside what the trace predicts at its draft length."""
    if counts is None:
        return {}
    length = round(counts.length)
    row: dict[str, Any] = {"server_tokens_per_step": 1 + counts.accepted / counts.drafts}
    if counts.alike and length <= design.trace.gamma_max:
        outcome = replay_lengths(design.trace, np.full(design.trace.positions, length))
        row["expected_tokens_per_step"] = outcome.tokens_per_step
    return row


def best_length(design: Design, costs: CostCurve) -> int:
    """The best fixed length on training prompts where there are any; 0 where plain decoding is faster."""
    seconds = [run.seconds.sum() for run in replay_fixed_all(design.training, costs)]
    seconds[0] = plain_replay(design.training, costs).seconds.sum()
    return int(np.argmin(seconds))


def advised_length(design: Design, costs: CostCurve) -> int:
    """The best fixed length; 0 where plain decoding is level with it, as in the verdict."""
    length, numbers = best_length(design, costs), conversations(design.trace)
    plain = plain_replay(design.trace, costs).speed(numbers)
    drafting = _run(f"{FIXED}{length}", design.trace, costs).speed(numbers) if length else plain
    return 0 if plain.over(drafting, TEST_RESAMPLES).level else length


def _run(setting: str, trace: Trace, costs: CostCurve) -> Replay:
    if setting.startswith(P_MIN):
        return _p_min(trace, costs, *p_min_of(setting))
    if setting == PLAIN:
        return plain_replay(trace, costs)
    length = setting_length(setting)
    if length is None:
        return replay(trace, make_policy(setting, trace.gamma_max, costs), costs)
    return replay_lengths(trace, np.full(trace.positions, length), costs)


def _p_min(trace: Trace, costs: CostCurve, p_min: float, longest: int) -> Replay:
    """llama.cpp's rule: the first token below ``p_min`` ends the draft; it was drafted, and is not verified
    (``common_speculative_impl_draft_simple::draft`` in its ``common/speculative.cpp``). Its probabilities are of
    the ten most likely tokens, the recorded ones of all, so it drafts a little further than this says."""
    sure = trace.confidence[:, :longest].astype(np.float64) >= p_min
    lengths = np.where(sure.all(axis=1), sure.shape[1], sure.argmin(axis=1))
    outcome = replay_lengths(trace, lengths, costs)
    record = outcome.record
    rows = record.rows(trace)
    possible = np.minimum(trace.drafted[rows], longest)
    in_vain = (record.drafted < possible) & (record.drafted == lengths[rows])
    table = np.asarray(costs.draft)
    further = np.diff(np.append(table, table[:, -1:], axis=1), axis=1)  # [C, G + 1] seconds of one token more
    row = len(costs.contexts) // 2
    wasted = np.where(in_vain, further[row][record.drafted], 0.0)
    return replace(outcome, seconds=outcome.seconds + sum_by_prompt(record.prompt, wasted, len(trace.prompts)))


def acceptance_to_pay(trace: Trace, costs: CostCurve) -> float | None:
    """The least constant chance of acceptance at which some fixed length pays on average over a trace's positions. It
    is 0 if one does without any, None if none does at 1."""
    contexts, lengths = context_lengths(trace), np.arange(1, trace.gamma_max + 1)
    plain = np.interp(contexts, costs.contexts, costs.plain).mean()
    steps = np.array([costs.step_seconds(int(length), contexts).mean() for length in lengths]) / plain
    if (steps < 1).any():
        return 0.0

    def gain(chance: float) -> float:
        return float((np.cumsum(chance ** np.arange(trace.gamma_max + 1))[1:] - steps).max())

    return float(brentq(gain, 0, 1)) if gain(1) > 0 else None


def cost_ranges(committed: Sequence[float], drafted: Sequence[float]) -> list[dict[str, float | None]]:
    """For which costs of a drafted token each length is the best one, from what a step of it commits and drafts.

    A step of ``n`` drafted tokens is taken to last ``1 + c n`` plain steps. Returns ``best_from`` and ``best_below``
    of ``c`` by length: both None where it never is the best, ``best_below`` alone where it stays so at any cost.
    """

    def longer_below(short: int, long: int) -> float:
        """The cost below which the longer draft is the faster one."""
        gained = committed[long] - committed[short]
        lost = committed[short] * drafted[long] - committed[long] * drafted[short]
        return gained / lost if lost > 0 else math.inf if gained > 0 else 0.0

    ranges: list[dict[str, float | None]] = []
    for length in range(len(committed)):
        low = max((longer_below(length, other) for other in range(length + 1, len(committed))), default=0.0)
        high = min((longer_below(other, length) for other in range(length)), default=math.inf)
        never = max(low, 0.0) >= high
        ranges.append(
            {"best_from": None if never else max(low, 0.0), "best_below": None if never or high == math.inf else high}
        )
    return ranges
