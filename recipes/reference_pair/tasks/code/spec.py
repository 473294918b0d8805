"""Specs of generated functions: a source, a filter, a map, a reduction and a twist put together."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.code.filters import FILTERS
from recipes.reference_pair.tasks.code.maps import IDENTITY, MAPS
from recipes.reference_pair.tasks.code.parts import SOURCES, Filter, Map, Source
from recipes.reference_pair.tasks.code.reduces import REDUCES, Reduce

TYPES = {"int": "int", "word": "str", "char": "str"}
SOURCE_WEIGHTS = (9, 7, 4, 6, 3, 3, 2, 4, 3, 3, 3)
STOPS = {
    "int": (("zero", "{x} == 0", "the first 0", 0), ("negative", "{x} < 0", "the first negative number", -1)),
    "word": (("end", '{x} == "end"', 'the word "end"', "end"), ("stop", '{x} == "stop"', 'the word "stop"', "stop")),
    "char": (("space", '{x} == " "', "the first space", " "), ("dot", '{x} == "."', "the first dot", ".")),
}
SLICES = (
    ("skip_first", "[1:]", slice(1, None)),
    ("skip_last", "[:-1]", slice(None, -1)),
    ("every_second", "[::2]", slice(None, None, 2)),
    ("backwards", "[::-1]", slice(None, None, -1)),
)
SEPARATORS = (", ", "-", " ", "/", ":", "+", "; ", "_", " and ", "|")
MARKS = ("!", "?", "*", "-", "#", "_", ".", "+")
LETTERS = "aeiorstnl"
INITIALS = "abcdefglmprst"
FINALS = "edrntyls"
LIMIT_NAMES = ("limit", "bound", "k", "threshold", "amount", "size", "base", "level", "offset", "mark")
RESERVED_NAMES = frozenset(
    {
        *keyword.kwlist,
        *keyword.softkwlist,
        *dir(builtins),
        "others",
        "current",
        "running",
        "count",
        "seen",
        "before",
        "after",
    }
)


@dataclass(frozen=True)
class Spec:
    """One function to write, without its wording: parts, constants and names."""

    source: Source
    filter: Filter | None
    map: Map
    reduce: Reduce
    twist: str
    stop: tuple[str, str, str, Any] | None
    constants: Mapping[str, Any]
    argument: str
    name: str
    params: tuple[str, ...]

    @property
    def composition(self) -> str:
        """The operations, without wording, numbers and names: what a reserved spec shares with no training text."""
        parts = (self.source.key, self.filter.key if self.filter else "all", self.map.key, self.reduce.key)
        default = repr(self.constants["z"]) if self.reduce.defaults else "-"
        return "/".join((*parts, self.twist, default, self.argument and "argument"))

    @property
    def texts(self) -> dict[str, str]:
        """Every constant as written in code and docstring; one may be an argument."""
        texts = {key: quoted(value) for key, value in self.constants.items()}
        if self.argument:
            texts[self.argument] = self.params[-1]
        return texts


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace ``{name}`` by its value where it has one."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


def quoted(value: Any) -> str:
    """A literal in double quotes, as formatters write it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def constant(kind: str, rng: Random) -> Any:
    """A constant of a kind; ``upper`` lies above every ``digit``."""
    if kind in ("initial", "final", "inner"):
        return rng.choice({"initial": INITIALS, "final": FINALS, "inner": LETTERS}[kind])
    if kind == "separator":
        return rng.choice(SEPARATORS)
    if kind == "mark":
        return rng.choice(MARKS)
    low, high = {
        "bound": (3, 20),
        "divisor": (3, 7),
        "factor": (3, 9),
        "digit": (1, 9),
        "upper": (10, 20),
        "length": (3, 6),
        "few": (2, 4),
    }[kind]
    return rng.randint(low, high)


def fits(source: Source, reduce: Reduce, has_filter: bool) -> bool:
    """Whether a reduction makes sense for a source."""
    paired = source.key in ("keys", "names", "indexes", "pairs")
    if paired and (reduce.predicate or reduce.key in ("mapping", "groups", "steps")):
        return False
    return not (reduce.key in ("streak", "partition") and source.key in ("values", "pairs")) and has_filter >= paired


def draw_map(rng: Random, source: Source, reduce: Reduce) -> Map | None:
    """A map whose results the reduction takes, or None where there is none."""
    same = source.given in reduce.takes and reduce.maps != "must"
    if source.given == "pair" and reduce.maps == "none":
        return IDENTITY
    if reduce.maps == "none" or (same and rng.random() < 0.35):
        return IDENTITY if source.given in reduce.takes else None
    usable = [m for m in MAPS[source.given] if m.result in reduce.takes and not (reduce.small and m.key == "cube")]
    if reduce.key == "letters" or not usable:
        return IDENTITY if same else None
    return rng.choice(usable)


def draw_parts(rng: Random) -> tuple[Source, Filter | None, Map, Reduce]:
    """Parts that go together."""
    while True:
        source = rng.choices(SOURCES, SOURCE_WEIGHTS)[0]
        reduce = rng.choices(REDUCES, [r.weight for r in REDUCES])[0]
        has_filter = reduce.predicate or reduce.key == "count" or source.tested != source.given or rng.random() < 0.8
        has_filter = has_filter or source.key in ("indexes", "pairs")
        if not fits(source, reduce, has_filter):
            continue
        map_ = draw_map(rng, source, reduce)
        if map_ is None or (reduce.key == "unique" and map_ is IDENTITY):
            continue
        if map_ is IDENTITY and not has_filter and reduce.key in ("list", "concat"):
            continue
        kept = rng.choice(FILTERS[source.tested]) if has_filter else None
        if (
            source.key == "digits"
            and kept is not None
            and kept.key in ("above", "least", "between", "outside", "final", "negative")
        ):
            continue
        if source.key == "range" and kept is not None and kept.key in ("positive", "negative", "nonzero"):
            continue
        return source, kept, map_, reduce


def draw_twist(rng: Random, source: Source, kept: Filter | None, map_: Map, reduce: Reduce) -> str:
    """A twist that goes with the parts, or "plain"."""
    paired = source.key in ("keys", "names", "indexes", "pairs")
    choices = ["plain"] * 9
    if source.sliced and not paired and not reduce.predicate:
        choices += ["skip_first", "skip_last", "every_second", "stop", "stop"]
    if source.sliced and not paired and reduce.ordered and reduce.key != "reversed" and not reduce.predicate:
        choices.append("backwards")
    if not paired and not reduce.predicate and reduce.key not in ("counts", "mapping", "any") and source.key != "range":
        choices.append("distinct")
    limitless = (
        "first",
        "top",
        "last",
        "count",
        "sorted",
        "descending",
        "reversed",
        "unique",
        "variety",
        "steps",
        "running",
    )
    if not reduce.predicate and reduce.key not in limitless and (kept or source.key != "range"):
        choices += ["limit", "limit"]
    whole = reduce.key in ("list", "sum", "join", "concat", "running", "sorted")
    if kept and map_ is not IDENTITY and map_.result == source.given and not paired and whole:
        choices += ["unchanged"] * 5
    if kept and map_.result == "int" and source.given == "int" and not paired and whole and map_ is not IDENTITY:
        choices += ["zero"] * 2
    return rng.choice(choices)


def draw_names(rng: Random, words: Words, source: Source, argument: bool) -> tuple[str, ...]:
    """Names of the parameters, all different."""
    generic = {
        "list": ("values", "items", "data"),
        "str": ("text", "line", "string"),
        "dict": ("table", "mapping", "stock"),
        "int": ("n", "number", "top"),
    }
    kind = source.annotation.partition("[")[0]
    names: list[str] = []
    while len(names) < 1 + (source.key == "pairs"):
        noun = rng.choice(words.nouns)
        name = rng.choice(generic[kind]) if rng.random() < 0.3 else noun + "s" if kind in ("list", "dict") else noun
        if name.isidentifier() and name not in RESERVED_NAMES and name not in names:
            names.append(name)
    return (*names, rng.choice([name for name in LIMIT_NAMES if name not in names])) if argument else tuple(names)


def draw_name(rng: Random, words: Words, parts: Sequence[str], taken: Sequence[str]) -> str:
    """A name for the function: an identifier, a verb with a noun, or after its operations."""
    while True:
        name = (
            rng.choice(words.identifiers),
            f"{rng.choice(words.verbs)}_{rng.choice(words.nouns)}s",
            "_".join(rng.sample([part for part in parts if part not in ("same", "all")], 2)),
            f"{rng.choice(words.adjectives)}_{rng.choice(words.nouns)}s",
        )[rng.randrange(4)]
        if name.isidentifier() and name.islower() and name not in RESERVED_NAMES and name not in taken:
            return name


def draw_spec(rng: Random, words: Words) -> Spec:
    """A random spec with its constants and names."""
    source, kept, map_, reduce = draw_parts(rng)
    twist = draw_twist(rng, source, kept, map_, reduce)
    kinds = {**(kept.constants if kept else {}), **map_.constants, **reduce.constants}
    constants = {key: constant(kind, rng) for key, kind in kinds.items()}
    numeric = [key for key in ("k", "m") if key in kinds and "j" not in kinds]
    argument = rng.choice(numeric) if numeric and rng.random() < 0.25 else ""
    if twist == "limit":
        constants["l"] = rng.randint(2, 4)
    if reduce.defaults:
        options = (
            reduce.defaults if map_.result == "int" or (map_ is IDENTITY and source.given == "int") else ("None", '""')
        )
        options = reduce.defaults if reduce.defaults in (('""',), ("0",)) else options
        constants["z"] = {"None": None, "0": 0, "-1": -1, '""': ""}[rng.choice(options)]
    stop = rng.choice(STOPS[source.tested]) if twist == "stop" else None
    params = draw_names(rng, words, source, bool(argument))
    parts = (source.key, kept.key if kept else "all", map_.key, reduce.key)
    name = draw_name(rng, words, parts, params)
    label = f"stop_{stop[0]}" if stop else twist
    return Spec(source, kept, map_, reduce, label, stop, constants, argument, name, params)
