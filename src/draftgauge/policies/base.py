"""What a policy is: it decides how far to draft from what is known at that moment, and only that.

The same object runs live and in replay. In one step the loop asks :meth:`Policy.limit` before drafting,
:meth:`Policy.keep_drafting` after each drafted token, and tells what happened with :meth:`Policy.observe`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.policies.stored_texts import StoredTexts


class Signal(NamedTuple):
    """What the drafter shows of one drafted token.

    Attributes:
        depth: 1 for the first drafted token of a step.
        confidence: top-1 probability of the drafter's distribution (temperature 1), in 0..1.
        entropy: of that distribution, in bits.
        margin: top-1 minus top-2 probability, in 0..1.
        token: the drafted token.

    What the policy does not declare that it reads is not computed: NaN, and -1 for the token.
    """

    depth: int
    confidence: float
    entropy: float
    margin: float
    token: int = -1


class Step(NamedTuple):
    """What one draft -> verify -> commit step did, told to the policy afterwards.

    Attributes:
        drafted: tokens that the drafter drafted, 0 or more.
        accepted: how many tokens the target accepted, of the drafted ones and then of those looked up, up to the end of
            the output.
        committed: tokens added to the output: ``accepted + 1``, fewer where the output ended inside the step.
        signals: one per drafted token, in order; empty for policies that read no signal of drafted tokens.
        target_entropy: entropy in bits of the target's distribution behind the last committed token; NaN for policies
            that do not read it.
        tokens: the committed tokens; empty for policies that do not read text.
        appended: tokens that the policy looked up in the text and appended to the drafted ones (:class:`Extends`).
        trimmed: drafted tokens that it left out (:class:`Trims`), 0 or 1.
    """

    drafted: int
    accepted: int
    committed: int
    signals: Sequence[Signal] = ()
    target_entropy: float = math.nan
    tokens: Sequence[int] = ()
    appended: int = 0
    trimmed: int = 0

    @property
    def proposed(self) -> int:
        """Tokens that the target verified."""
        return self.drafted - self.trimmed + self.appended

    @property
    def accepted_text(self) -> int:
        """How many of the accepted tokens were looked up."""
        return max(0, self.accepted - (self.drafted - self.trimmed))


@runtime_checkable
class Policy(Protocol):
    """How far to draft. Implementations hold their own state; ``reset`` starts a new prompt.

    A policy declares the signals that it reads, and there is no default: the live loop computes exactly those, and
    replay charges it for exactly those. Where it reads no signal of drafted tokens, ``keep_drafting`` is not asked and
    stands for "yes".
    """

    @property
    def reads(self) -> Reads:
        """The signals that it reads; a class attribute will do."""
        ...

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


class PolicyBase:
    """What most policies have in common: nothing to reset between prompts, one length a step, nothing to learn."""

    def reset(self) -> None:
        """A new prompt begins."""

    def keep_drafting(self, signal: Signal) -> bool:
        """Draft on."""
        return True

    def observe(self, step: Step) -> None:
        """A step is over."""


class StepCosts(Protocol):
    """What policies that weigh cost must know; :class:`~draftgauge.traces.costs.CostCurve` is one."""

    @property
    def gamma_max(self) -> int:
        """The longest draft whose cost is known."""
        ...

    @property
    def vocabulary(self) -> str:
        """A hash of what the pair's token ids mean; empty where it is not known."""
        ...

    @property
    def compression(self) -> str:
        """Of the target; empty where it is not known."""
        ...

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths in tokens at which costs were measured, increasing."""
        ...

    def step_seconds(
        self,
        gamma: NDArray[np.int64] | int,
        context: NDArray[np.int64] | int,
        reads: Reads,
        appended: NDArray[np.int64] | int = 0,
    ) -> NDArray[np.float64]:
        """Seconds of a step that drafts ``gamma`` tokens, verifies ``appended`` more, and computes these signals."""
        ...


def seconds_by_length(costs: StepCosts, gamma_max: int, reads: Reads) -> NDArray[np.float64]:
    """``[gamma_max + 1]`` seconds of a step that drafts 0, 1, ... tokens, at the middle one of the measured context
    lengths.

    A policy is not told the length of the context. How the cost of one more token compares with that of a step moves
    slowly with it, so one context stands for all.
    """
    return costs.step_seconds(np.arange(gamma_max + 1), middle_context(costs), reads)


def verification_seconds(costs: StepCosts, gamma_max: int) -> NDArray[np.float64]:
    """``[gamma_max + 1]`` seconds of steps that draft nothing and verify 0, 1, ... looked-up tokens, likewise."""
    return costs.step_seconds(0, middle_context(costs), NO_SIGNALS, np.arange(gamma_max + 1))


def middle_context(costs: StepCosts) -> int:
    """The middle one of the measured context lengths."""
    return costs.contexts[len(costs.contexts) // 2]


@runtime_checkable
class ReadsText(Protocol):
    """A policy that also reads the text: the prompt here, the output through ``Step.tokens``."""

    def read(self, prompt_tokens: Sequence[int]) -> None:
        """The prompt of the output that begins now, told after ``reset``."""
        ...


@runtime_checkable
class Trims(Protocol):
    """A policy that may leave its last drafted token out, where drafting it has shown that it is worth less than its
    verification, or than what the policy would append in its place.

    It is asked once a step, after drafting and before :meth:`Extends.extend`, where something was drafted greedily: a
    token that is left out for what it is would give the output another distribution than the target's if it was drawn.
    Where it reads signals of drafted tokens, ``keep_drafting`` tells it every one of them, as it does
    :class:`Extends`.
    """

    def trims(self) -> bool:
        """Whether the last drafted token is left out of what the target verifies."""
        ...


@runtime_checkable
class Extends(Protocol):
    """A policy that goes on with a draft by tokens that it looks up in the text, which cost their verification only.

    It is asked once a step, after drafting, also where nothing was drafted, if there is room. Where it reads signals of
    drafted tokens, ``keep_drafting`` tells it every one of them: also that of a token after which drafting ended by
    itself, where its answer changes nothing.
    """

    def extend(self, room: int) -> Sequence[int]:
        """The tokens to append, at most ``room``; none where the text foretells nothing worth its verification."""
        ...


def reads_of(policy: Policy) -> Reads:
    """The signals that a policy declares to read.

    Raises:
        DraftgaugeError: if it declares none, not even the empty set, or declares something else than signals.
    """
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
    """Whether a policy that reads these signals is asked after each drafted token."""
    return bool(reads & OF_DRAFTED_TOKENS)


def begin(policy: Policy, prompt_tokens: Sequence[int]) -> None:
    """A new output begins: reset the policy, and let it read the prompt if it reads text."""
    policy.reset()
    if isinstance(policy, ReadsText):
        policy.read(prompt_tokens)


class DecisionSeconds(NamedTuple):
    """What deciding takes, in seconds for each drafted token, step, prompt token, committed and appended token."""

    token: float = 0.0
    step: float = 0.0
    reading: float = 0.0
    committed: float = 0.0
    appended: float = 0.0


@runtime_checkable
class TimesDecisions(Protocol):
    """Costs that say what policies take to decide on this machine."""

    def deciding(self, policy: str) -> tuple[float, float, float] | None:
        """Seconds for each drafted token, each step besides and each token of the prompt; None where not measured."""
        ...


def measured_decision(costs: StepCosts, policy: str) -> DecisionSeconds | None:
    """What a registered policy took to decide where the costs were measured; None if that was not timed."""
    times = costs.deciding(policy) if isinstance(costs, TimesDecisions) else None
    return None if times is None else DecisionSeconds(*times)


def decision_of(policy: Policy) -> DecisionSeconds:
    """What the policy says that its deciding takes; nothing where it does not say."""
    decision: DecisionSeconds = getattr(policy, "decision", DecisionSeconds())
    return decision


@dataclass(frozen=True)
class SignalArrays:
    """Signals of many positions, each ``[positions, gamma_max]``; NaN where nothing was drafted or is not read."""

    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]

    @property
    def positions(self) -> int:
        """How many there are."""
        return len(self.confidence)


@runtime_checkable
class StatelessPolicy(Policy, Protocol):
    """A policy that decides by the signals of the step alone, so that all positions can be decided at once."""

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """Draft length wanted at every position, ``[positions]``, before the end of the output caps it.

        Must agree with ``limit`` and ``keep_drafting`` asked token by token.
        """
        ...


@dataclass(frozen=True)
class TextView:
    """Everything that a policy could come to know on a trace, at all positions at once.

    ``P`` positions, drafts of up to ``G`` tokens.

    Attributes:
        signals: ``[P, G]`` each.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        token: ``[P]`` the target's tokens.
        offsets: ``[prompts + 1]``; prompt ``i`` owns the rows ``offsets[i]:offsets[i + 1]``.
        prompt_tokens: of each prompt.
        derived: what has been computed from this trace, and the stored texts, before, by name, to be used again.
        stored: texts of earlier requests that the policy looks tokens up in too.
    """

    signals: SignalArrays
    draft_token: NDArray[np.int32]
    token: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompt_tokens: Sequence[Sequence[int]]
    derived: dict[str, Any]
    stored: StoredTexts | None = None


@runtime_checkable
class TextPolicy(Policy, ReadsText, Protocol):
    """A policy that depends on the text and the step's signals alone, so that all positions can be decided at once."""

    def text_lengths(self, view: TextView) -> NDArray[np.int64] | None:
        """Draft length wanted at every position, ``[P]``; None while the policy learns as it goes, and must be asked in
        order.

        Must agree with ``limit`` and ``keep_drafting`` asked token by token.
        """
        ...


@runtime_checkable
class TrimmingTextPolicy(TextPolicy, Trims, Protocol):
    """Such a policy that leaves out its last drafted token where that pays."""

    def trimmed(self, view: TextView, drafted: NDArray[np.int64]) -> NDArray[np.int64]:
        """``[P]`` whether it leaves out the last of ``drafted`` (``[P]``) tokens at every position, 0 or 1.

        Must agree with ``trims``, asked after as many drafted tokens.
        """
        ...


@runtime_checkable
class ExtendingTextPolicy(TextPolicy, Extends, Protocol):
    """Such a policy that appends what :class:`~draftgauge.policies.suffix.SuffixIndex` says followed the last time."""

    def appended_lengths(self, view: TextView, drafted: NDArray[np.int64]) -> NDArray[np.int64]:
        """``[P]`` how many tokens it would append at every position after ``drafted`` (``[P]``) drafted ones, less
        those that it leaves out, before the end of the output caps it.

        Must agree with ``extend``, asked after as many drafted tokens.
        """
        ...
