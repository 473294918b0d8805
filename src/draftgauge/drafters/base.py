"""What a drafter is: it follows the committed text and proposes what comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import DropsLast, Extends, Policy, Signal

KeepDrafting = Callable[[Signal], bool]


class Draft(NamedTuple):
    """Proposed tokens.

    Attributes:
        probabilities: ``[drafted, vocabulary]`` float32, the distributions the tokens were *sampled from* (needed
            to accept sampled tokens); None for greedy drafting and for drafters that propose without a distribution
            (one-hot then).
        signals: one per drafted token; empty if the drafter was not asked after each token.
        appended: how many of the tokens, the last ones, a policy looked up in the text
            (:class:`~draftgauge.policies.base.Extends`); they have neither distribution nor signal. 0 in what drafters
            propose.
        dropped: how many drafted tokens a policy left out (:class:`~draftgauge.policies.base.DropsLast`): they are not
            among ``tokens``, but have a signal. 0 in what drafters propose.
    """

    tokens: list[int]
    probabilities: Tensor | None = None
    signals: Sequence[Signal] = ()
    appended: int = 0
    dropped: int = 0

    @property
    def kept(self) -> int:
        return len(self.tokens) - self.appended

    @property
    def drafted(self) -> int:
        """Tokens that the drafter drafted, those left out included."""
        return self.kept + self.dropped


class UnreadDraft(NamedTuple):
    """Proposed tokens ``[g]`` int64, at least one, that only the device knows; what follows an end token counts for
    nothing.

    ``probabilities`` are as of :class:`Draft`, ``[g, vocabulary]``.
    """

    tokens: Tensor
    probabilities: Tensor | None = None


class Drafter(Protocol):
    """Follows one sequence: ``prefill``, then ``propose`` and ``commit`` in turn."""

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence with the prompt's tokens."""
        ...

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Draft up to ``limit`` tokens after the committed text, fewer after an end token.

        ``keep_drafting`` is asked after each token but the last possible one; None drafts to the limit and makes no
        signals, which saves their cost and, on an accelerator, a wait for each token. Signals hold what is in
        ``reads``; the rest is NaN, and -1 for the token.
        """
        ...

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """The step committed ``tokens``: ``accepted`` of the proposal, then appended ones and the target's own."""
        ...


@runtime_checkable
class DraftsUnread(Protocol):
    """A drafter whose tokens can stay on the device until the step is over, where no policy looks at them."""

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        """Draft ``limit`` tokens; None where ``propose`` is the better way."""
        ...


@runtime_checkable
class CatchesUp(Protocol):
    """A drafter whose proposals first take in the committed tokens that it has not seen, and cost more the more there
    are.

    Their number follows from the steps before, so that replay can charge for it.
    """

    def keeps_drafted(self) -> bool:
        """Whether accepted tokens that it has taken in while drafting are kept, not taken in anew."""
        ...

    def backlog(self) -> int:
        """Committed tokens that the next proposal takes in first."""
        ...


@runtime_checkable
class RunsModel(Protocol):
    model: CachedModel


def completed(policy: Policy, draft: Draft, asked: int, room: int) -> Draft:
    """A draft as the target is to verify it: without its last token where the policy drops it
    (:class:`~draftgauge.policies.base.DropsLast`), and with what it looks up in the text
    (:class:`~draftgauge.policies.base.Extends`).

    The policy was asked about the first ``asked`` signals while drafting; ``room`` tokens may be proposed in all.
    """
    for signal in draft.signals[asked:]:
        policy.keep_drafting(signal)  # drafting ended by itself; the policy is to know with which token
    tokens = draft.tokens
    drops = isinstance(policy, DropsLast) and bool(tokens) and draft.probabilities is None and policy.drops_last()
    kept = tokens[:-1] if drops else tokens
    room -= len(kept)
    appended = list(policy.extend(room))[:room] if room > 0 and isinstance(policy, Extends) else []
    if not drops and not appended:
        return draft
    return Draft([*kept, *appended], draft.probabilities, draft.signals, len(appended), int(drops))


def device_of(drafter: Drafter, default: torch.device) -> torch.device:
    return drafter.model.spec.device if isinstance(drafter, RunsModel) else default


def keeps_drafted(drafter: Drafter) -> bool:
    return drafter.keeps_drafted() if isinstance(drafter, CatchesUp) else True


def backlog_of(drafter: Drafter) -> int:
    return drafter.backlog() if isinstance(drafter, CatchesUp) else 0
