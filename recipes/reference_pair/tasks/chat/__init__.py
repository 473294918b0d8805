"""The task "chat": facts that stand earlier in a conversation, and a question that needs some of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Example, Words
from recipes.reference_pair.tasks.chat import phrases
from recipes.reference_pair.tasks.chat.answers import answer_to
from recipes.reference_pair.tasks.chat.notes import (
    LAYOUTS,
    SCENES,
    Notes,
    draw_notes,
    draw_sentence,
    free_nouns,
    stated,
    unused_nouns,
)
from recipes.reference_pair.tasks.chat.plain import draw_plain
from recipes.reference_pair.tasks.chat.questions import ASKING, WEIGHTS, Question

PLAIN_SHARE = 0.15
CHARACTERS = 3.9  # of a token of this text, near enough to aim at a length
SIZES = ((80, 230), (250, 550), (560, 1080))
SIZE_WEIGHTS = (30, 40, 30)
ENTRIES = ((3, 4), (4, 6), (4, 8))
# Where the filler stands: before or after the facts, before the question, in turns of talk, of text, or of both.
FILLERS = ("after", "question", "talk", "text", "mixed", "before")
FILLER_WEIGHTS = (15, 20, 20, 15, 22, 8)
Turn = tuple[str, str]


@dataclass(frozen=True)
class Shape:
    """The choices that make the template besides those of the question."""

    layout: str
    wording: int
    intro: int
    turns: int
    filler: str
    preface: str


def draw(rng: Random, words: Words) -> Example:
    """An example of any template."""
    if rng.random() < PLAIN_SHARE:
        return draw_plain(rng, words, free_nouns(words.nouns))
    size = rng.choices((0, 1, 2), SIZE_WEIGHTS)[0]
    budget = int(rng.randint(*SIZES[size]) * CHARACTERS)
    kind = rng.choices(tuple(ASKING), WEIGHTS)[0]
    notes = draw_notes(rng, words, rng.choice(SCENES), rng.randint(*ENTRIES[size]), kind == "shared")
    question = ASKING[kind](rng, notes)
    shape = draw_shape(rng, size)
    answer = answer_to(rng, notes, question)
    preface = shape.preface.format(title=notes.scene.title)
    asked = f"{preface} {question.text}".strip()
    messages = conversation(rng, words, notes, shape, asked, budget - len(answer))
    return Example("chat", template_of(notes, shape, question), messages, answer, question.check)


def template_of(notes: Notes, shape: Shape, question: Question) -> str:
    """The structural choices of a question on notes."""
    order = "-".join(each.name for each in notes.attributes)
    return "/".join((notes.scene.name, order, *map(str, vars(shape).values()), question.kind, question.form))


def draw_shape(rng: Random, size: int) -> Shape:
    """The outline of a conversation of a size; the shortest have no filler."""
    filler = "none" if size == 0 and rng.random() < 0.5 else rng.choices(FILLERS, FILLER_WEIGHTS)[0]
    turns = rng.choice((0, 1, 1, 2)) if size == 0 else rng.choice((0, 1, 1, 2, 2, 3))
    preface = rng.choice(phrases.PREFACES)
    return Shape(rng.choice(LAYOUTS), rng.randrange(5), rng.randrange(3), turns, filler, preface)


def conversation(rng: Random, words: Words, notes: Notes, shape: Shape, asked: str, budget: int) -> tuple[Turn, ...]:
    """The turns up to the question; ``budget`` is the number of characters that they should reach."""
    pieces = fact_messages(rng, notes, shape)
    room = budget - sum(map(len, pieces)) - len(asked)
    filler = Filler(rng, words, unused_nouns(notes, words))
    if shape.filler == "before":
        pieces[0] = f"{filler.text(room)} {pieces[0]}".strip()
    if shape.filler == "after":
        pieces[-1] = f"{pieces[-1]}\n{filler.text(room)}".strip()
    if shape.filler == "question":
        asked = f"{filler.text(room)}\n{asked}".strip()
    turns: list[Turn] = []
    for piece in pieces:
        reply = rng.choice(phrases.NOTED).format(title=notes.scene.title, item=notes.scene.item)
        turns += [("user", piece), ("assistant", reply)]
    if shape.filler in ("talk", "text", "mixed"):
        turns += filler.turns(room, shape.filler)
    if shape.turns == 0 and len(turns) == 2:
        return (("user", f"{turns[0][1]}\n{asked}"),)
    return (*turns, ("user", asked))


def fact_messages(rng: Random, notes: Notes, shape: Shape) -> list[str]:
    """The facts, in one message or in several."""
    parts = max(1, min(shape.turns, len(notes.entries)))
    bounds = [round(at * len(notes.entries) / parts) for at in range(parts + 1)]
    opening = [notes.scene.intros[shape.intro], *(rng.choice(phrases.MORE) for _ in range(parts - 1))]
    gap = " " if shape.layout == "prose" else "\n"
    return [
        opening[at] + gap + stated(notes, notes.entries[low:high], shape.layout, shape.wording, low)
        for at, (low, high) in enumerate(pairwise(bounds))
    ]


class Filler:
    """Text without facts, of about a given number of characters."""

    def __init__(self, rng: Random, words: Words, nouns: Sequence[str]) -> None:
        self._rng, self._words, self._nouns = rng, words, nouns
        self._prose: list[str] = []
        self._talk: list[Turn] = []

    def text(self, room: int) -> str:
        """Sentences of general prose; none where there is hardly room for one."""
        sentences: list[str] = []
        while room > 40:
            self._prose = self._prose or self._rng.sample(phrases.PROSE, len(phrases.PROSE))
            sentences.append(self._filled(self._prose.pop()))
            room -= len(sentences[-1]) + 1
        return " ".join(sentences)

    def turns(self, room: int, kind: str) -> list[Turn]:
        """Turns of small talk, of read-out texts, or of both by turns."""
        found: list[Turn] = []
        while room > 60:
            talk = kind == "talk" or (kind == "mixed" and self._rng.random() < 0.6)
            remark, reply = self._talked() if talk else self._read(min(room, self._rng.randint(300, 1500)))
            found += [("user", remark), ("assistant", reply)]
            room -= len(remark) + len(reply) + 10
        return found

    def _talked(self) -> Turn:
        self._talk = self._talk or self._rng.sample(phrases.TALK, len(phrases.TALK))
        remark, reply = self._talk.pop()
        return self._filled(remark), reply

    def _read(self, room: int) -> Turn:
        return f"{self._rng.choice(phrases.ASIDES)} {self.text(room)}", self._rng.choice(phrases.REPLIES)

    def _filled(self, pattern: str) -> str:
        return draw_sentence(self._rng, self._words, pattern, self._nouns)


def score(check: Mapping[str, Any], answer: str) -> float:
    """1.0 if the answer holds every fact asked for and no value of a competing entry, else 0.0."""
    if "sentences" in check and not flows(answer, check["sentences"]):
        return 0.0
    named = all(any(position(answer, fact) is not None for fact in facts) for facts in check["facts"])
    strayed = any(position(answer, value) is not None for value in check["wrong"])
    return float(named and not strayed and in_order(check.get("pairs", ()), answer))


def position(answer: str, text: str) -> int | None:
    """Where a word or number stands in the answer as a whole, not as part of another."""
    found = re.search(rf"(?<!\w)(?<!\d[.:,]){re.escape(text)}(?!\w)(?![.:,]\d)", answer, re.IGNORECASE)
    return found.start() if found else None


def in_order(pairs: Sequence[tuple[str, Sequence[str]]], answer: str) -> bool:
    """Whether keys and their values come in the same order; true where a key is not named."""
    keys = [position(answer, key) for key, _ in pairs]
    if any(key is None for key in keys):
        return True
    first = [min(at for value in values if (at := position(answer, value)) is not None) for _, values in pairs]
    numbers = range(len(pairs))
    return sorted(numbers, key=lambda at: keys[at] or 0) == sorted(numbers, key=lambda at: first[at])


def flows(answer: str, least: int) -> bool:
    """Whether an answer has enough sentences of several words, and none twice."""
    sentences = [part.strip().lower() for part in re.findall(r"[^.!?]+[.!?]", answer)]
    enough = sum(len(re.findall(r"[a-z']+", part)) >= 3 for part in sentences) >= least
    return enough and len(set(sentences)) == len(sentences)
