"""How many committed tokens the drafter has to take in before each step of a walk: what its first pass depends on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftgauge.traces.costs import CostCurve

Ints = NDArray[np.int64]


def backlogs(prompt: Ints, drafted: Ints, accepted: Ints, costs: CostCurve) -> Ints:
    """The backlog before each step, as of :meth:`~draftgauge.traces.costs.CostCurve.backlog_after`; 1 at a prompt's
    first.

    Args:
        prompt: ``[S]`` of each step; the steps of a prompt are consecutive, in order.
        drafted, accepted: ``[S]`` tokens, the accepted ones with those that were looked up in the text.
    """
    steps = np.arange(len(prompt))
    first = np.append(True, prompt[1:] != prompt[:-1])
    drafts_before = np.append(False, drafted[:-1] > 0)
    # A step after one that drafted, or the first of a prompt, has a backlog of its own; each step after it that
    # follows one without a draft has what that one committed more.
    after = np.append(1, costs.backlog_after(1, drafted[:-1], accepted[:-1]))
    own = np.where(first, 1, after)
    source = np.maximum.accumulate(np.where(first | drafts_before, steps, 0))
    committed = np.append(0, np.cumsum(accepted[:-1] + 1))
    waiting: Ints = np.minimum(own[source] + committed - committed[source], costs.backlog_max)
    return waiting
