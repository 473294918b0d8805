"""What all loops are asked, and what they give back: the output, how each of its tokens came, and what it took.

Where an output ends is as in transformers' ``generate``: what ends it stays in it. The end token is the last token. The
token that completes a stop string is the last one, whole, even if it carries further characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Generator

from draftgauge.core.errors import DraftgaugeError, PromptError
from draftgauge.models.base import ModelSpec
from draftgauge.models.spec import check_tokens, context_note
from draftgauge.policies.base import Step
from draftgauge.traces.trace import distinct_share
from draftgauge.verification import Sampling

Detokenize = Callable[[list[int]], str]

StopWhen = Callable[[int], bool]
"""Told every token of one output, in order: does it end the output? It then is the last token."""


@dataclass(frozen=True)
class DecodingSettings:
    """How one output is decoded.

    Attributes:
        end_tokens: any of them ends the output and is its last token.
        stop_strings: any of them in the decoded output ends it.
        gamma_max: the most tokens that a drafter is asked for, whatever the policy wants; looked-up ones come on top.
        stop_when: a further reason to stop. It may follow the text, and is then for one output only.
    """

    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    end_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    detokenize: Detokenize | None = None
    stop_when: StopWhen | None = None
    gamma_max: int = 1 << 30

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise DraftgaugeError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if "" in self.stop_strings:
            raise DraftgaugeError("a stop string is empty, which would stop every output at once: leave it out")


def check_request(
    spec: ModelSpec, prompt_tokens: list[int], settings: DecodingSettings, generator: Generator | None
) -> None:
    """Check that the target can decode this prompt at these settings."""
    if not prompt_tokens:
        raise PromptError("the prompt is empty: give it at least one token")
    check_tokens(spec, prompt_tokens)
    length = len(prompt_tokens) + settings.max_new_tokens
    if length > spec.context:
        excess = length - spec.context
        fewer = " or lower max_new_tokens" if excess < settings.max_new_tokens else ""
        raise DraftgaugeError(
            f"context longer than the model takes: {len(prompt_tokens)} prompt tokens and max_new_tokens "
            f"{settings.max_new_tokens} make {length}, the model takes {spec.context}{context_note(spec)}. "
            f"Shorten the prompt{fewer} by {excess}"
        )
    if generator is None and not settings.sampling.greedy:
        raise DraftgaugeError("sampling at a temperature above 0 needs a random generator on the model's device")


Finish = Literal["length", "stop"]

# Characters kept beyond the longest stop string: some tokenizers decode the first token of a piece differently
# (a leading space is dropped), and that must not touch the part in which a stop string can still be completed.
_SLACK = 8


class Stopper:
    """Follows one output and says where it ends."""

    def __init__(self, settings: DecodingSettings) -> None:
        decode = settings.detokenize
        if settings.stop_strings and decode is None:
            raise DraftgaugeError("stop strings need a detokenizer: pass the tokenizer's decode")
        self.remaining = settings.max_new_tokens
        self._end_tokens = settings.end_tokens
        self._watch = StopStringWatch(settings.stop_strings, decode) if settings.stop_strings and decode else None
        self._stop_when = settings.stop_when

    def cut(self, tokens: list[int]) -> tuple[list[int], Finish | None]:
        """Take the next tokens: those up to the end of the output, and how it finished, None if it goes on."""
        for position, token in enumerate(tokens, start=1):
            self.remaining -= 1
            # No short circuit: both must see every token.
            completed = self._watch is not None and self._watch.completed_by(token)
            stopped = self._stop_when is not None and self._stop_when(token)
            if token in self._end_tokens or completed or stopped:
                return tokens[:position], "stop"
            if self.remaining == 0:
                return tokens[:position], "length"
        return tokens, None


class StopStringWatch:
    """Finds the token that completes a stop string, also one that spans many tokens.

    Only a tail of the output is decoded, long enough for the longest stop string: the cost of a token does not grow.
    """

    def __init__(self, strings: Sequence[str], detokenize: Detokenize) -> None:
        self._strings = tuple(strings)
        self._detokenize = detokenize
        self._reach = max(map(len, strings)) + _SLACK
        self._tail: list[int] = []
        self._ends: list[int] = []  # length of the tail's text after each of its tokens

    def completed_by(self, token: int) -> bool:
        """Take the next token: does the text now hold a stop string?"""
        self._tail.append(token)
        text = self._detokenize(self._tail)
        self._ends.append(len(text))
        if any(string in text for string in self._strings):
            return True
        if len(text) > 4 * self._reach:
            count = bisect_right(self._ends, len(text) - self._reach)
            dropped = self._ends[count - 1] if count else 0
            self._tail, self._ends = self._tail[count:], [end - dropped for end in self._ends[count:]]
        return False


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
