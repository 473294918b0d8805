"""Numbers of the plain exercises: every step of their answers is a small one; ``r`` is the result."""

from __future__ import annotations

from random import Random

from recipes.reference_pair.tasks.math.arithmetic import minus, over, plus, times

Slots = dict[str, object]


def sum_numbers(rng: Random) -> Slots:
    a, b = rng.randint(11, 99), rng.randint(11, 99)
    tens, ones = b - b % 10, b % 10
    return {"a": a, "b": b, "t": tens, "o": ones, "c": plus(a, tens), "e": plus(a + tens, ones), "r": a + b}


def difference_numbers(rng: Random) -> Slots:
    b = rng.randint(11, 88)
    a = b + rng.randint(3, 99 - b)
    tens, ones = b - b % 10, b % 10
    return {"a": a, "b": b, "t": tens, "o": ones, "c": minus(a, tens), "e": minus(a - tens, ones), "r": a - b}


def product_numbers(rng: Random) -> Slots:
    a, b = rng.randint(2, 9), rng.randint(13, 99)
    tens, ones = b - b % 10, b % 10
    parts = {"c": times(a, tens), "f": times(a, ones), "e": plus(a * tens, a * ones)}
    return {"a": a, "b": b, "t": tens, "o": ones, **parts, "r": a * b}


def quotient_numbers(rng: Random) -> Slots:
    b, r = rng.randint(2, 12), rng.randint(2, 12)
    return {"a": b * r, "b": b, "c": times(b, r), "e": over(b * r, b), "r": r}


def three_terms_numbers(rng: Random) -> Slots:
    a, b = rng.randint(10, 80), rng.randint(5, 60)
    d = rng.randint(2, min(60, a + b - 2))
    return {"a": a, "b": b, "d": d, "s": a + b, "c": plus(a, b), "e": minus(a + b, d), "r": a + b - d}


def product_and_sum_numbers(rng: Random) -> Slots:
    a, b, d = rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 60)
    return {"a": a, "b": b, "d": d, "s": a * b, "c": times(a, b), "e": plus(a * b, d), "r": a * b + d}


def equation_numbers(rng: Random) -> Slots:
    a, r, b = rng.randint(2, 9), rng.randint(2, 12), rng.randint(1, 30)
    rest = a * r
    return {"a": a, "b": b, "d": rest + b, "s": rest, "c": minus(rest + b, b), "e": over(rest, a), "r": r}


def equation_minus_numbers(rng: Random) -> Slots:
    a, r = rng.randint(2, 9), rng.randint(3, 12)
    b = rng.randint(1, a * r - 1)
    return {"a": a, "b": b, "d": a * r - b, "s": a * r, "c": plus(a * r - b, b), "e": over(a * r, a), "r": r}


def mean_numbers(rng: Random) -> Slots:
    r = rng.randint(4, 12)
    a, b = rng.randint(1, 2 * r - 2), rng.randint(1, r)
    d = 3 * r - a - b
    return {"a": a, "b": b, "d": d, "s": 3 * r, "c": plus(a, b), "f": plus(a + b, d), "e": over(3 * r, 3), "r": r}


def percentage_numbers(rng: Random) -> Slots:
    p, whole = rng.choice((10, 20, 30, 40, 50, 60, 70, 80, 90)), 10 * rng.randint(2, 60)
    tenth = whole // 10
    c = over(whole, 10)
    return {"p": p, "w": whole, "s": tenth, "n": p // 10, "c": c, "e": times(tenth, p // 10), "r": tenth * p // 10}


def area_numbers(rng: Random) -> Slots:
    a, b = rng.randint(2, 9), rng.randint(3, 12)
    return {"a": a, "b": b, "c": plus(a, b), "s": a + b, "e": times(2, a + b), "f": times(a, b), "r": a * b}


def perimeter_numbers(rng: Random) -> Slots:
    a, b = rng.randint(3, 40), rng.randint(3, 40)
    return {"a": a, "b": b, "s": a + b, "c": plus(a, b), "e": times(2, a + b), "r": 2 * (a + b)}


def sequence_numbers(rng: Random) -> Slots:
    a, step = rng.randint(1, 40), rng.randint(2, 12)
    b, d = a + step, a + 2 * step
    return {"a": a, "b": b, "d": d, "s": step, "c": minus(b, a), "f": minus(d, b), "e": plus(d, step), "r": d + step}


def rule_of_three_numbers(rng: Random) -> Slots:
    a, price, b = rng.randint(2, 9), rng.randint(2, 12), rng.randint(2, 12)
    return {"a": a, "w": a * price, "b": b, "s": price, "c": over(a * price, a), "e": times(price, b), "r": price * b}


def span_numbers(rng: Random) -> Slots:
    values = rng.sample(range(5, 99), 4)
    low, high = min(values), max(values)
    names = dict(zip("abdf", values, strict=True))
    return {**names, "l": low, "h": high, "e": minus(high, low), "g": plus(low, high - low), "r": high - low}


def clock_numbers(rng: Random) -> Slots:
    h, m = rng.randint(2, 9), rng.randint(5, 55)
    return {"h": h, "m": m, "s": 60 * h, "c": times(h, 60), "e": plus(60 * h, m), "r": 60 * h + m}
