"""Drafting by the length of the text so far: acceptance, and the length of drafts that pays there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftgauge.judging.replay import replay_lengths
from draftgauge.traces.costs import MAX_HALF_WIDTH, CostCurve, extended, laws_of
from draftgauge.traces.sampled import draws, path_chances
from draftgauge.traces.trace import Floats, Trace, context_lengths

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
