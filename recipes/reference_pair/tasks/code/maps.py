"""What is made of a number, a word, a character or a pair: words, code and meaning; alternatives stand between ";"."""

from __future__ import annotations

from typing import Any

from recipes.reference_pair.tasks.code.parts import Map


def _map(key: str, of: str, do: str, its: str, code: str, apply: Any, result: str, names: str, **constants: str) -> Map:
    natural = constants.pop("natural", "") == "yes"
    split = [tuple(text.split(" ; ")) for text in (of, do, code)]
    return Map(key, split[0], split[1], its, split[2], apply, result, tuple(names.split()), constants, natural)


INT_MAPS = (
    _map(
        "square", "the squares of {np}", "square each one", "its square", "{x} ** 2 ; {x} * {x}", lambda x, c: x * x,
        "int", "square squared",
    ),
    _map(
        "cube", "the cubes of {np}", "cube each one", "its cube", "{x} ** 3", lambda x, c: x**3, "int", "cube cubed",
    ),
    _map(
        "double", "the doubles of {np} ; twice {np}", "double each one", "its double", "{x} * 2 ; 2 * {x}",
        lambda x, c: 2 * x, "int", "double doubled",
    ),
    _map(
        "half", "the halves of {np}, rounded down", "halve each one, rounding down", "its half, rounded down",
        "{x} // 2", lambda x, c: x // 2, "int", "half halved", natural="yes",
    ),
    _map(
        "add", "{np}, each increased by {m}", "add {m} to each ; increase each by {m}", "itself plus {m}",
        "{x} + {m}", lambda x, c: x + c["m"], "int", "increased raised", m="digit",
    ),
    _map(
        "subtract", "{np}, each reduced by {m}", "subtract {m} from each ; reduce each by {m}", "itself minus {m}",
        "{x} - {m}", lambda x, c: x - c["m"], "int", "reduced lowered", m="digit",
    ),
    _map(
        "times", "{np}, each multiplied by {m}", "multiply each by {m}", "itself times {m}", "{x} * {m} ; {m} * {x}",
        lambda x, c: x * c["m"], "int", "scaled product", m="factor",
    ),
    _map(
        "negate", "the negatives of {np}", "negate each one", "its negative", "-{x}", lambda x, c: -x, "int",
        "negated opposite",
    ),
    _map(
        "abs", "the absolute values of {np}", "take the absolute value of each", "its absolute value", "abs({x})",
        lambda x, c: abs(x), "int", "size magnitude",
    ),
    _map(
        "mod", "the remainders of {np} when divided by {m}", "take the remainder of each when divided by {m}",
        "its remainder when divided by {m}", "{x} % {m}", lambda x, c: x % c["m"], "int", "remainder rest",
        m="divisor", natural="yes",
    ),
    _map(
        "cap", "{np}, each capped at {m}", "cap each at {m}", "itself capped at {m}",
        "min({x}, {m}) ; min({m}, {x})", lambda x, c: min(x, c["m"]), "int", "capped limited", m="bound",
    ),
    _map(
        "floor", "{np}, each raised to at least {m}", "raise each to at least {m}", "itself raised to at least {m}",
        "max({x}, {m}) ; max({m}, {x})", lambda x, c: max(x, c["m"]), "int", "raised bounded", m="digit",
    ),
    _map(
        "distance", "the distances of {np} from {m}", "take the distance of each from {m}", "its distance from {m}",
        "abs({x} - {m})", lambda x, c: abs(x - c["m"]), "int", "distance gap", m="bound",
    ),
    _map(
        "complement", "{np}, each subtracted from {m}", "subtract each from {m}", "what is missing from it to {m}",
        "{m} - {x}", lambda x, c: c["m"] - x, "int", "missing remaining", m="bound",
    ),
    _map(
        "text", "{np}, each as a string", "turn each into a string ; convert each to a string",
        "its text as a string", "str({x})", lambda x, c: str(x), "word", "text string",
    ),
)  # fmt: skip

WORD_MAPS = (
    _map(
        "upper", "{np}, each in upper case", "turn each into upper case ; convert each to upper case",
        "its uppercase form", "{x}.upper()", lambda x, c: x.upper(), "word", "upper shouted",
    ),
    _map(
        "lower", "{np}, each in lower case", "turn each into lower case ; convert each to lower case",
        "its lowercase form", "{x}.lower()", lambda x, c: x.lower(), "word", "lower lowered",
    ),
    _map(
        "capitalize", "{np}, each capitalized", "capitalize each one", "its capitalized form", "{x}.capitalize()",
        lambda x, c: x.capitalize(), "word", "title capitalized",
    ),
    _map(
        "reverse", "{np}, each reversed ; {np}, each spelled backwards", "reverse each one ; spell each backwards",
        "its reverse", "{x}[::-1]", lambda x, c: x[::-1], "word", "backwards flipped",
    ),
    _map(
        "first", "the first letters of {np}", "take the first letter of each", "its first letter", "{x}[0]",
        lambda x, c: x[0], "word", "initial first",
    ),
    _map(
        "last", "the last letters of {np}", "take the last letter of each", "its last letter", "{x}[-1]",
        lambda x, c: x[-1], "word", "ending last",
    ),
    _map(
        "prefix", "the first {m} letters of each of {np}", "cut each to its first {m} letters",
        "its first {m} letters", "{x}[:{m}]", lambda x, c: x[: c["m"]], "word", "prefix start", m="length",
    ),
    _map(
        "tail", "{np}, each without its first letter", "drop the first letter of each",
        "itself without the first letter", "{x}[1:]", lambda x, c: x[1:], "word", "tail remainder",
    ),
    _map(
        "twice", "{np}, each written twice", "write each one twice", "itself written twice", "{x} * 2 ; {x} + {x}",
        lambda x, c: x * 2, "word", "twice doubled",
    ),
    _map(
        "suffix", "{np}, each followed by {d}", "append {d} to each ; put {d} after each", "itself followed by {d}",
        "{x} + {d}", lambda x, c: x + c["d"], "word", "extended longer", d="mark",
    ),
    _map(
        "start", "{np}, each preceded by {d}", "put {d} before each", "itself preceded by {d}", "{d} + {x}",
        lambda x, c: c["d"] + x, "word", "marked extended", d="mark",
    ),
    _map(
        "replace", "{np}, with {d} replaced by {e}", "replace {d} by {e} in each", "itself with {d} replaced by {e}",
        "{x}.replace({d}, {e})", lambda x, c: x.replace(c["d"], c["e"]), "word", "replaced changed", d="inner",
        e="mark",
    ),
    _map(
        "length", "the lengths of {np}", "take the length of each ; measure each one", "its length", "len({x})",
        lambda x, c: len(x), "int", "length size",
    ),
    _map(
        "count", "the numbers of {d} in each of {np}", "count the {d} in each", "how many {d} it has",
        "{x}.count({d})", lambda x, c: x.count(c["d"]), "int", "found amount", d="inner",
    ),
)  # fmt: skip

CHAR_MAPS = (
    _map(
        "upper", "{np}, each in upper case", "turn each into upper case ; convert each to upper case",
        "its uppercase form", "{x}.upper()", lambda x, c: x.upper(), "char", "upper shouted",
    ),
    _map(
        "lower", "{np}, each in lower case", "turn each into lower case ; convert each to lower case",
        "its lowercase form", "{x}.lower()", lambda x, c: x.lower(), "char", "lower lowered",
    ),
    _map(
        "twice", "{np}, each written twice", "write each one twice", "itself written twice", "{x} * 2 ; {x} + {x}",
        lambda x, c: x * 2, "word", "twice doubled",
    ),
    _map(
        "suffix", "{np}, each followed by {d}", "append {d} to each ; put {d} after each", "itself followed by {d}",
        "{x} + {d}", lambda x, c: x + c["d"], "word", "extended longer", d="mark",
    ),
    _map(
        "ord", "the code points of {np}", "take the code point of each", "its code point", "ord({x})",
        lambda x, c: ord(x), "int", "code point",
    ),
)  # fmt: skip

PAIR_MAPS = (
    _map(
        "sum", "the sums of {np}", "add the two numbers of each", "its sum", "{x} + {y}", lambda t, c: t[0] + t[1],
        "int", "both combined",
    ),
    _map(
        "product", "the products of {np}", "multiply the two numbers of each", "its product", "{x} * {y}",
        lambda t, c: t[0] * t[1], "int", "product area",
    ),
    _map(
        "gap", "the absolute differences of {np}", "take the absolute difference of each", "its absolute difference",
        "abs({x} - {y})", lambda t, c: abs(t[0] - t[1]), "int", "gap distance",
    ),
    _map(
        "larger", "the larger numbers of {np}", "take the larger number of each", "its larger number",
        "max({x}, {y})", lambda t, c: max(t), "int", "larger winner",
    ),
    _map(
        "smaller", "the smaller numbers of {np}", "take the smaller number of each", "its smaller number",
        "min({x}, {y})", lambda t, c: min(t), "int", "smaller loser",
    ),
)  # fmt: skip

MAPS = {"int": INT_MAPS, "word": WORD_MAPS, "char": CHAR_MAPS, "pair": PAIR_MAPS}
IDENTITY = _map("same", "{np}", "", "itself", "{x}", lambda x, c: x, "", "")
