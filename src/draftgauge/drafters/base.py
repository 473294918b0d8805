"""What a drafter is: it follows the committed text and proposes what comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.models.base import CachedModel
from draftgauge.models.engines.static import StaticModel
from draftgauge.policies.base import DropsLast, Extends, Policy, Signal

KeepDrafting = Callable[[Signal], bool]


class Draft(NamedTuple):
    """Proposed tokens.

    Attributes:
        probabilities: ``[drafted, vocabulary]`` float32, the distributions the tokens were *sampled from*, which
            accepting sampled tokens needs. None for greedy drafting, and one-hot for drafters without a distribution.
        signals: one per drafted token; empty if the drafter was not asked after each token.
        appended: how many of the tokens, the last ones, a policy looked up in the text
            (:class:`~draftgauge.policies.base.Extends`); they have neither distribution nor signal.
        dropped: how many drafted tokens a policy dropped (:class:`~draftgauge.policies.base.DropsLast`): they are no
            longer among ``tokens``, but have a signal.

    A drafter itself returns 0 for ``appended`` and ``dropped``.
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
        """Tokens that the drafter drafted, dropped ones included."""
        return self.kept + self.dropped


class UnreadDraft(NamedTuple):
    """Proposed tokens ``[g]`` int64, at least one, still on the device; those after an end token are ignored.

    ``probabilities`` are as of :class:`Draft`, ``[g, vocabulary]``.
    """

    tokens: Tensor
    probabilities: Tensor | None = None


class Drafter(Protocol):
    """Follows one sequence: ``prefill``, then ``propose`` and ``commit`` in turn."""

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence with the prompt's tokens."""

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Draft up to ``limit`` tokens after the committed text, fewer after an end token.

        ``keep_drafting`` is asked after each token except the last possible one. With None the draft goes up to the
        limit and has no signals, which saves computing them and, on an accelerator, waiting for each token. Signals
        hold what ``reads`` names; other values are NaN, and -1 for the token.
        """

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """The step committed ``tokens``: ``accepted`` drafted ones, then looked-up ones and the target's own."""


@runtime_checkable
class DraftsUnread(Protocol):
    """A drafter whose tokens can stay on the device until the step is over, if no policy reads their signals."""

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        """Draft ``limit`` tokens; None where ``propose`` must be called instead."""


@runtime_checkable
class CatchesUp(Protocol):
    """A drafter that must process the committed tokens it has not seen yet (its backlog) before it can propose.

    The backlog follows from the steps before, so replay can charge for it.
    """

    def keeps_drafted(self) -> bool:
        """Whether accepted tokens stay in its cache from drafting, and are not processed again."""

    def backlog(self) -> int:
        """Committed tokens that it must process before the next proposal."""


@runtime_checkable
class RunsModel(Protocol):
    model: CachedModel


@runtime_checkable
class Records(Protocol):
    """A drafter that records what it runs."""

    def record_passes(self, most: int, longest: int) -> None:
        """Record what drafts of up to ``most`` tokens run in texts of up to ``longest``."""


def record_passes(target: CachedModel, drafter: Drafter | None, gamma_max: int, longest: int) -> None:
    """Record on a GPU what steps with drafts of up to ``gamma_max`` tokens run, before something is timed.

    The caches are empty afterwards.
    """
    for model in (target, drafter.model if isinstance(drafter, RunsModel) else None):
        if isinstance(model, StaticModel):
            model.record(gamma_max + 1, longest)
    if isinstance(drafter, Records):
        drafter.record_passes(gamma_max, longest)


def completed(policy: Policy, draft: Draft, asked: int, room: int) -> Draft:
    """The draft that the target verifies.

    The policy may drop its last token (:class:`~draftgauge.policies.base.DropsLast`), and append tokens that it looks
    up in the text (:class:`~draftgauge.policies.base.Extends`). It has seen the first ``asked`` signals while drafting.
    At most ``room`` tokens may be proposed in all.
    """
    for signal in draft.signals[asked:]:
        policy.keep_drafting(signal)  # the drafter ended the draft; the policy still sees its last token
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
