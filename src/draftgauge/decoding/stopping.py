"""Where an output ends: at its limit, at an end token, or at a stop string.

As in transformers' ``generate``, what ends the output stays in it: the end token is the last token, and after a stop
string the output ends with the token that completed it, whole, even if that token carries further characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.settings import DecodingSettings, Detokenize

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

    Only a tail of the output is decoded, long enough for the longest stop string, so that the cost of a token does not
    grow with the output.
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
