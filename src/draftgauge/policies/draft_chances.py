"""Both models of acceptance along one draft, token by token: what a rule that decides after every token can afford.

The models are linear in their terms, so what depends on the depth alone is a table, what depends on the text alone is
added once a step, and what depends on the draft is kept as running values. The same models over many positions are
:class:`~draftgauge.policies.acceptance_model.AcceptanceModels`.
"""

from __future__ import annotations

import math

from draftgauge.policies.acceptance_model import LEAST_CONFIDENCE, LEAST_DOUBT, AcceptanceModels
from draftgauge.policies.suffix import ORDER


class DraftChances:
    """The chances of one draft while it grows.

    Attributes:
        depth: tokens drafted.
        order: length of the ending of text and draft that the text holds already.
        stands: chance that the token drafted last stands where those before it do.
        next_stands: chance that one more would.
        all_stand: chance that all drafted tokens stand, ``S_j``.
        agreed, disagreed: how many of them were, and were not, what the text foretold.
    """

    def __init__(self, models: AcceptanceModels, longest: int) -> None:
        """Tabulate.

        Args:
            models: fitted; their biases are read at the start of every draft.
            longest: most tokens of a draft.
        """
        hazard, following = models.hazard, models.next
        self._models = models
        by_class = models.hazard_by_class
        # Indexed by an agreement, which is negative where something else was foretold.
        self._of_agreement = [*by_class[: ORDER + 1], *by_class[:ORDER:-1]]
        self._of_order = [(own.one, own.one + own.agrees, own.one + own.disagrees) for own in models.next_by_order]
        self._confidence_of_order = [own.log_confidence for own in models.next_by_order]
        logs = [math.log1p(depth) for depth in range(longest + 1)]
        self._hazard_of_depth = [hazard.log_depth * log + hazard.first * (at == 1) for at, log in enumerate(logs)]
        self._next_of_depth = [
            following.log_depth * log + following.first * (at == 1) + following.none * (at == 0)
            for at, log in enumerate(logs)
        ]
        self._hazard_weights = hazard.total, hazard.worst, hazard.previous, hazard.agreed, hazard.disagreed
        self._next_weights = (
            *(following.log_doubt, following.total, following.worst),
            *(following.agreed, following.disagreed),
        )
        self._token_hazard, self._token_next = models.token_hazard.of, models.token_next.of

    def begin(self, token: int, order: int, habit: float, log_run: float) -> float:
        """The chance that the first drafted token would stand.

        Args:
            token: the last one of the text, -1 if there is none.
            order: as of the class.
            habit: of the text, see :class:`~draftgauge.policies.suffix.SuffixIndex`.
            log_run: of the text, as ``log(1 + run)``.
        """
        models = self._models
        hazard, following = models.hazard, models.next
        self.depth, self.order, self.agreed, self.disagreed = 0, order, 0, 0
        self.stands = self.all_stand = 1.0
        self._total = self._worst = self._previous = 0.0
        self._hazard_of_text = models.hazard_bias + hazard.habit * habit + hazard.run * log_run
        self._next_of_text = models.next_bias + following.habit * habit + following.run * log_run
        logit = self._next_of_text + self._next_of_depth[0] + following.habit_at_none * habit
        logit += self._of_order[order][0] + self._token_next.get(token, 0.0)
        self.next_stands = 1 / (1 + math.exp(-logit))
        return self.next_stands

    def drafted(self, token: int, agrees: bool, order: int, confidence: float) -> float:
        """The chance ``S_j m_j`` that one more token and all before it would stand, now that a token is drafted.

        Args:
            token: the drafted one.
            agrees: whether it is what the text foretold; does not matter where the text foretold nothing.
            order: as of the class, behind this token.
            confidence: of it.
        """
        by_total, by_worst, by_previous, by_agreed, by_disagreed = self._hazard_weights
        next_by_doubt, next_by_total, next_by_worst, next_by_agreed, next_by_disagreed = self._next_weights
        before = self.order
        self.order = order
        depth = self.depth = self.depth + 1
        log_confidence = math.log(confidence if confidence > LEAST_CONFIDENCE else LEAST_CONFIDENCE)
        log_doubt = math.log(LEAST_DOUBT - log_confidence)
        total = self._total = self._total + log_confidence
        worst = self._worst
        if log_confidence < worst:
            worst = self._worst = log_confidence
        of_order = self._of_order[order]
        if not before:
            of_class, constant = self._of_agreement[0], of_order[0]
        elif agrees:
            self.agreed += 1
            of_class, constant = self._of_agreement[before], of_order[1]
        else:
            self.disagreed += 1
            of_class, constant = self._of_agreement[-before], of_order[2]
        agreed, disagreed = self.agreed, self.disagreed
        one, by_confidence, by_doubt = of_class
        logit = (
            self._hazard_of_text
            + self._hazard_of_depth[depth]
            + one
            + by_confidence * log_confidence
            + by_doubt * log_doubt
            + by_total * total
            + by_worst * worst
            + by_previous * self._previous
            + by_agreed * agreed
            + by_disagreed * disagreed
            + self._token_hazard.get(token, 0.0)
        )
        self._previous = log_confidence
        self.stands = 1 / (1 + math.exp(-logit))
        all_stand = self.all_stand = self.all_stand * self.stands
        logit = (
            self._next_of_text
            + self._next_of_depth[depth]
            + constant
            + self._confidence_of_order[order] * log_confidence
            + next_by_doubt * log_doubt
            + next_by_total * total
            + next_by_worst * worst
            + next_by_agreed * agreed
            + next_by_disagreed * disagreed
            + self._token_next.get(token, 0.0)
        )
        self.next_stands = 1 / (1 + math.exp(-logit))
        return all_stand * self.next_stands
