"""What a step costs in a server whose proposers are its own: from how long it took at several fixed lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftgauge.core.errors import TraceError
from draftgauge.traces.engine_costs import BY_ENGINE, EngineCosts, fitted_line

LONGEST = 16
MIN_DRAFT = 1e-6  # seconds of drafting a token: a cost must be greater than 0


def costs_of_steps(
    engine: str, plain: Sequence[float], steps: Mapping[int, Sequence[float]], draft: Sequence[float] = ()
) -> EngineCosts:
    """Costs of single sequences; lengths between and beyond those served are on lines through their medians.

    Args:
        plain: seconds of a step without speculation, one for each output.
        steps: fixed length -> seconds of a step that drafts and verifies so many tokens, one for each output.
        draft: seconds of a token of the draft model served by itself, which may take longer than one within a step. So
            drafting is at most what a step takes beyond a plain one, and both parts add up to the step. Without it all
            of that counts as drafting, which is right for fixed lengths only.
    """
    if not steps:
        raise TraceError("costs need a server at a fixed length or more: name one, e.g. fixed:4=URL")
    whole = np.array(fitted_line({0: list(plain)} | {n: list(seconds) for n, seconds in steps.items()}, LONGEST))
    beyond = np.maximum.accumulate(np.maximum(whole - whole[0], np.arange(LONGEST + 1) * MIN_DRAFT))
    alone = np.arange(LONGEST + 1) * float(np.median(draft)) if len(draft) else beyond
    verifying = beyond - np.minimum(alone, beyond)
    verifying = np.minimum.accumulate(verifying[::-1])[::-1]  # a pass of more tokens is not shorter
    drafting, verify = beyond - verifying, whole[0] + verifying
    return EngineCosts(
        engine=engine,
        batches=(1,),
        plain=(float(whole[0]),),
        verify=(tuple(verify.tolist()),),
        draft=(tuple(drafting.tolist()),),
        drafted_by=BY_ENGINE,
        provenance=f"servers at fixed lengths {', '.join(map(str, sorted(steps)))}",
    )
