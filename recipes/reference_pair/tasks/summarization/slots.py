"""Values for the slots of a text, drawn when a slot is first met and the same afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.summarization import names

_VOWEL_SOUND = re.compile(
    r"\b([Aa]) (?=(?!uni(?![mnd])|use|usu|uti|eu|one\b|once\b)[aeiou]|hour|honest|heir|honou?r)", re.IGNORECASE
)


class Slots(dict[str, str]):
    """Values by slot, for ``str.format_map``; a digit at a slot's end asks for a second value of the kind."""

    def __init__(self, rng: Random, words: Words, known: dict[str, str]) -> None:
        super().__init__(known)
        self._rng, self._words = rng, words

    def __missing__(self, slot: str) -> str:
        self[slot] = value = _DRAWN[slot.rstrip("2")](self)
        return value

    def choice(self, options: tuple[str, ...]) -> str:
        """One of the options."""
        return options[int(self._rng.random() * len(options))]

    def other(self, options: tuple[str, ...], slot: str) -> str:
        """One of the options that is not the value of a slot."""
        value = self.choice(options)
        while value == self.get(slot):
            value = self.choice(options)
        return value

    def number(self, low: int, high: int) -> str:
        """A number from ``low`` to ``high``."""
        return str(self._rng.randint(low, high))

    def day(self) -> str:
        """A day of the year, such as "4 May"."""
        return f"{self.number(1, 28)} {self.choice(names.MONTHS)}"

    def person(self) -> str:
        """A full name."""
        return f"{self.choice(names.FIRST_NAMES)} {self.choice(names.SURNAMES)}"

    @property
    def words(self) -> Words:
        """The vocabulary."""
        return self._words


_DRAWN: dict[str, Callable[[Slots], str]] = {
    "noun": lambda s: s.other(s.words.nouns, "noun"),
    "topic": lambda s: s.choice(s.words.nouns),
    "Noun": lambda s: s.choice(s.words.nouns).capitalize(),
    "adj": lambda s: s.choice(s.words.adjectives),
    "verb": lambda s: s.choice(s.words.verbs),
    "ident": lambda s: s.choice(s.words.identifiers),
    "town": lambda s: s.other(names.TOWNS, "town"),
    "other": lambda s: s.other(names.TOWNS, "town"),
    "street": lambda s: s.choice(names.STREETS),
    "firm": lambda s: s.choice(names.FIRMS),
    "product": lambda s: s.choice(names.PRODUCTS),
    "version": lambda s: f"{s.number(1, 9)}.{s.number(10, 49)}",
    "name": Slots.person,
    "person": Slots.person,
    "n": lambda s: s.number(42, 989),
    "m": lambda s: s.number(32, int(s["n"]) - 1),
    "before": lambda s: s.number(42, 989),
    "months": lambda s: s.number(12, 60),
    "number": lambda s: s.number(11, 899),
    "year": lambda s: s.number(1890, 2019),
    "month": lambda s: s.choice(names.MONTHS),
    "date": Slots.day,
    "weekday": lambda s: s.choice(names.WEEKDAYS),
    "currency": lambda s: s.choice(names.CURRENCIES),
}


def sentence(text: str) -> str:
    """The text with a capital first letter and "an" where a vowel is heard."""
    return _VOWEL_SOUND.sub(r"\1n ", text[0].upper() + text[1:])
