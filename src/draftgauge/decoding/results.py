"""What decoding gives back: the output, how each of its tokens came, and what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from draftgauge.decoding.settings import Finish
from draftgauge.policies.base import Step
from draftgauge.traces.repetition import distinct_share

Origin = Literal["accepted", "text", "corrected", "bonus", "plain"]
"""How a token came: drafted and accepted; looked up in the text and accepted; the target's own in place of a rejected
one; the target's own after a proposal accepted whole; or the target's own where nothing was proposed."""


def origins_of(step: Step) -> list[Origin]:
    """How each of the tokens came that a step committed."""
    proposed, accepted = step.proposed, step.accepted
    own: Origin = "plain" if proposed == 0 else "bonus" if accepted == proposed else "corrected"
    origins: list[Origin] = ["accepted"] * (accepted - step.accepted_text)
    origins += ["text"] * step.accepted_text
    return [*origins, own][: step.committed]


OnCommit = Callable[[list[int], list[Origin]], None]
"""Told the newly committed tokens and the origin of each, once a step, in order."""


@dataclass
class Generation:
    """One decoded output.

    Attributes:
        tokens: the output without the prompt; the end token, if one came, is its last.
        finish: "length" (the limit was reached) or "stop" (an end token or a stop string).
        steps: what each step did, in order; a step starts where those before it ended.
        text: the output as text, special tokens left out, where it came of :func:`draftgauge.generate`.
    """

    tokens: list[int] = field(default_factory=list)
    finish: Finish = "length"
    origins: list[Origin] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {len(self.steps)} steps, {self.finish}>"

    @property
    def tokens_per_step(self) -> float:
        return len(self.tokens) / len(self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens a second of decoding, prefill not counted."""
        return len(self.tokens) / self.decode_seconds

    def row(self) -> dict[str, Any]:
        """Counts and speeds, as ``draftgauge generate --json`` keeps them."""
        steps = self.steps
        return {
            "tokens": len(self.tokens),
            "steps": len(steps),
            "tokens_per_step": self.tokens_per_step,
            "drafted": sum(step.drafted for step in steps),
            "dropped": sum(step.dropped for step in steps),
            "appended": sum(step.appended for step in steps),
            "accepted": sum(step.accepted for step in steps),
            "source_model": sum(step.accepted - step.accepted_text for step in steps) / len(steps),
            "source_text": sum(step.accepted_text for step in steps) / len(steps),
            "distinct_4grams": distinct_share([self.tokens]),
            "tokens_per_second": self.tokens_per_second,
            "prefill_seconds": self.prefill_seconds,
            "finish": self.finish,
        }
