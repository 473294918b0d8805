"""Words that all kinds of math problems share: people, connectors by position, and filling them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from recipes.reference_pair.tasks.base import Words

# fmt: off
WOMEN = (
    "Anna", "Maria", "Nora", "Lena", "Clara", "Sofia", "Emma", "Olivia", "Amina", "Fatima", "Priya", "Mei",
    "Yuki", "Ingrid", "Greta", "Helen", "Ruth", "Alice", "Zoe", "Julia", "Laura", "Rosa", "Carmen", "Elena",
    "Irina", "Hana", "Leila", "Naomi", "Grace", "Lucy", "Martha", "Edith", "Ivy", "Hazel", "Nadia", "Tara",
    "Wendy", "Pilar", "Aisha", "Freya",
)
MEN = (
    "Ben", "Tom", "Omar", "David", "Peter", "Paul", "Victor", "Hugo", "Oscar", "Felix", "Jonas", "Liam", "Noah",
    "Ethan", "Ravi", "Arjun", "Kenji", "Chen", "Ivan", "Boris", "Karim", "Samir", "Diego", "Pablo", "Marco",
    "Luca", "Nils", "Lars", "Erik", "Henry", "George", "Walter", "Simon", "Daniel", "Adam", "Jakob", "Theo",
    "Max", "Leo", "Kofi",
)
# fmt: on

COLOURS = (
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "old",
    "new",
    "small",
    "large",
    "pale",
    "heavy",
    "light",
    "round",
)
# What has no colour or size: these stand without an adjective.
UNITS = frozenset(
    [
        "kilometre",
        "mile",
        "dollar",
        "euro",
        "franc",
        "pound",
        "lap",
        "round",
        "point",
        "goal",
        "hit",
        "page",
        "chapter",
        "line",
    ]
)

# What a sentence of an answer may begin with, by its position; the last one has its own.
CONNECTORS = (
    ("First, ", "To begin with, ", "In the first step, ", "At first, ", ""),
    ("Then ", "Next, ", "After that, ", "In the second step, "),
    ("Now ", "Afterwards, ", "In the third step, ", "Later, "),
    ("From there, ", "In the fourth step, ", "Further on, ", "Once that is done, "),
    ("Following that, ", "In the fifth step, ", "Continuing, ", "Moving on, "),
    ("Still later, ", "In the sixth step, ", "Going on, "),
)
LAST = ("Finally, ", "In the last step, ", "At the end, ", "To finish, ", "Lastly, ")


@dataclass
class Problem:
    """A problem under construction.

    Attributes:
        parts: the choices that shaped the prompt.
        prompt: its sentences, the question last.
        sentences: the worked steps and the conclusion.
        result: the right answer.
        unit: what the answer counts.
    """

    parts: list[str]
    prompt: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    result: int = 0
    unit: str = ""

    def pick(self, rng: Random, label: str, pool: tuple[str, ...]) -> str:
        """Draws a wording of the prompt, and records which."""
        index = rng.randrange(len(pool))
        self.parts.append(f"{label}{index}")
        return pool[index]


class Person:
    """A name with its pronouns."""

    def __init__(self, name: str, female: bool) -> None:
        self.name = name
        self.he, self.him, self.his = ("she", "her", "her") if female else ("he", "him", "his")


def people(rng: Random, count: int) -> list[Person]:
    """Different people, women and men in turn, so that a pronoun points at one of two neighbours."""
    female = rng.random() < 0.5
    women, men = rng.sample(WOMEN, count), rng.sample(MEN, count)
    return [
        Person(women[place] if (place % 2 == 0) == female else men[place], (place % 2 == 0) == female)
        for place in range(count)
    ]


def plural(noun: str) -> str:
    """The plural of a noun of our own lists."""
    if noun.endswith("y") and noun[-2] not in "aeou":
        return noun[:-1] + "ies"
    if noun.endswith("shelf"):
        return noun[:-1] + "ves"
    return noun + ("es" if noun.endswith(("ch", "sh", "x", "s", "ato")) else "s")


def thing(rng: Random, own: tuple[str, ...], words: Words | None) -> tuple[str, str]:
    """Something to count, singular and plural: of our own or, where given, of ``words``; at times with an adjective."""
    adjective = ""
    if rng.random() < 0.2:
        adjective = rng.choice(COLOURS) + " "
    if words is not None and rng.random() < 0.35:
        noun = rng.choice(words.nouns)
        if rng.random() < 0.2:
            adjective = rng.choice(words.adjectives) + " "
        return adjective + noun, adjective + noun + "s"
    noun = rng.choice(own)
    adjective = "" if noun in UNITS else adjective
    return adjective + noun, adjective + plural(noun)


def sentence(text: str, end: str = ".") -> str:
    """A text as a sentence."""
    return text[0].upper() + text[1:] + end


def connector(rng: Random, position: int, last: bool) -> str:
    """How the sentence of a position begins."""
    pool = LAST if last and position else CONNECTORS[min(position, len(CONNECTORS) - 1)]
    return rng.choice(pool)


def by_position(rng: Random, pool: tuple[str, ...], position: int, slots: Mapping[str, object]) -> str:
    """A wording for this position, filled in: neighbouring positions draw from different halves of the pool."""
    return rng.choice(pool[position % 2 :: 2]).format_map(slots)
