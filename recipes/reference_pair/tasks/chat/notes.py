"""The facts of a chat: the entries of a scene with values of their own, and the text that states them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.chat import phrases as shared
from recipes.reference_pair.tasks.chat import plain, scenes_home, scenes_work
from recipes.reference_pair.tasks.chat.plain import agree
from recipes.reference_pair.tasks.chat.scenes import POOLS, Attribute, Scene

SCENES = scenes_home.SCENES + scenes_work.SCENES
LAYOUTS = ("prose",) * 6 + ("table", "table", "bullets", "numbered", "labelled", "lines")
# Forms of a sentence on an entry, by its number of attributes.
SENTENCES = {
    1: ("{x} {b}.", "As for {x}, it {b}.", "{x} {b}.", "Then there is {x}: it {b}.", "{x} {b}."),
    2: (
        "{x} {b} and {c}.", "{x} {b}. {again} {c}.", "As for {x}, it {b} and {c}.",
        "Then there is {x}: it {b}, and it {c}.",
        "{x} {b}; it {c}.",
    ),
    3: (
        "{x} {b}, {c} and {d}.", "{x} {b}. {again} {c} and {d}.", "As for {x}, it {b}, {c} and {d}.",
        "Then there is {x}: it {b} and {c}. {again} {d}.", "{x} {b} and {c}; it {d}.",
    ),
    4: (
        "{x} {b} and {c}. {again} {d} and {e}.", "{x} {b}. {again} {c}, {d} and {e}.",
        "As for {x}, it {b} and {c}; it {d} and {e}.", "Then there is {x}: it {b}, {c} and {d}. {again} {e}.",
        "{x} {b}, {c} and {d}; it {e}.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """An entry's key and its value of every attribute by name."""

    key: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Notes:
    """The entries of one conversation; ``shared`` is the attribute in which some of them agree, if any."""

    scene: Scene
    attributes: tuple[Attribute, ...]
    entries: tuple[Entry, ...]
    shared: Attribute | None = None


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def subject(scene: Scene, entry: Entry) -> str:
    return scene.subject.format(k=entry.key)


def says(attribute: Attribute, form: int, value: str) -> str:
    return attribute.says[form % len(attribute.says)].format(v=value)


@lru_cache(maxsize=1)
def fixed_words() -> frozenset[str]:
    """Words of the wordings: none of them may be an entry's key or value taken from ``Words``."""
    phrases = [phrase for pool in POOLS.values() for phrase in pool]
    for scene in SCENES:
        phrases += [scene.title, scene.item, scene.subject, scene.again, *scene.intros]
        for attribute in scene.attributes:
            phrases += [attribute.name, attribute.cell, attribute.label, attribute.plural]
            phrases += attribute.says + attribute.asks
    for value in vars(shared).values():
        if isinstance(value, tuple):
            phrases += [part for item in value for part in (item if isinstance(item, tuple) else (item,))]
    return frozenset(word for phrase in phrases for word in re.findall(r"[a-z]+", phrase.lower()))


@lru_cache(maxsize=4)
def free_nouns(nouns: tuple[str, ...]) -> tuple[str, ...]:
    """The nouns that occur in no wording, neither as singular nor as plural."""
    fixed = fixed_words()
    return tuple(noun for noun in nouns if noun not in fixed and noun + "s" not in fixed)


def draw_value(rng: Random, kind: str, words: Words, used: set[str]) -> str:
    """A value of a kind that the conversation does not hold yet."""
    while True:
        value = one_value(rng, kind, words)
        stem = value.removesuffix("s").lower()
        if stem not in used and not (kind == "identifier" and value in fixed_words()):
            used.add(stem)
            return value


def one_value(rng: Random, kind: str, words: Words) -> str:
    if kind.startswith("int "):
        _, low, high = kind.split(" ")
        return str(rng.randint(int(low), int(high)))
    if kind == "time":
        return f"{rng.randint(6, 22)}:{5 * rng.randrange(12):02d}"
    if kind == "identifier":
        return rng.choice(words.identifiers)
    if kind in ("noun", "nouns"):
        return rng.choice(free_nouns(words.nouns)) + ("s" if kind == "nouns" else "")
    return rng.choice(POOLS[kind])


def draw_notes(rng: Random, words: Words, scene: Scene, count: int, sharing: bool) -> Notes:
    """Notes of some entries, in which no value occurs twice but those of a shared attribute."""
    number = min(rng.choice((2, 3, 3, 4, 4)), len(scene.attributes))
    attributes = tuple(rng.sample(scene.attributes, number))
    able = [attribute for attribute in attributes if attribute.plural]
    shared = rng.choice(able) if sharing and able else None
    limits = [len(POOLS[each.kind]) for each in attributes if each.kind in POOLS]
    count = min(count, len(POOLS.get(scene.kind, "." * 99)), *limits, 8)
    used: set[str] = set()
    keys = [draw_value(rng, scene.kind, words, used) for _ in range(count)]
    columns = {
        each.name: shared_values(rng, each, words, used, count)
        if each is shared
        else [draw_value(rng, each.kind, words, used) for _ in range(count)]
        for each in attributes
    }
    entries = (Entry(key, {name: values[at] for name, values in columns.items()}) for at, key in enumerate(keys))
    return Notes(scene, attributes, tuple(entries), shared)


def shared_values(rng: Random, attribute: Attribute, words: Words, used: set[str], count: int) -> list[str]:
    """Values of which one stands at two to four entries, and each other at one."""
    times = min(rng.choice((2, 2, 2, 3, 3, 4)), count - 1)
    common = draw_value(rng, attribute.kind, words, used)
    values = [common] * times + [draw_value(rng, attribute.kind, words, used) for _ in range(count - times)]
    rng.shuffle(values)
    return values


def stated(notes: Notes, entries: Sequence[Entry], layout: str, wording: int, start: int) -> str:
    """The text of some entries, the first of which is number ``start`` of all."""
    if layout == "prose":
        lines = (sentence(notes, entry, wording + start + at) for at, entry in enumerate(entries))
        return " ".join(lines)
    if layout == "table":
        return table(notes, entries)
    return "\n".join(line(notes, entry, layout, start + at + 1) for at, entry in enumerate(entries))


def sentence(notes: Notes, entry: Entry, form: int) -> str:
    """A sentence or two on an entry; the forms take turns from entry to entry."""
    options = SENTENCES[len(notes.attributes)]
    name = subject(notes.scene, entry)
    parts = dict(zip("bcde", (says(each, form, entry.values[each.name]) for each in notes.attributes), strict=False))
    again = notes.scene.again
    pattern = options[form % len(options)].replace(" it ", f" {again} ")
    return capitalized(pattern.format(x=name, again=capitalized(again), **parts))


def cells(notes: Notes, entry: Entry) -> list[str]:
    """The values of an entry as they stand in a list."""
    return [each.cell.format(v=entry.values[each.name]) for each in notes.attributes]


def table(notes: Notes, entries: Sequence[Entry]) -> str:
    """A Markdown table with one row for each entry."""
    rows = [[notes.scene.item, *(each.name for each in notes.attributes)], ["---"] * (len(notes.attributes) + 1)]
    rows += [[entry.key, *cells(notes, entry)] for entry in entries]
    rows[0] = [capitalized(cell) for cell in rows[0]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def line(notes: Notes, entry: Entry, layout: str, number: int) -> str:
    """The line of an entry in a list."""
    values = ", ".join(cells(notes, entry))
    if layout == "bullets":
        return f"- {entry.key}: {values}"
    if layout == "numbered":
        return f"{number}. {capitalized(subject(notes.scene, entry))} ({values})"
    if layout == "lines":
        return f"{entry.key} = {values}"
    named = (f"{each.name} {entry.values[each.name]}" for each in notes.attributes)
    return f"* {capitalized(subject(notes.scene, entry))}; {'; '.join(named)}"


def draw_sentence(rng: Random, words: Words, pattern: str, nouns: Sequence[str]) -> str:
    """A sentence of filler with words in its gaps."""
    noun, other = rng.sample(nouns, 2)
    first, second = rng.sample(words.adjectives, 2)
    return agree(pattern.format(n=noun, m=other, a=first, b=second, v=rng.choice(words.verbs)))


def unused_nouns(notes: Notes, words: Words) -> list[str]:
    """Nouns for the filler: none of them is a key or a value of the notes."""
    taken = {text.removesuffix("s") for entry in notes.entries for text in (entry.key, *entry.values.values())}
    return [noun for noun in free_nouns(words.nouns) if noun not in taken] or list(plain.PLACES)
