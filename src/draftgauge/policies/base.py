"""What a policy is: it decides how far to draft from what is known at that moment, and only that.

The same object runs live and in replay. In one step the loop asks :meth:`Policy.limit` before drafting,
:meth:`Policy.keep_drafting` after each drafted token, and tells what happened with :meth:`Policy.observe`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.traces.costs import CostCurve


class Signal(NamedTuple):
    """What the drafter shows of one drafted token. What a policy does not declare to read is NaN, and -1 for the token.

    Attributes:
        confidence: top-1 probability of the drafter's distribution (temperature 1), in 0..1.
        entropy: of that distribution, in bits.
        margin: top-1 minus top-2 probability, in 0..1.
    """

    depth: int
    confidence: float
    entropy: float
    margin: float
    token: int = -1


class Step(NamedTuple):
    """What one draft -> verify -> commit step did, told to the policy afterwards.

    Attributes:
        accepted: how many tokens the target accepted, of the drafted ones and then of those looked up, up to the end of
            the output.
        committed: tokens added to the output: ``accepted + 1``, fewer where the output ended inside the step.
        signals: one per drafted token, in order; empty for policies that read no signal of drafted tokens.
        target_entropy: entropy in bits of the target's distribution after the last committed token; NaN for policies
            that do not read it.
        tokens: the committed tokens; empty for policies that do not read text.
        appended: tokens that the policy looked up in the text and appended to the drafted ones (:class:`Extends`).
        dropped: drafted tokens that it dropped (:class:`DropsLast`), 0 or 1.
    """

    drafted: int
    accepted: int
    committed: int
    signals: Sequence[Signal] = ()
    target_entropy: float = math.nan
    tokens: Sequence[int] = ()
    appended: int = 0
    dropped: int = 0

    @property
    def proposed(self) -> int:
        return self.drafted - self.dropped + self.appended

    @property
    def accepted_text(self) -> int:
        return max(0, self.accepted - (self.drafted - self.dropped))


@runtime_checkable
class Policy(Protocol):
    """How far to draft. Implementations hold their own state; ``reset`` starts a new prompt.

    A policy must declare the signals that it reads: the live loop computes exactly those, and replay charges it for
    exactly those. Where it reads no signal of drafted tokens, ``keep_drafting`` is not asked and counts as "yes".
    """

    @property
    def reads(self) -> Reads:
        """The signals that it reads; a class attribute will do."""

    def reset(self) -> None:
        """Forget what belongs to one prompt (what is learned across prompts may stay)."""

    def limit(self) -> int:
        """The most tokens to draft in the step that begins now; 0 drafts nothing."""

    def keep_drafting(self, signal: Signal) -> bool:
        """Asked after each drafted token: draft another one?"""

    def observe(self, step: Step) -> None: ...


class PolicyBase:
    """What most policies have in common: nothing to reset between prompts, drafts of up to ``gamma`` tokens, nothing to
    learn."""

    gamma: int

    def reset(self) -> None:
        pass

    def limit(self) -> int:
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        return True

    def observe(self, step: Step) -> None:
        pass


@runtime_checkable
class ReadsText(Protocol):
    """A policy that also reads the text: the prompt here, the output through ``Step.tokens``."""

    def read(self, prompt_tokens: Sequence[int]) -> None:
        """The prompt of the output that begins now, told after ``reset``."""


@runtime_checkable
class Extends(Protocol):
    """A policy that extends a draft by tokens that it looks up in the text, which cost their verification only.

    It is asked once a step, after drafting, also where nothing was drafted, if there is room. A policy that reads
    signals of drafted tokens gets every one through ``keep_drafting``. That of a token after which drafting ended by
    itself comes too, but there the answer changes nothing.
    """

    def extend(self, room: int) -> Sequence[int]:
        """The tokens to append, at most ``room``."""


@runtime_checkable
class DropsLast(Protocol):
    """A policy that may drop the last drafted token before the target verifies the draft, for instance to append
    another one in its place.

    It is asked once a step, after drafting and before :meth:`Extends.extend`, where something was drafted greedily.
    Dropping a sampled token because of what it is would change the distribution of the output. As for :class:`Extends`,
    ``keep_drafting`` tells it every drafted token.
    """

    def drops_last(self) -> bool:
        """Whether to drop the last drafted token."""


def seconds_by_length(costs: CostCurve, gamma_max: int, reads: Reads, text: bool = False) -> NDArray[np.float64]:
    """``[gamma_max + 1]`` seconds of steps that draft 0, 1, ... tokens, at the middle measured context length. With
    ``text`` steps draft nothing and verify so many looked-up tokens."""
    lengths, context = np.arange(gamma_max + 1), costs.contexts[len(costs.contexts) // 2]
    return costs.step_seconds(0, context, NO_SIGNALS, lengths) if text else costs.step_seconds(lengths, context, reads)


def reads_of(policy: Policy) -> Reads:
    """The signals that a policy declares to read."""
    reads = getattr(policy, "reads", None)
    if not isinstance(reads, frozenset) or not all(isinstance(name, SignalName) for name in reads):
        raise DraftgaugeError(
            f"policy {type(policy).__name__} must declare the signals that it reads as a frozenset of SignalName, "
            f"empty for none, e.g. `reads = frozenset({{SignalName.CONFIDENCE}})`; its `reads` is {reads!r}"
        )
    if isinstance(policy, ReadsText) and SignalName.TEXT not in reads:
        raise DraftgaugeError(f"policy {type(policy).__name__} reads the prompt and must declare SignalName.TEXT")
    return reads


def asks_after_each_token(reads: Reads) -> bool:
    return bool(reads & OF_DRAFTED_TOKENS)


def begin(policy: Policy, prompt_tokens: Sequence[int]) -> None:
    """A new output begins: reset the policy, and let it read the prompt if it reads text."""
    policy.reset()
    if isinstance(policy, ReadsText):
        policy.read(prompt_tokens)


@dataclass(frozen=True)
class SignalArrays:
    """Signals of many positions, each ``[positions, gamma_max]``; NaN where nothing was drafted or is not read."""

    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]

    @property
    def positions(self) -> int:
        return len(self.confidence)


@runtime_checkable
class StatelessPolicy(Policy, Protocol):
    """A policy that decides by the step's signals alone, so all positions can be decided at once, as tuning does."""

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """Draft length wanted at every position, ``[positions]``, before the end of the output caps it.

        Must agree with ``limit`` and ``keep_drafting`` asked token by token.
        """


def first_stop(stops: NDArray[np.bool_], gamma: int) -> NDArray[np.int64]:
    """Depth of the first drafted token that ends the draft, else ``gamma``; ``[positions]``.

    Args:
        stops: ``[positions, depths]`` whether drafting stops after the token.
        gamma: the most tokens to draft; deeper ones do not count.
    """
    within = stops[:, :gamma]
    return np.where(within.any(axis=1), within.argmax(axis=1) + 1, gamma)


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(min(-logit, 700.0)))  # exp overflows soon after


NATS_PER_BIT = math.log(2.0)  # papers have entropies in nats, signals in bits
LEAST_PROBABILITY = 2.0**-20  # probabilities below count as this much: what float32 still tells apart next to 1


def require_costs(name: str, costs: CostCurve | None) -> CostCurve:
    if costs is None:
        raise DraftgaugeError(
            f"policy {name} weighs the cost of a step: give the pair's cost curve (`draftgauge profile` measures it)"
        )
    return costs


def check_threshold(name: str, threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise DraftgaugeError(f"policy {name}: threshold must be above 0 and at most 1, not {threshold}")


def check_share(name: str, key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise DraftgaugeError(f"policy {name}: {key} must be 0 to 1, not {value}")


def check_positive(name: str, key: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise DraftgaugeError(f"policy {name}: {key} must be above 0, not {value}")


def check_tokens(name: str, key: str, tokens: int, least: int = 1) -> None:
    if tokens < least:
        raise DraftgaugeError(f"policy {name}: {key} must be at least {least}, not {tokens}")


def check_shares(name: str, key: str, values: Sequence[float], count: int) -> None:
    """Raise ``DraftgaugeError`` unless there are so many fitted values, each from 0 to 1."""
    if len(values) != count:
        raise DraftgaugeError(f"policy {name}: {key} must have {count} values, one for each depth, not {len(values)}")
    if not all(0 <= value <= 1 for value in values):
        raise DraftgaugeError(f"policy {name}: {key} must be from 0 to 1, not {list(values)}")


def check_lengths(name: str, key: str, lengths: Sequence[int], gamma_max: int, least: int = 1) -> tuple[int, ...]:
    if min(lengths) < least:
        raise DraftgaugeError(f"policy {name}: {key} must be lengths of at least {least}, not {min(lengths)}")
    return tuple(sorted({min(length, gamma_max) for length in lengths}))


def import_others(group: str) -> None:
    """Import what packages name in a group of entry points; one that fails is left out with a warning."""
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            warn(f"{entry.value} of the entry points {group} is left out: {error}")
