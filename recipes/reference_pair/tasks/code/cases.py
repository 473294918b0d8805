"""Arguments for a spec and what it returns for them, computed from the parts' meanings, not from any answer."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.code.spec import SLICES, Spec, constant

MARKS = " .!-"


def number(rng: Random, spec: Spec) -> int:
    """A number that suits the spec: small for products, not negative for remainders."""
    if spec.source.key == "digits":
        return rng.randint(1, 9)
    natural = spec.map.natural or (spec.filter is not None and spec.filter.natural)
    low = 0 if natural or rng.random() < 0.6 else -9
    return rng.randint(low, 9 if spec.reduce.small else 25)


def word(rng: Random, words: Words, spec: Spec) -> str:
    """A short word, in another case where the filter asks for it."""
    text = rng.choice(words.nouns if rng.random() < 0.6 else words.adjectives)
    while len(text) > 8 or not text.isalpha():
        text = rng.choice(words.nouns)
    if spec.filter is not None and spec.filter.key in ("upper", "lower", "capital") and rng.random() < 0.6:
        return text.upper() if spec.filter.key == "upper" else text.capitalize()
    return text.capitalize() if spec.map.key in ("lower", "capitalize") and rng.random() < 0.3 else text


def element(rng: Random, words: Words, spec: Spec, constants: Mapping[str, Any]) -> Any:
    """One element; half of the time redrawn until the filter keeps it."""
    wanted = rng.random() < 0.5
    for _ in range(12):
        kind = spec.source.tested
        drawn: Any
        if kind == "pair":
            drawn = (number(rng, spec), number(rng, spec))
        elif kind == "char":
            drawn = rng.choice("abeioudnrst" * 2 + "ABKEZ" + "0123789" + MARKS)
        else:
            drawn = number(rng, spec) if kind == "int" else word(rng, words, spec)
        if spec.filter is None or spec.filter.test(drawn, constants) or not wanted:
            break
    return drawn


def elements(rng: Random, words: Words, spec: Spec, constants: Mapping[str, Any], size: int) -> list[Any]:
    """Elements as the source holds them, with repeats and the stopping element where they matter."""
    drawn = [element(rng, words, spec, constants) for _ in range(size)]
    if drawn and (spec.reduce.key in ("counts", "unique") or spec.twist == "distinct"):
        drawn = [rng.choice(drawn) if rng.random() < 0.4 else one for one in drawn]
    if spec.stop is not None and size > 2 and rng.random() < 0.7:
        drawn[rng.randrange(1, size)] = spec.stop[3]
    return drawn


def argument(rng: Random, words: Words, spec: Spec, constants: Mapping[str, Any], size: int) -> tuple[Any, ...]:
    """The arguments that stand for a source of so many elements."""
    key = spec.source.key
    if key == "range":
        return (size * rng.randint(2, 4),)
    drawn = elements(rng, words, spec, constants, size * 2 if key == "chars" else size)
    if key == "split":
        return (" ".join(drawn),)
    if key == "chars":
        return ("".join(drawn),)
    if key == "digits":
        return (int("".join(map(str, drawn)) or "7"),)
    if key == "pairs":
        return [a for a, _ in drawn], [b for _, b in drawn]
    if key in ("values", "keys", "names"):
        labels = dict.fromkeys(word(rng, words, spec) for _ in drawn)
        return (list(zip(labels, drawn, strict=False)) if key == "names" else dict(zip(labels, drawn, strict=False)),)
    return (drawn,)


def subjects(spec: Spec, args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Pairs of what the filter tests and what the map gets."""
    key, first = spec.source.key, args[0]
    if key in ("keys", "names"):
        return [(value, name) for name, value in (first.items() if key == "keys" else first)]
    if key == "indexes":
        return [(value, index) for index, value in enumerate(first)]
    plain = {
        "split": lambda: first.split(),
        "values": lambda: list(first.values()),
        "range": lambda: list(range(1, first + 1)),
        "digits": lambda: list(map(int, str(first))),
        "pairs": lambda: list(zip(args[0], args[1], strict=False)),
    }.get(key, lambda: list(first))()
    return [(one, one) for one in plain]


def streak(flags: list[bool]) -> int:
    """The longest run of true flags."""
    longest = current = 0
    for flag in flags:
        current = current + 1 if flag else 0
        longest = max(longest, current)
    return longest


def expected(spec: Spec, args: tuple[Any, ...], constants: Mapping[str, Any]) -> Any:
    """What the spec returns for arguments."""
    pairs = subjects(spec, args)
    pairs = next((pairs[part] for name, _, part in SLICES if name == spec.twist), pairs)
    if spec.stop is not None:
        ends = [i for i, (tested, _) in enumerate(pairs) if _stops(spec, tested)]
        pairs = pairs[: ends[0]] if ends else pairs
    if spec.twist == "distinct":
        pairs = list(dict.fromkeys(pairs))
    flags = [spec.filter is None or spec.filter.test(tested, constants) for tested, _ in pairs]
    if spec.twist in ("unchanged", "zero"):
        other = [0 if spec.twist == "zero" else given for _, given in pairs]
        values = [
            spec.map.apply(g, constants) if flag else o for (_, g), flag, o in zip(pairs, flags, other, strict=True)
        ]
        return spec.reduce.run(values, values, constants)
    kept = [given for (_, given), flag in zip(pairs, flags, strict=True) if flag]
    if spec.twist == "limit":
        kept = kept[: constants["l"]]
    others = [given for (_, given), flag in zip(pairs, flags, strict=True) if not flag]
    values = [spec.map.apply(given, constants) for given in kept]
    if spec.reduce.key == "all":
        return not others
    return spec.reduce.run(kept, values, {**constants, "others": others, "streak": streak(flags)})


def _stops(spec: Spec, tested: Any) -> bool:
    assert spec.stop is not None
    return bool(tested < 0) if spec.stop[0] == "negative" else bool(tested == spec.stop[3])


def draw_cases(rng: Random, words: Words, spec: Spec, shown: int, hidden: int) -> list[tuple[tuple[Any, ...], Any]]:
    """Arguments with results: those shown first, the very first of them with something to return."""
    cases: list[tuple[tuple[Any, ...], Any]] = []
    results: list[Any] = []
    kinds = {**(spec.filter.constants if spec.filter else {}), **spec.map.constants, **spec.reduce.constants}
    for attempt in range(60):
        constants = dict(spec.constants)
        if spec.argument and cases:
            constants[spec.argument] = constant(kinds[spec.argument], rng)
        size = (
            rng.randint(3, 5)
            if len(cases) < shown
            else 0
            if len(cases) == shown and spec.source.key != "digits"
            else rng.randint(1, 7)
        )
        args = argument(rng, words, spec, constants, size)
        result = expected(spec, args, constants)
        dull = result in (0, "", [], {}, None, False, -1) or result in results
        if attempt < 40 and dull and (not cases or (len(cases) < shown and rng.random() < 0.7)):
            continue
        full = (*args, constants[spec.argument]) if spec.argument else args
        cases.append((full, result))
        results.append(result)
        if len(cases) == shown + hidden:
            break
    return cases
