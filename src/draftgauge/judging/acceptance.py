"""Acceptance by depth, given that all before were accepted, and by the length of the text; which lengths pay there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.judging.evaluate import Row, task_masks
from draftgauge.judging.replay import replay_lengths
from draftgauge.judging.statistics.bootstrap import RESAMPLES, columns, ratio_interval
from draftgauge.traces.costs import MAX_HALF_WIDTH, CostCurve, extended, laws_of
from draftgauge.traces.sampled import draws, path_chances
from draftgauge.traces.trace import Floats, Trace, context_lengths, conversations, prompt_of_rows, sum_by_prompt

CONTEXTS = (  # tokens of text
    (0, 1024, "under 1k"),
    (1024, 4096, "1k to 4k"),
    (4096, 16384, "4k to 16k"),
    (16384, 65536, "16k to 64k"),
    (65536, 1 << 40, "64k and more"),
)
FEW = 20  # positions: of fewer, nothing is said of a range
ASKED = tuple(1 << power for power in range(8, 18))  # context lengths that advice is given for
REACH = 8  # times the longest context that costs were measured at: farther the law says too little
Rates = Mapping[str, Sequence[float]]


def acceptance_by_depth(trace: Trace, *, resamples: int = RESAMPLES) -> list[Row]:
    """Conditional acceptance rates ``alpha_k`` of every task, and of all prompts together, over all positions of a
    trace.

    ``alpha_k`` is the share of accepted tokens among those drafted at depth ``k`` whose ``k - 1`` predecessors were
    accepted. Tokens drafted past the end of the recorded output are left out: what the target would have said there is
    not known.

    Returns:
        Rows with ``compression``, ``task``, ``depth`` (1..gamma_max), ``alpha`` with ``_low`` and ``_high``, and
        ``positions``: how many reached that depth. ``alpha`` is None where nothing did. The interval is 95%, resampled
        by prompt, the turns of a conversation together; None for one prompt. For sampled decoding rates are means of
        chances, and ``positions`` is an average.
    """
    conversation = conversations(trace)
    reached, accepted = sums_by_depth(trace)
    rows: list[Row] = []
    for task, mask in task_masks(trace):
        chosen = np.unique(conversation[mask])
        for depth, (above, below) in enumerate(zip(accepted, reached, strict=True), start=1):
            rate = ratio_interval(above[chosen], below[chosen], resamples=resamples)
            rows.append(
                {
                    "compression": trace.compression,
                    "task": task,
                    "depth": depth,
                    **{key: None if math.isnan(value) else value for key, value in columns("alpha", rate).items()},
                    "positions": round(below[chosen].sum()),
                }
            )
    return rows


def sums_by_depth(trace: Trace) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """How many drafts reached each depth, and of how many the token there was accepted: ``[conversations]`` each."""
    conversation = conversations(trace)
    number, count = conversation[prompt_of_rows(trace)], int(conversation.max()) + 1
    reach, acceptance = map(np.nan_to_num, path_chances(trace))
    reached, accepted = ([sum_by_prompt(number, part, count) for part in of.T] for of in (reach, reach * acceptance))
    return reached, accepted


def acceptance_by_context(trace: Trace) -> dict[str, list[float]]:
    """Conditional acceptance at depth 1, 2, ... by the range of :data:`CONTEXTS` that positions lie in.

    Depths that fewer than :data:`FEW` positions reached are left out, and so are ranges without any.
    """
    contexts = context_lengths(trace)
    reach, acceptance = map(np.nan_to_num, path_chances(trace))
    found: dict[str, list[float]] = {}
    for least, most, name in CONTEXTS:
        inside = (contexts >= least) & (contexts < most)
        reached, accepted = reach[inside].sum(axis=0), (reach * acceptance)[inside].sum(axis=0)
        rates = [float(a / r) for a, r in zip(accepted, reached, strict=True) if r >= FEW]
        found |= {name: rates} if rates else {}
    return found


def shown(rates: Rates) -> str:
    return "; ".join(f"{name} {' '.join(f'{rate:.2f}' for rate in of)}" for name, of in rates.items())


def committed_by_context(trace: Trace, longest: int) -> dict[int, Floats]:
    """Tokens that a step of 0 to ``longest`` drafted ones commits, by the place in :data:`CONTEXTS` where it begins.

    Steps of a fixed length begin where drafts failed more often than positions at large, so rates of all positions
    would promise too much. Ranges in which the longest has fewer than :data:`FEW` steps are left out.
    """
    contexts, walks = context_lengths(trace), [trace] if trace.sampled is None else list(draws(trace))
    found: dict[int, list[float]] = {}
    for length in range(longest + 1):
        records = [replay_lengths(walk, np.full(trace.positions, length)).record for walk in walks]
        at = contexts[np.concatenate([record.rows(trace) for record in records])]
        committed = np.concatenate([record.committed for record in records])
        for place, (least, most, _) in enumerate(CONTEXTS):
            inside = committed[(at >= least) & (at < most)]
            if len(inside) >= FEW * len(walks):
                found.setdefault(place, []).append(float(inside.mean()))
    return {place: np.array(of) for place, of in found.items() if len(of) > longest}


def lengths_by_context(trace: Trace, costs: CostCurve) -> dict[int, int]:
    """The best fixed length at each context length of :data:`ASKED`, 0 where none pays. It is empty where costs are
    known at one context only, or no range holds enough steps.

    What steps commit beyond the ranges recorded is taken to be that of the nearest one.
    """
    if laws_of(costs) is None or not (known := committed_by_context(trace, min(trace.gamma_max, costs.gamma_max))):
        return {}
    curve, lengths = extended(costs), {}
    for context in (length for length in ASKED if length <= REACH * costs.contexts[-1]):
        place = next(at for at, (_, most, _) in enumerate(CONTEXTS) if context < most)
        tokens = known[min(known, key=lambda at: (abs(at - place), at))]
        steps = curve.step_seconds(np.arange(len(tokens)), context)
        steps[0] = np.interp(context, curve.contexts, curve.plain)
        lengths[context] = int((tokens / steps).argmax())
    return lengths


def advice_by_context(trace: Trace, costs: CostCurve) -> str | None:
    """How far to draft at which context lengths, and the error of the law of costs. None where lengths do not differ or
    the law does not hold."""
    laws, lengths = laws_of(costs), lengths_by_context(trace, costs)
    if laws is None or laws[0].error > MAX_HALF_WIDTH or len(set(lengths.values())) < 2:
        return None
    ranges: list[tuple[int, int]] = []  # length, the longest context that it is best at
    for context, length in lengths.items():
        ranges = [*(ranges[:-1] if ranges and ranges[-1][0] == length else ranges), (length, context)]
    said = [f"{f'draft {length}' if length else 'draft none'} up to {most}" for length, most in ranges[:-1]]
    last = f"{ranges[-1][0] or 'none'} beyond"
    known = f"costs follow the sum of context lengths to within {laws[0].error:.0%}, acceptance is recorded"
    return f"{', '.join(said)} tokens of context, {last} ({known} up to {int(context_lengths(trace).max())})"
