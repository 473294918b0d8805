"""vLLM's adaptive verification: learned chances that drafted tokens survive, against the cost of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import (
    LEAST_PROBABILITY,
    Policy,
    PolicyBase,
    Signal,
    Step,
    check_tokens,
    seconds_by_length,
    sigmoid,
)
from draftgauge.policies.spec import register_policy
from draftgauge.traces.costs import CostCurve

_RIDGE = 1e-3
_LEAST_OBSERVATIONS = 50  # of a depth in a round; with fewer its coefficients stay


@dataclass
class Depth:
    """The chance at one depth, ``sigmoid(weight * margin + bias)``, and the sums since the last refit."""

    weight: float = 0.0
    bias: float = 1.5
    count: int = 0
    squares: float = 0.0  # curvature: sums of p (1 - p) times margin^2, margin, 1
    cross: float = 0.0
    ones: float = 0.0
    slope: float = 0.0  # gradient: sums of (label - p) times margin, 1
    level: float = 0.0

    def chance(self, margin: float) -> float:
        return sigmoid(self.weight * margin + self.bias)

    def add(self, margin: float, accepted: bool) -> None:
        chance = self.chance(margin)
        curvature, residual = chance * (1.0 - chance), accepted - chance
        self.count += 1
        self.squares += curvature * margin * margin
        self.cross += curvature * margin
        self.ones += curvature
        self.slope += residual * margin
        self.level += residual

    def refit(self) -> Depth:
        """One Newton step, then fresh sums; no step if too little was seen or the weight would become negative."""
        if self.count < _LEAST_OBSERVATIONS:
            return Depth(self.weight, self.bias)
        squares, ones = self.squares + _RIDGE, self.ones + _RIDGE
        determinant = squares * ones - self.cross * self.cross  # at least the square of the ridge
        weight = self.weight + (ones * self.slope - self.cross * self.level) / determinant
        bias = self.bias + (squares * self.level - self.cross * self.slope) / determinant
        return Depth(weight, bias) if weight >= 0 else Depth(self.weight, self.bias)


class LearnedChances:
    """Chances that the tokens at ``gamma`` depths are accepted where those before them are, learned from steps that
    drafted. They are refitted after every ``refit`` of these, and ``ready`` after ``warm_up`` such rounds."""

    def __init__(self, gamma: int, refit: int, warm_up: int) -> None:
        self._refit, self._warm_up, self._steps = refit, refit * warm_up, 0
        self._depths = [Depth() for _ in range(gamma)]

    @property
    def ready(self) -> bool:
        return self._steps >= self._warm_up

    def chance(self, signal: Signal) -> float:
        return self._depths[signal.depth - 1].chance(logit_margin(signal))

    def observe(self, step: Step) -> None:
        """Count the judged tokens (the accepted ones and the first rejected one), and refit when it is time."""
        if step.drafted == 0:
            return
        for depth, signal in zip(self._depths, step.signals[: step.accepted + 1], strict=False):
            depth.add(logit_margin(signal), signal.depth <= step.accepted)
        self._steps += 1
        if self._steps % self._refit == 0:
            self._depths = [depth.refit() for depth in self._depths]


class OnlineAcceptance:
    """Chances of acceptance as vLLM 0.33 learns them: ``sigmoid(weight * f + bias[k])`` at depth ``k``.

    ``f`` is the log-odds of the drafter's likeliest token; all depths share one weight.

    ``OnlineAcceptanceEstimator`` in ``vllm/v1/worker/gpu/spec_decode/acceptance_estimator.py``: every 100 steps one
    Newton step with a ridge, damped by ``n / (n + 50)`` for ``n`` observations. Drafts are trimmed from the start.
    """

    REFIT, DAMPING, MOST = 100, 50.0, 40.0

    def __init__(self, gamma: int) -> None:
        self.weight, self.biases = 0.5, np.full(gamma, -0.2)
        self._steps, self._sums = 0, np.zeros((6, gamma))  # of curvature a, b, c, of gradient g0, g1, and counts

    def features(self, signals: Sequence[Signal]) -> NDArray[np.float64]:
        q = np.array([signal.confidence for signal in signals], np.float64)
        with np.errstate(divide="ignore"):
            return np.asarray(np.clip(np.log(q) - np.log1p(-q), -self.MOST, self.MOST))

    def chances(self, signals: Sequence[Signal]) -> NDArray[np.float64]:
        return np.asarray(expit(self.weight * self.features(signals) + self.biases[: len(signals)]))

    def add(self, signals: Sequence[Signal], accepted: int) -> None:
        """The verified tokens of a request, of which so many were accepted: these and the first rejected one count."""
        judged = signals[: accepted + 1]
        f, p, n = self.features(judged), self.chances(judged), len(judged)
        curvature, residual = p * (1 - p), (np.arange(n) < accepted) - p
        self._sums[:, :n] += (curvature * f * f, curvature * f, curvature, residual * f, residual, np.ones(n))

    def step(self) -> None:
        """A step of the batch is over: refit when it is time."""
        self._steps += 1
        if self._steps % self.REFIT:
            return
        a, b, c, g0, g1, n = self._sums
        c = c + _RIDGE
        moved = (g0.sum() - (b * g1 / c).sum()) / (a.sum() + _RIDGE - (b * b / c).sum())
        moved *= n.sum() / (n.sum() + self.DAMPING)
        moved = moved if self.weight + moved >= 0 else 0.0
        self.weight += moved
        self.biases = self.biases + (g1 - b * moved) / c * (n / (n + self.DAMPING))
        self._sums = np.zeros_like(self._sums)


class AdaptiveVerification(PolicyBase):
    """Drafts on while the expected tokens per second rise: survival probabilities over the measured cost of a step.

    vLLM, ``enable_adaptive_verification`` (docs/features/speculative_decoding/adaptive_verification.md;
    ``adaptive_verification.py`` and ``acceptance_estimator.py`` in vllm/v1/worker/gpu/spec_decode). A token's chance of
    acceptance is a logistic function of the draft's top-2 logit margin, one for each depth. A Newton step moves it
    every ``refit`` steps. In the first ``warm_up`` such rounds whole blocks of ``gamma`` tokens are verified, so that
    the labels are not censored. Survival is the running product of the chances. What is learned carries over from
    prompt to prompt, as in a server.

    vLLM drafts every block whole and then picks the ``b`` with the most ``(1 + sum of survivals up to b) / seconds(b)``
    to verify. Here all drafted tokens are verified, so drafting stops after the first token that did not raise that
    score. Seconds therefore include the drafting, which vLLM pays anyway.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE, SignalName.MARGIN})

    def __init__(self, gamma: int, seconds: Sequence[float], refit: int = 100, warm_up: int = 3) -> None:
        """Draft at most ``gamma`` tokens.

        Args:
            seconds: of a step that drafts 0, 1, ... ``gamma`` tokens.
        """
        self.gamma = gamma
        self.seconds = tuple(seconds)
        self._chances = LearnedChances(gamma, refit, warm_up)
        self._survival = 1.0  # of the step's last token
        self._tokens = 1.0  # expected of the step, if it ended there
        self._rate = 0.0  # and a second

    def limit(self) -> int:
        self._survival = self._tokens = 1.0
        self._rate = 1.0 / self.seconds[0]
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        """While the last token raised the expected tokens per second."""
        if not self._chances.ready:
            return True
        self._survival *= self._chances.chance(signal)
        self._tokens += self._survival
        rate = self._tokens / self.seconds[signal.depth]
        rises = rate > self._rate
        self._rate = rate
        return rises

    def observe(self, step: Step) -> None:
        self._chances.observe(step)


def logit_margin(signal: Signal) -> float:
    """Difference of the two highest logits in nats: the logarithm of the ratio of their probabilities."""
    second = max(signal.confidence - signal.margin, LEAST_PROBABILITY)
    return math.log(max(signal.confidence, LEAST_PROBABILITY) / second)


@register_policy(
    "vllm",
    "drafts on while survival over cost rises, learned while running (vLLM)",
    grid={"tokens": (2, 4, 7, 12), "refit": (50, 200), "warm_up": (1, 3)},
)
def vllm(tokens: int = 7, refit: int = 100, warm_up: int = 3, *, gamma_max: int, costs: CostCurve) -> Policy:
    check_tokens("vllm", "tokens", tokens)
    check_tokens("vllm", "refit", refit)
    check_tokens("vllm", "warm_up", warm_up, least=0)
    gamma = min(tokens, gamma_max)
    return AdaptiveVerification(
        gamma, seconds_by_length(costs, gamma, AdaptiveVerification.reads).tolist(), refit, warm_up
    )
