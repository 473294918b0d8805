"""What the rule of two sources decides by, at all positions of a trace at once and found once for each trace.

:mod:`draftgauge.policies.two_source` derives the rule, and decides token by token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.acceptance_model import AcceptanceModels, columns_of, last_tokens, states
from draftgauge.policies.base import TextView
from draftgauge.policies.suffix_columns import continuations_of, suffix_of
from draftgauge.policies.tail_model import TailModel, TailState
from draftgauge.policies.two_source_rule import Instead, TailSums, TwoSourceNumbers, logit, running_sums

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BOTH, _TEXT_ALONE = "two sources", "text alone"
"""Names of what is derived from a trace, see :attr:`~draftgauge.policies.base.TextView.derived`."""


class Decided(NamedTuple):
    """What the rule decides by at all positions of a trace, with drafts of up to ``G`` tokens.

    Attributes:
        chances: ``[P, G]`` ``S_j m_j``.
        sums: for each ``j`` over the tail's tokens.
        stand: ``[P, G + 1]`` ``S_j``.
    """

    chances: Floats
    sums: list[TailSums]
    stand: Floats

    def foretold(self, depth: int, rows: Ints) -> Floats:
        """``[n]`` the chance of the token that the text foretells after ``depth`` drafted ones which all stand."""
        chances: Floats = self.sums[depth].running[rows, 0] / self.stand[rows, depth]
        return chances

    def instead(self, depth: int, rows: Ints) -> Instead:
        """What is known of the token foretold in place of the last of ``depth`` drafted ones."""
        draft = self.stand[rows, depth] / self.stand[rows, depth - 1]
        return Instead(1.0, logit(self.foretold(depth - 1, rows)), logit(draft))


def first_sums(view: TextView, numbers: TwoSourceNumbers) -> TailSums:
    """:func:`decide` before the first drafted token, where no signal enters; kept with the trace."""
    cached = view.derived.get(_TEXT_ALONE)
    if cached is None or cached[0] != numbers.tail:
        suffix, none = suffix_of(view), np.zeros(len(view.token))
        foretold = continuations_of(view)[0]
        before = TailState(0, last_tokens(view), none + 1, none, none, suffix.habit, np.log1p(suffix.run))
        cached = numbers.tail, running_sums(TailModel(numbers.tail, foretold.cell.shape[1]).gains(before, foretold))
        view.derived[_TEXT_ALONE] = cached
    sums: TailSums = cached[1]
    return sums


def spoken_against(view: TextView, depth: int) -> NDArray[np.bool_]:
    """``[P]`` whether the text foretells another token in place of the last of ``depth`` drafted ones."""
    foretold, drafted = continuations_of(view)[depth - 1], view.draft_token[:, depth - 1]
    against: NDArray[np.bool_] = (foretold.cell[:, 0] > 0) & (drafted >= 0) & (foretold.token[:, 0] != drafted)
    return against


def decided_by(view: TextView, numbers: TwoSourceNumbers) -> Decided:
    """:func:`decide` for a trace, from what was derived before where it was of the same models."""
    stopping, tail = numbers.stopping, numbers.tail
    models = (
        *(stopping.hazard_by_agreement, stopping.hazard, stopping.next_by_order, stopping.next),
        *(stopping.tokens, stopping.token_hazard, stopping.token_next, tail),
    )
    cached = view.derived.get(_BOTH)
    if cached is None or cached[0] != models:
        longest = view.draft_token.shape[1]
        cached = models, decide(view, AcceptanceModels(stopping), TailModel(tail, longest))
        view.derived[_BOTH] = cached
    decided: Decided = cached[1]
    return decided


def decide(view: TextView, models: AcceptanceModels, tail: TailModel) -> Decided:
    """What the rule decides by at every position of a trace."""
    foretold, suffix = continuations_of(view), columns_of(view).suffix
    run = np.log1p(suffix.run)
    stand, stands, chances, sums = np.ones(len(view.token)), [], [], []
    for state in states(view):
        if state.depth:
            stand = stand * models.all_stand(state)
        stands.append(stand)
        if state.depth < len(foretold) - 1:
            chances.append(stand * models.all_next_stand(state))
        before = TailState(state.depth, state.token, stand, state.agreed, state.disagreed, suffix.habit, run)
        sums.append(running_sums(tail.gains(before, foretold[state.depth])))
    return Decided(np.stack(chances).T, sums, np.stack(stands).T)  # one column after the other, as they are read
