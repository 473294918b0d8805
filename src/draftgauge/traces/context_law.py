"""What a pass costs by the length of the texts: ``f(tokens) + c * sum of context lengths``, fitted and extended."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.traces.costs import FAR, CostCurve

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ContextLaw:
    """Seconds of passes that read every token of their texts once.

    Attributes:
        fixed: ``[groups]`` seconds of each group of passes without any text.
        slope: seconds a token of the texts of all requests together.
        error: the largest deviation of a measured pass from the law, as a share of it.
    """

    fixed: Floats
    slope: float
    error: float

    def seconds(self, texts: ArrayLike) -> Floats:
        """``[groups, ...]`` seconds at sums of context lengths."""
        return self.fixed.reshape(-1, *(1,) * np.ndim(texts)) + self.slope * np.asarray(texts, np.float64)


def fit_law(texts: ArrayLike, seconds: ArrayLike) -> ContextLaw:
    """The law of passes ``[groups, contexts]``, two contexts or more, by least squares with one slope for all groups.

    Args:
        texts: sums of the context lengths of the requests of a pass, broadcast.
        seconds: of the passes.
    """
    y = np.asarray(seconds, np.float64)
    x = np.broadcast_to(np.asarray(texts, np.float64), y.shape)
    apart = x - x.mean(axis=1, keepdims=True)
    slope = max(0.0, float((apart * y).sum() / (apart**2).sum()))  # a longer text is not read in less time
    fixed = (y - slope * x).mean(axis=1)
    return ContextLaw(fixed, slope, float(np.abs((fixed[:, None] + slope * x) / y - 1).max()))


def laws_of(costs: CostCurve) -> tuple[ContextLaw, ContextLaw] | None:
    """Laws of verification, plain decoding in its last group, and of drafting one token; None of a single context."""
    if len(costs.contexts) < 2:
        return None
    verify = np.vstack([np.asarray(costs.verify).T, costs.plain])
    tokens = np.arange(1, costs.gamma_max + 1)
    return fit_law(costs.contexts, verify), fit_law(costs.contexts, np.asarray(costs.draft)[:, 1:].T / tokens[:, None])


def extended(costs: CostCurve) -> CostCurve:
    """The curve with its law beyond the longest context measured; as it is if there is one context only."""
    laws = laws_of(costs)
    if laws is None or costs.contexts[-1] >= FAR:
        return costs
    further, tokens = FAR - costs.contexts[-1], np.arange(costs.gamma_max + 1)
    verify = np.asarray(costs.verify[-1]) + laws[0].slope * further
    draft = np.asarray(costs.draft[-1]) + laws[1].slope * further * tokens
    return replace(
        costs,
        contexts=(*costs.contexts, FAR),
        verify=(*costs.verify, tuple(verify.tolist())),
        draft=(*costs.draft, tuple(draft.tolist())),
        plain=(*costs.plain, costs.plain[-1] + laws[0].slope * further),
    )
