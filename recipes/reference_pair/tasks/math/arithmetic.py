"""Worked computations of small numbers, written so that every ``=`` is one easy step, and the check that they hold."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

_TERMS = r"[0-9]{1,9}(?: [+\-*/] [0-9]{1,9})*"
# A chain may follow "x =", but not an operator: "3x + 5 = 26" states nothing about 5.
_CHAIN = re.compile(rf"(?<![\w.])(?<![+\-*/] ){_TERMS}(?: = {_TERMS})+(?!\w)")


def _split_ten(first: int, sign: str, second: int, result: int) -> str:
    """Adds or subtracts the tens of ``second`` before its ones."""
    tens, ones = second - second % 10, second % 10
    between = first + tens if sign == "+" else first - tens
    return f"{first} {sign} {second} = {first} {sign} {tens} {sign} {ones} = {between} {sign} {ones} = {result}"


def plus(first: int, second: int) -> str:
    """``first + second``, the tens before the ones where a ten is carried."""
    if second > 10 and first % 10 + second % 10 > 9:
        return _split_ten(first, "+", second, first + second)
    return f"{first} + {second} = {first + second}"


def minus(first: int, second: int) -> str:
    """``first - second``, the tens before the ones where a ten is borrowed."""
    if second > 10 and first % 10 < second % 10:
        return _split_ten(first, "-", second, first - second)
    return f"{first} - {second} = {first - second}"


def times(first: int, second: int) -> str:
    """``first * second``, beyond the tables with the tens of the larger factor before its ones."""
    product = f"{first} * {second}"
    large, small = max(first, second), min(first, second)
    tens, ones = large - large % 10, large % 10
    if large > 12 and ones:
        if first == large:
            parts = f"{tens} * {small} + {ones} * {small}"
        else:
            parts = f"{small} * {tens} + {small} * {ones}"
        product += f" = {parts} = {tens * small} + {ones * small}"
    return f"{product} = {first * second}"


def over(first: int, second: int) -> str:
    """``first / second``, which must be exact."""
    return f"{first} / {second} = {first // second}"


def _value(expression: str) -> Fraction:
    """The value of an expression of numbers and operators between blanks; products before sums."""
    words = expression.split()
    total, term, sign = Fraction(0), Fraction(int(words[0])), 1
    for operator, word in zip(words[1::2], words[2::2], strict=True):
        number = Fraction(int(word))
        if operator == "*":
            term *= number
        elif operator == "/":
            term /= number
        else:
            total += sign * term
            term, sign = number, 1 if operator == "+" else -1
    return total + sign * term


def _equal(left: str, right: str) -> bool:
    try:
        return _value(left) == _value(right)
    except ZeroDivisionError:
        return False


def steps_true(answer: str) -> float:
    """Share of the ``a op b = c`` computations in a text that hold; 0.0 where there are none."""
    held = [
        _equal(left, right)
        for chain in _CHAIN.findall(answer.replace("×", "*"))
        for left, right in pairwise(chain.split(" = "))
    ]
    return sum(held) / len(held) if held else 0.0
