"""What policies would gain with a slower or faster drafter: the same trace, with the cost of drafting scaled.

How far to draft is decided by one dial more than by any other, the cost of a drafted token over that of a verification.
A trace does not depend on it, so one recorded pair represents many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.replaying.evaluate import MakeArms, Row, TuneRivals, evaluate_design
from draftgauge.replaying.splits import Design
from draftgauge.statistics.bootstrap import TEST_RESAMPLES
from draftgauge.traces.costs import CostCurve

RATIOS = (0.02, 0.04, 0.10, 0.25, 0.50)


def at_cost_ratio(costs: CostCurve, ratio: float) -> CostCurve:
    """The cost curve of a drafter at another :meth:`~draftgauge.traces.costs.CostCurve.cost_ratio`."""
    measured = costs.cost_ratio()
    if not 0 < ratio < float("inf"):
        raise DraftgaugeError(
            f"a cost ratio, a drafted token's time over a verification's, must be above 0, not {ratio:g}"
        )
    if measured <= 0:
        raise DraftgaugeError(
            f"the measured cost ratio is {measured:g}, so drafting costs cannot be scaled to another: measure the "
            "costs again"
        )
    factor = ratio / measured
    draft = tuple(tuple(row) for row in (np.asarray(costs.draft) * factor).tolist())
    return replace(costs, draft=draft, catch_up=tuple(added * factor for added in costs.catch_up))


def cost_sweep(
    design: Design,
    costs: CostCurve,
    make: MakeArms,
    ratios: Sequence[float] = RATIOS,
    *,
    tune: TuneRivals | None = None,
    resamples: int = TEST_RESAMPLES,
) -> list[Row]:
    """:func:`evaluate_design` at other cost ratios; the best fixed length is chosen again for each, policies are not
    fitted again.

    Returns:
        The rows, in the order of the ratios; each names its ``cost_ratio``.
    """
    rows = []
    for ratio in ratios:
        curve = at_cost_ratio(costs, ratio)
        evaluated = evaluate_design(design, curve, make, tune=tune, resamples=resamples)
        rows += [row | {"cost_ratio": ratio} for row in evaluated]  # as asked, without what rounding made of it
    return rows
