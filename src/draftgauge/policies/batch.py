"""Policies in a batch whose requests take every step together, one policy a slot.

The batch drafts by depth: at each one some of the requests draft a token in one pass. The same objects run live
(:mod:`draftgauge.decoding.batched`) and in replay (:mod:`draftgauge.judging.batch_rows`); one that verifies a part of a
draft (:class:`WholeBatch`) in replay alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Extends, Policy, Signal, Step, asks_after_each_token, begin, reads_of
from draftgauge.policies.sglang_adaptive import BatchTiers
from draftgauge.policies.spec import ADAPTIVE, ADAPTIVE_033, SGLANG_TIERS, WHOLE_BATCH, make_policy
from draftgauge.policies.vllm import LearnedChances, OnlineAcceptance
from draftgauge.traces.costs import BatchCosts, CostCurve

BatchSeconds = Callable[[int, NDArray[np.int64], int], NDArray[np.float64]]


class BatchPolicy(Protocol):
    """Decides for all requests of a batch. A *slot* is a place in the batch, which one request holds at a time."""

    @property
    def reads(self) -> Reads:
        """The signals that it reads; without any of drafted tokens, the drafted tokens need not be read by depth."""

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None: ...

    def first(self, caps: Mapping[int, int]) -> list[int]:
        """A step begins: the slots that draft a token.

        Args:
            caps: by slot, the most tokens that its request may draft, possibly 0; every request of the batch is in it.
        """

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        """Which of these slots draft another token."""

    def observe(self, slot: int, step: Step) -> None: ...


class WholeBatch:
    """Whole drafts for every request; the target verifies those drafted tokens of the batch that give the most expected
    tokens per second.

    vLLM 0.32, ``enable_adaptive_verification``
    (https://docs.vllm.ai/en/v0.32.0/features/speculative_decoding/adaptive_verification/): a token survives if it and
    those before it are accepted, and requests compete for one budget. With ``learned``,
    :class:`~draftgauge.policies.vllm.LearnedChances` learns chances of acceptance from the draft's margins; whole
    drafts are verified until it is ready. Else chances are the drafter's confidences, as of DSpark's confidence head
    (arXiv 2607.05147, confidence-scheduled verification).
    """

    reads: Reads = frozenset({SignalName.CONFIDENCE, SignalName.MARGIN})

    def __init__(self, gamma: int, seconds: BatchSeconds, learned: bool, refit: int = 100, warm_up: int = 3) -> None:
        """``gamma``: tokens of a whole draft; ``seconds(requests, tokens, context)`` of verifying; ``refit`` and
        ``warm_up`` as in vLLM, counted in steps of requests."""
        self._gamma, self._seconds = gamma, seconds
        self._learned = LearnedChances(gamma, refit, warm_up) if learned else None

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        pass

    def first(self, caps: Mapping[int, int]) -> list[int]:
        return [slot for slot, cap in caps.items() if cap > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if signal.depth < self._gamma]

    def admit(self, drafted: Mapping[int, Sequence[Signal]], context: int) -> dict[int, int]:
        if self._learned is not None and not self._learned.ready:
            return {slot: len(signals) for slot, signals in drafted.items()}
        survivals = []  # of each drafted token, falling along a draft, so that the likeliest are beginnings of drafts
        for slot, signals in drafted.items():
            chance = 1.0
            for signal in signals:
                chance *= signal.confidence if self._learned is None else self._learned.chance(signal)
                survivals.append((chance, slot))
        survivals.sort(key=lambda each: -each[0])
        requests = len(drafted)
        tokens = requests + np.arange(len(survivals) + 1)
        expected = requests + np.cumsum([0.0, *(chance for chance, _ in survivals)])
        budget = int(np.argmax(expected / self._seconds(requests, tokens, context)))
        admitted = Counter(slot for _, slot in survivals[:budget])
        return {slot: admitted[slot] for slot in drafted}

    def observe(self, slot: int, step: Step) -> None:
        if self._learned is not None:
            self._learned.observe(step)


class BudgetedBatch(WholeBatch):
    """vLLM 0.33's adaptive verification (``AdaptiveVerificationManager`` in ``adaptive_verification.py``).

    The host chooses the budget by the chances of each request's draft *before* this one, 1 for its first. The tokens
    that fill it are chosen by those of this draft. A step costs ``seconds(requests, tokens, context)``,
    drafting included, as measured, where vLLM pads to captured graphs.
    """

    def __init__(self, gamma: int, seconds: BatchSeconds) -> None:
        super().__init__(gamma, seconds, learned=False)
        self._acceptance = OnlineAcceptance(gamma)
        self._before: dict[int, NDArray[np.float64]] = {}
        self._waiting = 0  # requests of this step that are not observed yet

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        self._before.pop(slot, None)

    def admit(self, drafted: Mapping[int, Sequence[Signal]], context: int) -> dict[int, int]:
        requests, certain = len(drafted), np.ones(self._gamma)
        now = {slot: self._acceptance.chances(signals) for slot, signals in drafted.items()}
        known = [np.cumprod(self._before.get(slot, certain)[: len(of)]) for slot, of in now.items()]
        scores = np.sort(np.concatenate(known))[::-1]
        tokens = requests + np.arange(len(scores) + 1)
        expected = requests + np.append(0.0, np.cumsum(scores))
        budget = int(np.argmax(expected / self._seconds(requests, tokens, context)))
        self._before |= {slot: np.append(of, certain[len(of) :]) for slot, of in now.items()}
        self._waiting = requests
        ranked = sorted(
            ((chance, slot) for slot, of in now.items() for chance in np.cumprod(of)), key=lambda it: -it[0]
        )
        admitted = Counter(slot for _, slot in ranked[:budget])
        return {slot: admitted[slot] for slot in drafted}

    def observe(self, slot: int, step: Step) -> None:
        self._acceptance.add(step.signals[: step.drafted], step.accepted)
        self._waiting -= 1
        if self._waiting == 0:
            self._acceptance.step()


class PerRequest:
    """Every request of a batch decides for itself."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        """One policy a slot, of the same kind."""
        if isinstance(policies[0], Extends):
            raise DraftgaugeError(
                f"policy {type(policies[0]).__name__} looks tokens up in the text, which batches do not have"
            )
        self.reads = reads_of(policies[0])
        if SignalName.TARGET_ENTROPY in self.reads:
            raise DraftgaugeError(
                f"policy {type(policies[0]).__name__} reads the target's entropy, which batches do not compute"
            )
        self._policies = policies
        self._asks = asks_after_each_token(self.reads)
        self._limits: dict[int, int] = {}

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        begin(self._policies[slot], prompt_tokens)

    def first(self, caps: Mapping[int, int]) -> list[int]:
        self._limits = {slot: min(self._policies[slot].limit(), cap) for slot, cap in caps.items()}
        return [slot for slot, limit in self._limits.items() if limit > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        within = {slot: signal for slot, signal in drafted.items() if signal.depth < self._limits[slot]}
        return [s for s, signal in within.items() if not self._asks or self._policies[s].keep_drafting(signal)]

    def observe(self, slot: int, step: Step) -> None:
        self._policies[slot].observe(step)


def make_batch_policy(
    spec: str, slots: int, gamma_max: int, costs: CostCurve | None, passes: BatchCosts | None = None
) -> BatchPolicy:
    """A new policy for each of up to ``slots`` requests at once, arguments as of
    :func:`~draftgauge.policies.spec.make_policy`. Or one of :data:`WHOLE_BATCH` for all, which needs what passes of
    batches cost.
    """
    if spec == SGLANG_TIERS:
        return BatchTiers(gamma_max)
    if spec in WHOLE_BATCH and passes is not None:
        if spec != ADAPTIVE_033:
            return WholeBatch(gamma_max, passes.verify_seconds, learned=spec == ADAPTIVE)

        def seconds(requests: int, tokens: NDArray[np.int64], context: int) -> NDArray[np.float64]:
            drafting = gamma_max * passes.draft_seconds(requests, requests, context)
            return drafting + passes.verify_seconds(requests, tokens, context)

        return BudgetedBatch(gamma_max, seconds)
    return PerRequest([make_policy(spec, gamma_max, costs) for _ in range(slots)])
