"""Reference answers of the chat task: what was asked for and what else its entry says, in wordings drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from recipes.reference_pair.tasks.chat import phrases
from recipes.reference_pair.tasks.chat.notes import Entry, Notes, capitalized, subject
from recipes.reference_pair.tasks.chat.questions import Question
from recipes.reference_pair.tasks.chat.scenes import Attribute


class Teller:
    """Composes one answer and uses no wording twice in it, where another is left."""

    def __init__(self, rng: Random, notes: Notes) -> None:
        self.rng = rng
        self.notes = notes
        self.names = {"title": notes.scene.title, "item": notes.scene.item, "again": notes.scene.again}
        self._used: set[str] = set()

    def says(self, attribute: Attribute, entry: Entry) -> str:
        """A predicate that gives an attribute of an entry."""
        fresh = [form for form in attribute.says if form not in self._used]
        form = self.rng.choice(fresh or attribute.says)
        self._used.add(form)
        return form.format(v=entry.values[attribute.name])

    def name(self, entry: Entry) -> str:
        return subject(self.notes.scene, entry)

    def rest(self, asked: Sequence[Attribute]) -> list[Attribute]:
        """The other attributes in a drawn order."""
        others = [each for each in self.notes.attributes if each not in asked]
        self.rng.shuffle(others)
        return others

    def phrase(self, options: Sequence[str], **parts: str) -> str:
        """A sentence drawn from some, its gaps filled."""
        form = self.rng.choice([option for option in options if option not in self._used])
        self._used.add(form)
        return capitalized(form.format(**self.names, **parts))

    def opened(self, sentence: str) -> str:
        """A first sentence on the facts, after a word or two that lead to it."""
        return self.phrase(phrases.OPENERS) + sentence

    def led(self, stated: Sequence[str], pointed: Sequence[str]) -> str:
        """A first sentence, drawn from some on the facts and some on what the question means."""
        at = self.rng.randrange(len(stated) + len(pointed))
        if at < len(stated):
            return self.opened(stated[at])
        return self.phrase(phrases.LEADS) + pointed[at - len(stated)]

    def follow(self, entry: Entry, rest: Sequence[Attribute]) -> list[str]:
        """Sentences on what else is known of an entry."""
        if not rest:
            return []
        if len(rest) == 1:
            return [self.phrase(phrases.FOLLOW_ONE, b=self.says(rest[0], entry))]
        two = self.phrase(phrases.FOLLOW_TWO, b=self.says(rest[0], entry), c=self.says(rest[1], entry))
        return [two, *(f"Finally, {self.names['again']} {self.says(each, entry)}." for each in rest[2:])]

    def where(self, entry: Entry, asked: Sequence[Attribute]) -> list[str]:
        """Sometimes a sentence on the place of an entry in the list, and on the entry before it."""
        at = self.notes.entries.index(entry)
        if self.rng.random() < 0.6:
            return []
        if at == 0:
            return [self.phrase(phrases.FIRST)]
        before = self.notes.entries[at - 1]
        named = self.name(before)
        rest = self.rest(asked)
        if rest and self.rng.random() < 0.6:
            pronoun = "who" if self.notes.scene.relative == "who" else "which"
            return [self.phrase(phrases.BEFORE, y=named, b=f"{pronoun} {self.says(rest[0], before)}")]
        return [self.phrase(phrases.AFTER, y=named)]


def tell_direct(teller: Teller, question: Question) -> list[str]:
    entry, (attribute,) = question.entries[0], question.asked
    rest = teller.rest(question.asked)
    main = teller.opened(f"{teller.name(entry)} {teller.says(attribute, entry)}")
    if len(rest) > 1 and teller.rng.random() < 0.4:
        main += f", and {teller.names['again']} {teller.says(rest.pop(), entry)}"
    return [main + ".", *teller.follow(entry, rest), *teller.where(entry, question.asked)]


def tell_reverse(teller: Teller, question: Question) -> list[str]:
    entry, (attribute,) = question.entries[0], question.asked
    scene = teller.notes.scene
    name, said = teller.name(entry), teller.says(attribute, entry)
    stated = (f"{name} {said}.", f"the one {scene.relative} {said} is {name}.")
    pointed = (
        f"it is {name} {scene.relative} {said}.",
        f"the {scene.item} you mean is {name}; {teller.names['again']} {said}.",
        f"that must be {name}, the one {scene.relative} {said}.",
    )
    return [teller.led(stated, pointed), *teller.follow(entry, teller.rest(question.asked))]


def tell_chain(teller: Teller, question: Question) -> list[str]:
    entry, (given, attribute) = question.entries[0], question.asked
    again, name = teller.names["again"], teller.name(entry)
    said, wanted = teller.says(given, entry), teller.says(attribute, entry)
    stated = (f"{name} {said}, and {again} {wanted}.", f"{name} {said}; {again} {wanted}.")
    pointed = (
        f"the {teller.notes.scene.item} in question is {name}, and {again} {wanted}.",
        f"this is about {name}; {again} {wanted}.",
        f"you mean {name}, and {again} {wanted}.",
    )
    return [
        teller.led(stated, pointed),
        *teller.follow(entry, teller.rest(question.asked)),
        *teller.where(entry, question.asked),
    ]


def tell_pair(teller: Teller, question: Question) -> list[str]:
    first, second = question.entries
    (attribute,) = question.asked
    link = teller.rng.choice((", while ", ", whereas ", " and ", "; "))
    one = f"{teller.name(first)} {teller.says(attribute, first)}"
    main = teller.opened(f"{one}{link}{teller.name(second)} {teller.says(attribute, second)}.")
    sentences = [main]
    for each in teller.rest(question.asked)[: teller.rng.choice((1, 1, 2))]:
        told = {"b": teller.says(each, first), "c": teller.says(each, second)}
        sentences.append(teller.phrase(phrases.BOTH, **told))
    return sentences


def tell_two(teller: Teller, question: Question) -> list[str]:
    entry, again = question.entries[0], teller.names["again"]
    first, second = (teller.says(each, entry) for each in question.asked)
    link = teller.rng.choice((" and ", f", and {again} ", f"; {again} "))
    main = teller.opened(f"{teller.name(entry)} {first}{link}{second}.")
    return [main, *teller.follow(entry, teller.rest(question.asked)), *teller.where(entry, question.asked)]


def tell_all(teller: Teller, question: Question) -> list[str]:
    entry, again = question.entries[0], teller.names["again"]
    asked = teller.rest(())
    said = [teller.says(each, entry) for each in asked[:2]]
    forms = (
        f"{teller.name(entry)} {said[0]} and {said[1]}.",
        f"{teller.name(entry)} {said[0]}, and {again} {said[1]}.",
        f"{teller.name(entry)} {said[0]}; {again} {said[1]}.",
    )
    return [
        teller.opened(teller.rng.choice(forms)),
        *teller.follow(entry, asked[2:]),
        *teller.where(entry, question.asked),
    ]


def tell_shared(teller: Teller, question: Question) -> list[str]:
    (attribute,) = question.asked
    names = [teller.name(entry) for entry in question.entries]
    listed = ", ".join(names[:-1]) + " and " + names[-1]
    said = attribute.plural.format(v=question.entries[0].values[attribute.name])
    count, item = phrases.COUNTS[len(names)], teller.names["item"]
    endings = (f", so that makes {count} {item}s", f", which makes {count} in all", f", and these are {count} {item}s")
    sentences = [teller.opened(f"{listed} {said}{teller.rng.choice(endings)}.")]
    rest = teller.rest(question.asked)
    if len(names) == 2:
        first, second = question.entries
        told = {"b": teller.says(rest[0], first), "c": teller.says(rest[0], second)}
        sentences.append(teller.phrase(phrases.BOTH, **told))
    else:
        parts = [f"{teller.name(entry)} {teller.says(rest[0], entry)}" for entry in question.entries[:3]]
        sentences.append(capitalized(f"{', '.join(parts[:-1])}, and {parts[-1]}."))
    return sentences


TELLING: dict[str, Callable[[Teller, Question], list[str]]] = {
    "direct": tell_direct, "reverse": tell_reverse, "chain": tell_chain, "pair": tell_pair, "two": tell_two,
    "all": tell_all, "shared": tell_shared,
}  # fmt: skip


def answer_to(rng: Random, notes: Notes, question: Question) -> str:
    """One right answer of many."""
    teller = Teller(rng, notes)
    sentences = TELLING[question.kind](teller, question)
    length = sum(map(len, sentences))
    if length < 130 or rng.random() < 0.25:
        sentences.append(teller.phrase(phrases.REMARKS))
    if length < 160 or rng.random() < 0.8:
        sentences.append(teller.phrase(phrases.OFFERS))
    return " ".join(map(capitalized, sentences))
