"""Conditions on numbers, words, characters and pairs: their wordings, their code and their meaning."""

from __future__ import annotations

from typing import Any

from recipes.reference_pair.tasks.code.parts import Filter, Wording, adjective, clause, phrase


def _filter(key: str, wordings: tuple[Wording, ...], keep: str, drop: str, test: Any, **constants: str) -> Filter:
    natural = constants.pop("natural", "") == "yes"
    return Filter(key, wordings, tuple(keep.split(" ; ")), tuple(drop.split(" ; ")), test, constants, natural)


INT_FILTERS = (
    _filter("even", (adjective("even"),), "{x} % 2 == 0", "{x} % 2 != 0 ; {x} % 2 == 1", lambda x, c: x % 2 == 0),
    _filter("odd", (adjective("odd"),), "{x} % 2 == 1 ; {x} % 2 != 0", "{x} % 2 == 0", lambda x, c: x % 2 == 1),
    _filter("positive", (adjective("positive"), phrase("above zero")), "{x} > 0", "{x} <= 0", lambda x, c: x > 0),
    _filter("negative", (adjective("negative"), phrase("below zero")), "{x} < 0", "{x} >= 0", lambda x, c: x < 0),
    _filter("nonzero", (adjective("nonzero"), phrase("not zero")), "{x} != 0", "{x} == 0", lambda x, c: x != 0),
    _filter(
        "above",
        (phrase("greater than {k}"), phrase("above {k}"), clause("exceeds {k}", "exceed {k}")),
        "{x} > {k}", "{x} <= {k}", lambda x, c: x > c["k"], k="bound",
    ),
    _filter(
        "below", (phrase("less than {k}"), phrase("below {k}"), phrase("smaller than {k}")),
        "{x} < {k}", "{x} >= {k}", lambda x, c: x < c["k"], k="bound",
    ),
    _filter(
        "least", (phrase("at least {k}"), phrase("not below {k}")),
        "{x} >= {k}", "{x} < {k}", lambda x, c: x >= c["k"], k="bound",
    ),
    _filter(
        "most", (phrase("at most {k}"), phrase("not above {k}")),
        "{x} <= {k}", "{x} > {k}", lambda x, c: x <= c["k"], k="bound",
    ),
    _filter(
        "divisible", (phrase("divisible by {k}"), clause("is a multiple of {k}", "are multiples of {k}")),
        "{x} % {k} == 0", "{x} % {k} != 0", lambda x, c: x % c["k"] == 0, k="divisor",
    ),
    _filter(
        "indivisible", (phrase("not divisible by {k}"),), "{x} % {k} != 0", "{x} % {k} == 0",
        lambda x, c: x % c["k"] != 0, k="divisor",
    ),
    _filter(
        "unequal", (phrase("different from {k}"), phrase("not equal to {k}")),
        "{x} != {k}", "{x} == {k}", lambda x, c: x != c["k"], k="digit",
    ),
    _filter(
        "final", (clause("ends in the digit {k}", "end in the digit {k}"),),
        "{x} % 10 == {k}", "{x} % 10 != {k}", lambda x, c: x % 10 == c["k"], k="digit", natural="yes",
    ),
    _filter(
        "between", (phrase("between {k} and {j} inclusive"), phrase("in the range from {k} to {j}")),
        "{k} <= {x} <= {j}", "{x} < {k} or {x} > {j}", lambda x, c: c["k"] <= x <= c["j"], k="digit", j="upper",
    ),
    _filter(
        "outside",
        (
            clause("is less than {k} or greater than {j}", "are less than {k} or greater than {j}"),
            phrase("outside the range from {k} to {j}"),
        ),
        "{x} < {k} or {x} > {j}", "{k} <= {x} <= {j}", lambda x, c: not c["k"] <= x <= c["j"], k="digit", j="upper",
    ),
    _filter(
        "even_above", (clause("is even and greater than {k}", "are even and greater than {k}"),),
        "{x} % 2 == 0 and {x} > {k}", "{x} % 2 != 0 or {x} <= {k}", lambda x, c: x % 2 == 0 and x > c["k"], k="bound",
    ),
    _filter(
        "odd_below", (clause("is odd and less than {k}", "are odd and less than {k}"),),
        "{x} % 2 == 1 and {x} < {k}", "{x} % 2 == 0 or {x} >= {k}", lambda x, c: x % 2 == 1 and x < c["k"], k="bound",
    ),
)  # fmt: skip

WORD_FILTERS = (
    _filter(
        "longer",
        (
            phrase("longer than {k} letters"),
            clause("has more than {k} letters", "have more than {k} letters"),
        ),
        "len({x}) > {k}", "len({x}) <= {k}", lambda x, c: len(x) > c["k"], k="length",
    ),
    _filter(
        "shorter",
        (
            phrase("shorter than {k} letters"),
            clause("has fewer than {k} letters", "have fewer than {k} letters"),
        ),
        "len({x}) < {k}", "len({x}) >= {k}", lambda x, c: len(x) < c["k"], k="length",
    ),
    _filter(
        "exactly",
        (phrase("exactly {k} letters long"), clause("has exactly {k} letters", "have exactly {k} letters")),
        "len({x}) == {k}", "len({x}) != {k}", lambda x, c: len(x) == c["k"], k="length",
    ),
    _filter(
        "even_length", (phrase("of even length"),), "len({x}) % 2 == 0", "len({x}) % 2 != 0 ; len({x}) % 2 == 1",
        lambda x, c: len(x) % 2 == 0,
    ),
    _filter(
        "odd_length", (phrase("of odd length"),), "len({x}) % 2 == 1", "len({x}) % 2 == 0",
        lambda x, c: len(x) % 2 == 1,
    ),
    _filter(
        "starting",
        (
            clause("starts with {c}", "start with {c}"),
            clause("begins with the letter {c}", "begin with the letter {c}"),
        ),
        "{x}.startswith({c})", "not {x}.startswith({c})", lambda x, c: x.startswith(c["c"]), c="initial",
    ),
    _filter(
        "ending",
        (clause("ends with {c}", "end with {c}"), clause("ends in the letter {c}", "end in the letter {c}")),
        "{x}.endswith({c})", "not {x}.endswith({c})", lambda x, c: x.endswith(c["c"]), c="final",
    ),
    _filter(
        "containing",
        (
            clause("contains {c}", "contain {c}"),
            clause("has the letter {c} in it", "have the letter {c} in them"),
        ),
        "{c} in {x}", "{c} not in {x}", lambda x, c: c["c"] in x, c="inner",
    ),
    _filter(
        "lacking", (clause("does not contain {c}", "do not contain {c}"), phrase("without the letter {c}")),
        "{c} not in {x}", "{c} in {x}", lambda x, c: c["c"] not in x, c="inner",
    ),
    _filter(
        "repeating", (clause("contains {c} more than once", "contain {c} more than once"),),
        "{x}.count({c}) > 1", "{x}.count({c}) <= 1", lambda x, c: x.count(c["c"]) > 1, c="inner",
    ),
    _filter(
        "vowel_start", (clause("starts with a vowel", "start with a vowel"),),
        '{x}[0] in "aeiou"', '{x}[0] not in "aeiou"', lambda x, c: x[0] in "aeiou",
    ),
    _filter("lower", (phrase("in lower case"),), "{x}.islower()", "not {x}.islower()", lambda x, c: x.islower()),
    _filter("upper", (phrase("in upper case"),), "{x}.isupper()", "not {x}.isupper()", lambda x, c: x.isupper()),
    _filter(
        "capital", (clause("starts with a capital letter", "start with a capital letter"),),
        "{x}[0].isupper()", "not {x}[0].isupper() ; {x}[0].islower()", lambda x, c: x[0].isupper(),
    ),
)  # fmt: skip

CHAR_FILTERS = (
    _filter(
        "vowel", (clause("is a lowercase vowel", "are lowercase vowels"),), '{x} in "aeiou"', '{x} not in "aeiou"',
        lambda x, c: x in "aeiou",
    ),
    _filter(
        "digit", (clause("is a digit", "are digits"),), "{x}.isdigit()", "not {x}.isdigit()",
        lambda x, c: x.isdigit(),
    ),
    _filter(
        "letter", (clause("is a letter", "are letters"),), "{x}.isalpha()", "not {x}.isalpha()",
        lambda x, c: x.isalpha(),
    ),
    _filter(
        "upper", (adjective("uppercase"), phrase("in upper case")), "{x}.isupper()", "not {x}.isupper()",
        lambda x, c: x.isupper(),
    ),
    _filter(
        "lower", (adjective("lowercase"), phrase("in lower case")), "{x}.islower()", "not {x}.islower()",
        lambda x, c: x.islower(),
    ),
    _filter(
        "nonspace", (clause("is not a space", "are not spaces"),), '{x} != " "', '{x} == " "', lambda x, c: x != " ",
    ),
    _filter(
        "unequal", (phrase("different from {c}"), phrase("other than {c}")), "{x} != {c}", "{x} == {c}",
        lambda x, c: x != c["c"], c="inner",
    ),
    _filter(
        "alnum", (clause("is a letter or a digit", "are letters or digits"), phrase("alphanumeric")),
        "{x}.isalnum()", "not {x}.isalnum()", lambda x, c: x.isalnum(),
    ),
)  # fmt: skip

PAIR_FILTERS = (
    _filter(
        "rising",
        (
            clause("has a second number greater than the first", "have a second number greater than the first"),
        ),
        "{y} > {x}", "{y} <= {x}", lambda t, c: t[1] > t[0],
    ),
    _filter(
        "falling",
        (
            clause("has a first number greater than the second", "have a first number greater than the second"),
        ),
        "{x} > {y}", "{x} <= {y}", lambda t, c: t[0] > t[1],
    ),
    _filter(
        "different", (clause("has two different numbers", "have two different numbers"),), "{x} != {y}",
        "{x} == {y}", lambda t, c: t[0] != t[1],
    ),
    _filter(
        "sum_above", (clause("adds up to more than {k}", "add up to more than {k}"),),
        "{x} + {y} > {k}", "{x} + {y} <= {k}", lambda t, c: sum(t) > c["k"], k="bound",
    ),
    _filter(
        "sum_even", (clause("has an even sum", "have an even sum"),),
        "({x} + {y}) % 2 == 0", "({x} + {y}) % 2 != 0", lambda t, c: sum(t) % 2 == 0,
    ),
)  # fmt: skip

FILTERS = {"int": INT_FILTERS, "word": WORD_FILTERS, "char": CHAR_FILTERS, "pair": PAIR_FILTERS}
