"""What serving engines look up in the text without a model, by their own rules and with their own defaults.

All three draft nothing and append tokens. What they know begins with a request: an engine that has served others knows
their texts too, of which `suffix` reads those of a datastore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, PolicyBase, Step, check_share, check_tokens
from draftgauge.policies.spec import register_policy
from draftgauge.policies.stored_texts import StoredTexts

_BETWEEN = -1  # stands between texts, and is no token


class Occurrences:
    """Texts, none going on into the next, and where each token stands in them."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self._behind: dict[int, list[int]] = {}  # the places behind each token

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text.append(token)
            self._behind.setdefault(token, []).append(len(self.text))

    def separate(self) -> None:
        self.text.append(_BETWEEN)

    def behind(self, tail: Sequence[int], matched: int, among: list[int] | None = None) -> list[int]:
        """The places behind the last ``matched`` tokens of ``tail``, ``among`` those behind one token less."""
        if among is None:
            among = self._behind.get(tail[-1], [])
            return [end for end in among if end >= matched and self.text[end - matched : end] == tail[-matched:]]
        return [end for end in among if end >= matched and self.text[end - matched] == tail[-matched]]

    def following(self, ends: list[int]) -> dict[int, list[int]]:
        """The tokens at these places, in the order of the text, and the places behind each."""
        found: dict[int, list[int]] = {}
        for end in ends:
            if end < len(self.text) and self.text[end] != _BETWEEN:
                found.setdefault(self.text[end], []).append(end + 1)
        return found


class EngineLookup(PolicyBase):
    """Drafts nothing, and reads prompt and output."""

    reads: ClassVar[Reads] = frozenset({SignalName.TEXT})
    gamma = 0

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.reset()

    def reset(self) -> None:
        self.seen = Occurrences()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.seen.extend(prompt_tokens)

    def observe(self, step: Step) -> None:
        self.seen.extend(step.tokens)


class VllmNgram(EngineLookup):
    """vLLM's ``ngram``: what followed the first place of the longest n-gram that ends the text."""

    def __init__(self, least: int, longest: int, tokens: int) -> None:
        self.least, self.longest = least, longest
        super().__init__(tokens)

    def extend(self, room: int) -> Sequence[int]:
        text = self.seen.text
        for matched in range(min(self.longest, len(text) - 1), self.least - 1, -1):
            first = next((end for end in self.seen.behind(text, matched) if end < len(text)), None)
            if first is not None:
                return text[first : first + min(room, self.tokens)]
        return ()


class Suffix(EngineLookup):
    """vLLM's ``suffix`` (Arctic Inference): the likeliest path after every suffix that occurred before.

    SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975. The engine counts in trees of all suffixes. Here the places
    of a suffix are counted, which gives the same numbers.
    """

    def __init__(self, depth: int, factor: float, least: float, tokens: int) -> None:
        self.depth, self.factor, self.least = depth, factor, least
        self._stored: Sequence[Sequence[int]] = ()
        super().__init__(tokens)

    def ask_stored(self, stored: StoredTexts) -> None:
        self._stored = stored.texts
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.outputs = Occurrences()  # of earlier requests, and of this one
        for text in self._stored:
            self.outputs.extend(text)
            self.outputs.separate()

    def observe(self, step: Step) -> None:
        super().observe(step)
        self.outputs.extend(step.tokens)

    def extend(self, room: int) -> Sequence[int]:
        tail = self.seen.text[-self.depth :]
        score, tokens = self._best(self.seen, tail)
        other, others = self._best(self.outputs, tail)
        return (others if other > score else tokens)[:room]

    def _best(self, seen: Occurrences, tail: list[int]) -> tuple[float, list[int]]:
        best: tuple[float, list[int]] = (0.0, [])
        ends: list[int] | None = None
        for matched in range(1, len(tail)):
            ends = seen.behind(tail, matched, ends)
            if not ends:
                break
            most = min(self.tokens, int(matched * self.factor + 1e-6), self.depth - matched)
            found = self._path(seen, ends, most)
            best = found if found[0] >= best[0] else best
        return best

    def _path(self, seen: Occurrences, ends: list[int], most: int) -> tuple[float, list[int]]:
        """The sum of the estimated probabilities of a path's tokens, and the path."""
        tokens: list[int] = []
        score, chance = np.float32(0), np.float32(1)  # as the engine, whose rounding decides between near-ties
        while len(tokens) < most:
            following = seen.following(ends)
            if not following:
                break
            token = _first(following)
            chance *= np.float32(len(following[token])) / np.float32(len(ends))
            if chance < self.least:
                break
            ends = following[token]
            tokens.append(token)
            score += chance
        return float(score), tokens


def _first(following: dict[int, list[int]]) -> int:
    """The most frequent token; of several the first one in the engine's list of them.

    There a token whose count grows goes before those that it overtakes. It goes before those of its new count too if
    it was the first of its former count.
    """
    most = max(map(len, following.values()))
    if sum(len(ends) == most for ends in following.values()) == 1:
        return max(following, key=lambda token: len(following[token]))
    order, counts = list[int](), dict[int, int]()
    for token in (token for _, token in sorted((end, token) for token, ends in following.items() for end in ends)):
        place = order.index(token) if token in counts else len(order)
        counts[token] = counts.get(token, 0) + 1
        before = counts[order[place - 1]] if place else 0
        if place == len(order):
            order.append(token)
        elif place and before <= counts[token]:
            order.remove(token)
            order.insert(next(n for n, other in enumerate(order) if counts[other] == before), token)
    return order[0]


class NgramMod(EngineLookup):
    """llama.cpp's ``ngram-mod``: one table from hashed n-grams to the token that followed last.

    Nothing is drafted where fewer than ``least`` tokens can be followed. The table is emptied after five drafts in a
    row of which less than a quarter was accepted.
    """

    SIZE: ClassVar[int] = 4 * 1024 * 1024
    MULTIPLIER: ClassVar[int] = 6364136223846793005
    ADDED_AT_ONCE: ClassVar[int] = 32
    LOW, LOW_SHARE = 5, 0.25

    def __init__(self, ngram: int, least: int, longest: int, tokens: int) -> None:
        self.ngram, self.least, self.longest = ngram, least, longest
        super().__init__(tokens)

    def reset(self) -> None:
        super().reset()
        self._table: dict[int, int] = {}
        self._added, self._low = 0, 0

    def read(self, prompt_tokens: Sequence[int]) -> None:
        super().read(prompt_tokens)
        self._add(len(prompt_tokens))

    def observe(self, step: Step) -> None:
        super().observe(step)
        if step.appended:
            self._low = self._low + 1 if step.accepted_text < self.LOW_SHARE * step.appended else 0
            if self._low == self.LOW:
                self._table, self._low = {}, 0

    def extend(self, room: int) -> Sequence[int]:
        text = self.seen.text
        processed = len(text) - 1  # the newest token is not
        if processed < self.ngram:
            return ()
        if self._added + self.ADDED_AT_ONCE < processed:
            self._add(processed)
        window, found = text[-self.ngram :], list[int]()
        while len(found) < self.longest:
            token = self._table.get(self._key(window))
            if token is None:
                break
            window = [*window[1:], token]
            found.append(token)
        return found[: min(room, self.tokens)] if len(found) >= self.least else ()

    def _add(self, end: int) -> None:
        """The n-grams of the text up to a place, and the token after each."""
        for begin in range(self._added, end - self.ngram):
            self._table[self._key(self.seen.text[begin : begin + self.ngram])] = self.seen.text[begin + self.ngram]
        self._added = max(self._added, end - self.ngram)

    def _key(self, ngram: Sequence[int]) -> int:
        key = 0
        for token in ngram:
            key = (key * self.MULTIPLIER + token) % 2**64
        return key % self.SIZE


@register_policy(
    "vllm-ngram",
    "lookup by vLLM's numbers: what followed the first place of an n-gram of `least` to `longest` tokens",
    complexity=3,
    grid={"least": (1, 2, 5), "tokens": (3, 5, 10)},
)
def vllm_ngram(least: int = 5, longest: int = 5, tokens: int = 5, *, gamma_max: int) -> Policy:
    for key, value in (("least", least), ("longest", longest), ("tokens", tokens)):
        check_tokens("vllm-ngram", key, value)
    if least > longest:
        raise DraftgaugeError(f"policy vllm-ngram: least must be at most longest, {longest}, not {least}")
    return VllmNgram(least, longest, min(tokens, gamma_max))


@register_policy(
    "suffix",
    "appends the likeliest path after the suffixes that occurred before, by vLLM's numbers",
    complexity=3,
    grid={"factor": (1.0, 2.0, 4.0), "least": (0.1, 0.3)},
)
def suffix(depth: int = 24, factor: float = 1.0, least: float = 0.1, tokens: int = 24, *, gamma_max: int) -> Policy:
    check_tokens("suffix", "depth", depth)
    check_tokens("suffix", "tokens", tokens)
    check_share("suffix", "least", least)
    if not 0 < factor < 1e6:
        raise DraftgaugeError(f"policy suffix: factor must be a number above 0, not {factor}")
    return Suffix(depth, factor, least, min(tokens, gamma_max))


@register_policy(
    "ngram-mod",
    "appends what llama.cpp's --spec-default finds in its table of n-grams",
    complexity=3,
    grid={"ngram": (4, 12, 24), "least": (1, 8, 48)},
)
def ngram_mod(ngram: int = 24, least: int = 48, tokens: int = 64, *, gamma_max: int) -> Policy:
    for key, value in (("ngram", ngram), ("least", least), ("tokens", tokens)):
        check_tokens("ngram-mod", key, value)
    if least > tokens:
        raise DraftgaugeError(f"policy ngram-mod: least must be at most tokens, {tokens}, not {least}")
    return NgramMod(ngram, least, tokens, min(tokens, gamma_max))
