"""The questions of a chat on its notes, each with what a right answer holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from recipes.reference_pair.tasks.chat import phrases
from recipes.reference_pair.tasks.chat.notes import Entry, Notes, says, subject
from recipes.reference_pair.tasks.chat.scenes import Attribute


@dataclass(frozen=True)
class Question:
    """A question of a kind on some entries.

    Attributes:
        form: its wording without the names, the parts of it joined by "/".
        entries: the entries asked about.
        asked: the attributes given or asked for, in the order of the question.
    """

    kind: str
    form: str
    text: str
    entries: tuple[Entry, ...]
    asked: tuple[Attribute, ...]
    check: dict[str, Any]


def alternatives(kind: str, value: str) -> list[str]:
    """The ways to write a value that count as right."""
    if kind == "time":
        hour, minute = value.split(":")
        return [value, f"{hour}.{minute}", f"{(int(hour) - 1) % 12 + 1}:{minute} {'pm' if int(hour) > 11 else 'am'}"]
    if kind == "noun":
        return [value, value + "s"]
    if kind == "nouns":
        return [value, value.removesuffix("s")]
    return [value]


def facts(attribute: Attribute, entries: Sequence[Entry]) -> list[list[str]]:
    return [alternatives(attribute.kind, entry.values[attribute.name]) for entry in entries]


def wrong(notes: Notes, attributes: Sequence[Attribute], right: Sequence[Entry]) -> list[str]:
    """The values of the other entries for some attributes."""
    others = [entry for entry in notes.entries if entry not in right]
    return [entry.values[each.name] for each in attributes for entry in others]


def lowered(text: str) -> str:
    """Two questions as one sentence each, the second of which goes on after "And"."""
    return re.sub(r"(?<= And )[A-Z]", lambda first: first[0].lower(), text)


def ask_direct(rng: Random, notes: Notes) -> Question:
    """One attribute of one entry."""
    entry, attribute = rng.choice(notes.entries), rng.choice(notes.attributes)
    form = rng.choice(attribute.asks + attribute.asks + phrases.DIRECT)
    text = form.format(x=subject(notes.scene, entry), label=attribute.label)
    check = {"facts": facts(attribute, [entry]), "wrong": wrong(notes, [attribute], [entry])}
    return Question("direct", form, text, (entry,), (attribute,), check)


def ask_reverse(rng: Random, notes: Notes) -> Question:
    """The entry that has a value."""
    entry, attribute = rng.choice(notes.entries), rng.choice(notes.attributes)
    form, said = rng.choice(phrases.REVERSE), rng.randrange(3)
    predicate = says(attribute, said, entry.values[attribute.name])
    text = form.format(item=notes.scene.item, says=predicate, relative=notes.scene.relative)
    keys = [other.key for other in notes.entries if other is not entry]
    check = {"facts": [alternatives(notes.scene.kind, entry.key)], "wrong": keys}
    return Question("reverse", f"{form}/{attribute.name}/{said}", text, (entry,), (attribute,), check)


def ask_chain(rng: Random, notes: Notes) -> Question:
    """One attribute of the entry that has a value of another."""
    entry, (given, attribute) = rng.choice(notes.entries), rng.sample(notes.attributes, 2)
    form, said = rng.choice(attribute.asks + phrases.DIRECT), rng.randrange(3)
    scene = notes.scene
    described = f"the {scene.item} {scene.relative} {says(given, said, entry.values[given.name])}"
    check = {"facts": facts(attribute, [entry]), "wrong": wrong(notes, [attribute], [entry])}
    text = form.format(x=described, label=attribute.label)
    return Question("chain", f"{form}/{given.name}/{said}", text, (entry,), (given, attribute), check)


def ask_pair(rng: Random, notes: Notes) -> Question:
    """One attribute of two entries."""
    first, second = rng.sample(notes.entries, 2)
    attribute = rng.choice(notes.attributes)
    own = (" And ".join(pair) for pair in (attribute.asks, attribute.asks[::-1]))
    forms = tuple(form.replace("{x}", "{y}").replace("{y}", "{x}", 1) for form in own) + phrases.PAIR
    form = rng.choice(forms)
    halves = form.format(x=subject(notes.scene, first), y=subject(notes.scene, second), label=attribute.label).split(
        " And "
    )
    text = " And ".join(half if at == 0 else half[0].lower() + half[1:] for at, half in enumerate(halves))
    values = [facts(attribute, [entry]) for entry in (first, second)]
    check = {
        "facts": [value for found in values for value in found],
        "wrong": wrong(notes, [attribute], [first, second]),
        "pairs": [[first.key, values[0][0]], [second.key, values[1][0]]],
    }
    return Question("pair", form.replace("? And ", "?/"), text, (first, second), (attribute,), check)


def ask_two(rng: Random, notes: Notes) -> Question:
    """Two attributes of one entry."""
    entry, asked = rng.choice(notes.entries), tuple(rng.sample(notes.attributes, 2))
    own = f"{asked[0].asks[0]}/{asked[1].asks[1]}"
    form = rng.choice((own, own, *phrases.TWO))
    name = subject(notes.scene, entry)
    text = form.replace("/", " And ").format(x=name, label=asked[0].label, other=asked[1].label)
    found = [value for each in asked for value in facts(each, [entry])]
    check = {"facts": found, "wrong": wrong(notes, asked, [entry])}
    return Question("two", form, lowered(text), (entry,), asked, check)


def ask_all(rng: Random, notes: Notes) -> Question:
    """Everything about one entry."""
    entry, form = rng.choice(notes.entries), rng.choice(phrases.ALL)
    found = [value for each in notes.attributes for value in facts(each, [entry])]
    check = {"facts": found, "wrong": wrong(notes, notes.attributes, [entry])}
    return Question("all", form, form.format(x=subject(notes.scene, entry)), (entry,), notes.attributes, check)


def ask_shared(rng: Random, notes: Notes) -> Question:
    """The entries that agree in an attribute, or how many they are."""
    attribute = notes.shared
    if attribute is None:
        return ask_reverse(rng, notes)
    values = [entry.values[attribute.name] for entry in notes.entries]
    common = max(values, key=values.count)
    found = tuple(entry for entry in notes.entries if entry.values[attribute.name] == common)
    form = rng.choice(phrases.SHARED)
    text = form.format(item=notes.scene.item, plural=attribute.plural.format(v=common))
    right = [alternatives(notes.scene.kind, entry.key) for entry in found]
    if "many" in form or "count" in form:
        right.append([phrases.COUNTS[len(found)], str(len(found))])
    others = [entry.key for entry in notes.entries if entry not in found]
    return Question("shared", form, text, found, (attribute,), {"facts": right, "wrong": others})


ASKING: dict[str, Callable[[Random, Notes], Question]] = {
    "direct": ask_direct, "reverse": ask_reverse, "chain": ask_chain, "pair": ask_pair, "two": ask_two, "all": ask_all,
    "shared": ask_shared,
}  # fmt: skip
WEIGHTS = (28, 16, 12, 13, 11, 12, 8)
