"""Calibration that goes on while a policy runs."""

from __future__ import annotations

from draftgauge.policies.base import Step

_LEARNING_RATE = 0.005
_REMEMBERED = 400  # steps that the rate is an average of
_PROBE_EVERY = 32  # steps without a draft


class OnlineCalibration:
    """What an online policy learns: two constants on the scale of logits, and the rate."""

    def __init__(self, rate: float) -> None:
        self._hazard = self._next = 0.0
        self._tokens, self._seconds = rate, 1.0
        self._started = False
        self._idle = 0
        self._stands: list[float] = []
        self._chances: list[float] = []

    def begin(self, chance: float) -> None:
        """A step begins with this chance for its first token."""
        self._stands, self._chances = [], [chance]

    def note(self, stands: float, chance: float) -> None:
        """The chances at a drafted token: that it stands, and that one more would."""
        self._stands.append(stands)
        self._chances.append(chance)

    def probes(self, worth: bool) -> bool:
        """Whether to draft one token although none is worth it."""
        self._idle = 0 if worth else self._idle + 1
        if self._idle < _PROBE_EVERY:
            return False
        self._idle = 0
        return True

    def learn(self, step: Step, seconds: float) -> tuple[float, float, float]:
        """Both constants and the rate after a step of stochastic gradient descent on the judged tokens' log loss."""
        for depth in range(min(step.accepted + 1, step.drafted)):
            outcome = float(depth < step.accepted)
            if depth < len(self._stands):
                self._hazard += _LEARNING_RATE * (outcome - self._stands[depth])
            self._next += _LEARNING_RATE * (outcome - self._chances[depth])
        if not self._started:  # the fitted rate counts as so many steps like this one
            self._tokens, self._seconds, self._started = (
                self._tokens * _REMEMBERED * seconds,
                _REMEMBERED * seconds,
                True,
            )
        forget = 1 - 1 / _REMEMBERED
        self._tokens = forget * self._tokens + step.committed
        self._seconds = forget * self._seconds + seconds
        return self._hazard, self._next, self._tokens / self._seconds
