"""Scenes of the chat task: what the entries of a list are, what is said of each, and how one asks for it.

Every predicate (``says``) serves in the statement, in the question ("Which item ...?") and in the answer, so that the
wording of an answer never needs a phrase that no prompt holds.
"""

from __future__ import annotations

from dataclasses import dataclass


def listed(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


NAMES = listed(
    """Ada Amir Anna Anton Astrid Bela Bruno Carla Carlos Chloe Clara Daniel David Diego Dora Elena Elias Emil Emma
    Esther Fatima Felix Fiona Frank Gerda Greta Hana Hassan Helen Henry Hugo Ida Igor Ines Irene Ivan Jakob Jana
    Jasper Johan Jonas Julia Kamil Karim Karin Kenji Lara Laura Leo Liam Lina Lucas Luisa Maria Marta Martin
    Maya Mila Mina Mona Nadia Nico Nina Noah Nora Olga Oliver Omar Oscar Paula Pedro Petra Priya Rahul Robert
    Rosa Ruth Samir Sara Sofia Stefan Susan Tara Theo Thomas Tina Tobias Uma Vera Victor Wanda Yara Yusuf Zoe"""
)
CITIES = listed(
    """Aachen Ankara Athens Basel Bergen Berlin Bilbao Boston Bremen Bristol Cairo Calais Chicago Cork Dakar Dallas
    Delhi Denver Dresden Dublin Dundee Florence Geneva Genoa Ghent Glasgow Graz Hamburg Helsinki Jakarta Kyoto
    Leeds Leipzig Lima Lisbon Liverpool Ljubljana London Lyon Madrid Malmo Milan Montreal Munich Naples Nairobi
    Odessa Oslo Oxford Paris Porto Prague Quito Riga Rome Salzburg Seville Sofia Sydney Tallinn Tokyo Toledo
    Turin Utrecht Valencia Vienna Vilnius Warsaw York Zagreb Zurich"""
)
POOLS: dict[str, tuple[str, ...]] = {
    "person": tuple(name for name in NAMES if name not in CITIES),
    "city": tuple(city for city in CITIES if city not in NAMES),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month": listed("January February March April June July August September October November December"),
    "colour": listed("red blue green yellow black white grey brown purple pink silver beige turquoise"),
    "material": listed("oak steel glass clay copper bronze marble leather paper silk wool ivory granite brass"),
    "job": listed(
        """baker teacher nurse lawyer painter plumber carpenter driver dentist librarian gardener pilot tailor
        judge waiter mechanic chemist banker farmer singer"""
    ),
    "plant": listed(
        """fern cactus orchid basil lavender rosemary begonia jasmine tulip ivy geranium aloe palm mint fig lily
        hibiscus bamboo violet thyme"""
    ),
    "food": listed(
        """flour sugar butter rice milk honey cheese spinach garlic pumpkin barley yoghurt cocoa parsley bacon
        cabbage celery salmon oregano mustard"""
    ),
    "place": listed(
        """kitchen hallway attic cellar bathroom bedroom garage lobby study nursery pantry library workshop
        laundry"""
    ),
    "floor": listed("oak pine maple walnut cherry cork slate marble granite concrete limestone linoleum terracotta"),
    "course": listed(
        """pottery chess guitar yoga drawing cooking sewing swimming judo photography dancing knitting archery
        juggling sailing typing singing"""
    ),
    "pet": listed("Biscuit Pepper Ginger Luna Rocky Daisy Coco Milo Bella Simba Toffee Shadow Pixie Muffin Ziggy"),
    "species": listed("rabbit parrot hamster terrier tortoise canary poodle ferret goldfish beagle kitten lizard"),
    "team": listed("Foxes Bears Hawks Wolves Sharks Ravens Tigers Otters Falcons Bisons Badgers Dragons Comets"),
    "chore": listed(
        """vacuuming ironing dusting mopping baking gardening sweeping recycling mending polishing painting
        shopping composting"""
    ),
}


@dataclass(frozen=True)
class Attribute:
    """One thing known of every entry.

    Attributes:
        kind: a pool, "noun", "nouns", "identifier", "time", or "int LOW HIGH".
        cell: the value as it stands in a list.
        label: a noun phrase before "of", as in "the price of the ladder".
        says: predicates of the entry.
        asks: questions about an entry ``{x}``.
        plural: predicate of several entries, where they may share a value.
    """

    name: str
    kind: str
    cell: str
    label: str
    says: tuple[str, ...]
    asks: tuple[str, ...]
    plural: str = ""


@dataclass(frozen=True)
class Scene:
    """A kind of list; ``subject`` names an entry by its key ``{k}``, ``again`` a second time."""

    name: str
    title: str
    item: str
    kind: str
    subject: str
    intros: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    again: str = "it"
    relative: str = "that"


def by(name: str, label: str, says: tuple[str, ...], asks: tuple[str, ...]) -> Attribute:
    """An attribute whose value is a person."""
    return Attribute(name, "person", "{v}", label, says, asks)


def on(says: tuple[str, ...], asks: tuple[str, ...], plural: str, label: str = "the day") -> Attribute:
    """An attribute whose value is a day of the week."""
    return Attribute("day", "day", "{v}", label, says, asks, plural)


def amount(name: str, span: str, unit: str, says: tuple[str, ...], asks: tuple[str, ...]) -> Attribute:
    """An attribute whose value is a number with a unit; ``says`` leaves both out at ``{v}``."""
    shown = tuple(form.replace("{v}", "{v} " + unit) for form in says)
    return Attribute(name, "int " + span, "{v} " + unit, "the " + name, shown, asks)


def at(name: str, span: str, says: tuple[str, ...], asks: tuple[str, ...], plural: str = "") -> Attribute:
    """An attribute whose value is a numbered place, as "room 14"."""
    shown = tuple(form.replace("{v}", name + " {v}") for form in says)
    cell = name + " {v}"
    return Attribute(name, "int " + span, cell, "the " + name, shown, asks, plural.replace("{v}", cell))


def hued(name: str, cell: str, says: tuple[str, ...], asks: tuple[str, ...], plural: str) -> Attribute:
    """An attribute whose value is a colour."""
    return Attribute(name, "colour", cell, "the " + name, says, asks, plural)


def clock(name: str, label: str, says: tuple[str, ...], asks: tuple[str, ...]) -> Attribute:
    """An attribute whose value is a time of day."""
    return Attribute(name, "time", "{v}", label, says, asks)
