"""What a policy is: it decides how far to draft from what is known at that moment, and only that.

The same object runs live and in replay. In one step the loop asks :meth:`Policy.limit` before drafting,
:meth:`Policy.keep_drafting` after each drafted token, and tells what happened with :meth:`Policy.observe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Signal(NamedTuple):
    """What the drafter shows of one drafted token.

    Attributes:
        depth: 1 for the first drafted token of a step.
        confidence: top-1 probability of the drafter's distribution (temperature 1), in 0..1.
        entropy: of that distribution, in bits.
        margin: top-1 minus top-2 probability, in 0..1.
    """

    depth: int
    confidence: float
    entropy: float
    margin: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one draft -> verify -> commit step did, told to the policy afterwards.

    Attributes:
        drafted: tokens drafted, 0 or more.
        accepted: how many of them the target accepted.
        committed: tokens added to the output: ``accepted + 1``, fewer where the output ended inside the step.
        signals: one per drafted token, in order.
        target_entropy: entropy in bits of the target's distribution behind the last committed token.
    """

    drafted: int
    accepted: int
    committed: int
    signals: Sequence[Signal] = ()
    target_entropy: float = float("nan")


@runtime_checkable
class Policy(Protocol):
    """How far to draft. Implementations hold their own state; ``reset`` starts a new prompt.

    A policy that looks at no signal says so with the class attribute ``needs_signals = False``. The live loop then does not
    compute them: ``keep_drafting`` is not asked (it stands for "yes") and ``observe`` gets steps without signals and target entropy.
    """

    def reset(self) -> None:
        """Forget what belongs to one prompt (what is learned across prompts may stay)."""
        ...

    def limit(self) -> int:
        """The most tokens to draft in the step that begins now; 0 drafts nothing."""
        ...

    def keep_drafting(self, signal: Signal) -> bool:
        """Asked after each drafted token: draft another one?"""
        ...

    def observe(self, step: Step) -> None:
        """Told how the step went."""
        ...


class StepCosts(Protocol):
    """What policies that weigh cost must know; :class:`~draftgauge.traces.costs.CostCurve` is one."""

    @property
    def gamma_max(self) -> int:
        """The longest draft whose cost is known."""
        ...

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths in tokens at which costs were measured, increasing."""
        ...

    def step_seconds(
        self, gamma: NDArray[np.int64] | int, context: NDArray[np.int64] | int, needs_signals: bool = False
    ) -> NDArray[np.float64]:
        """Seconds of a step that drafts ``gamma`` tokens at a context length."""
        ...


def seconds_by_length(costs: StepCosts, gamma_max: int, needs_signals: bool = False) -> NDArray[np.float64]:
    """``[gamma_max + 1]`` seconds of a step that drafts 0, 1, ... tokens, at the middle one of the measured context lengths.

    A policy is not told the length of the context. How the cost of one more token compares with that of a step moves slowly
    with it, so one context stands for all.
    """
    middle = costs.contexts[len(costs.contexts) // 2]
    return costs.step_seconds(np.arange(gamma_max + 1), middle, needs_signals)


def needs_signals(policy: Policy) -> bool:
    """Whether the policy looks at signals: its ``needs_signals``, true where it does not say."""
    return bool(getattr(policy, "needs_signals", True))


@dataclass(frozen=True)
class SignalArrays:
    """The signals of many positions at once, each ``[positions, gamma_max]``, NaN where nothing was drafted."""

    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]


@runtime_checkable
class StatelessPolicy(Policy, Protocol):
    """A policy whose decision depends on the signals of the step alone, so that all positions can be decided at once."""

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """Draft length wanted at every position, ``[positions]``, before the end of the output caps it.

        Must agree with ``limit`` and ``keep_drafting`` asked token by token.
        """
        ...
