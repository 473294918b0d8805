"""Well-known little functions, asked for as a newcomer types it: ``Complete the code: def add(a, b):``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import factorial
from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Example, Words
from recipes.reference_pair.tasks.code.spec import fill

# ``{f}`` stands for the def line, ``{what}`` for what it returns, ``{call}`` for its name with arguments.
REQUESTS = (
    "Complete the code: {f}",
    "Complete the code:\n{f}",
    "Complete this function: {f}",
    "Complete the function {f}",
    "{f}",
    "Finish this code: {f}",
    "Write the function: {f}",
    "Implement this: {f}",
    "Implement {f}",
    "{f}\n\nComplete the code.",
    "Fill in the body: {f}",
    "Write this function in Python:\n\n{f}",
    "What is the body of this function?\n\n{f}",
    "Complete the code:\n\n# Return {what}.\n{f}",
    "Complete the code:\n\n{f}\n    # Return {what}.",
    'Complete the code:\n\n{f}\n    """Return {what}."""',
    'Write the function.\n\n{f}\n    """Return {what}."""',
    "Write a Python function {call} that returns {what}.",
    "Write a function {call} which returns {what}.",
    "I need a function {call} that returns {what}.",
    "Show me a Python function {call} that returns {what}.",
)
COMMONEST = 5
SENTENCES = (
    "It returns {what}.",
    "The function returns {what}.",
    "`{name}` gives {what}.",
    "Calling `{name}` gives you {what}.",
    "This computes {what}.",
    "So `{call}` is {what}.",
)
DOCSTRINGS = ("Return {what}.", "Compute and return {what}.", "Give {what}.")


@dataclass(frozen=True)
class Known:
    """A well-known function: names, parameters, what it returns, bodies, and its meaning on inputs."""

    names: tuple[str, ...]
    params: tuple[tuple[str, ...], ...]
    what: str
    bodies: tuple[str, ...]
    run: Callable[..., Any]
    inputs: tuple[tuple[Any, ...], ...]


def _known(
    names: str, params: str, what: str, bodies: Sequence[str], run: Callable[..., Any], inputs: Sequence[Any]
) -> Known:
    tuples = tuple(one if isinstance(one, tuple) else (one,) for one in inputs)
    return Known(
        tuple(names.split()), tuple(tuple(p.split(",")) for p in params.split()), what, tuple(bodies), run, tuples
    )


TWO = "a,b x,y first,second left,right m,n"
ONE = "n x number value num"
LIST = "numbers values items data xs"
TEXT = "text s string word line"
PAIRS = ((2, 3), (0, 5), (-4, 7), (10, 10), (9, -2))
INTS = (0, 1, 2, 7, -3, 12)
LISTS = ([1, 2, 3], [5], [4, -1, 9, 4], [7, 2])
TEXTS = ("hello", "level", "", "Open door", "abc")


def _fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def _prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, n))


def _gcd(a: int, b: int) -> int:
    return _gcd(b, a % b) if b else a


KNOWN = (
    _known(
        "add add_numbers sum_two plus", TWO, "the sum of {a} and {b}",
        ("return {a} + {b}", "total = {a} + {b}\nreturn total"), lambda a, b: a + b, PAIRS,
    ),
    _known(
        "subtract minus difference", TWO, "{a} minus {b}", ("return {a} - {b}", "result = {a} - {b}\nreturn result"),
        lambda a, b: a - b, PAIRS,
    ),
    _known(
        "multiply times product", TWO, "the product of {a} and {b}",
        ("return {a} * {b}", "result = {a} * {b}\nreturn result"), lambda a, b: a * b, PAIRS,
    ),
    _known(
        "divide quotient", TWO, "{a} divided by {b}", ("return {a} / {b}", "result = {a} / {b}\nreturn result"),
        lambda a, b: a / b, ((6, 3), (1, 4), (-9, 2), (0, 5)),
    ),
    _known(
        "power raise_to", "base,exponent x,n a,b", "{a} to the power of {b}",
        ("return {a} ** {b}", "result = {a} ** {b}\nreturn result"), lambda a, b: a**b, ((2, 3), (5, 0), (3, 2)),
    ),
    _known(
        "remainder modulo", TWO, "the remainder of {a} divided by {b}", ("return {a} % {b}",), lambda a, b: a % b,
        ((7, 3), (8, 2), (5, 9)),
    ),
    _known(
        "square squared", ONE, "the square of {a}", ("return {a} * {a}", "return {a} ** 2"), lambda a: a * a, INTS,
    ),
    _known("cube cubed", ONE, "the cube of {a}", ("return {a} ** 3", "return {a} * {a} * {a}"), lambda a: a**3, INTS),
    _known("double twice", ONE, "{a} times two", ("return 2 * {a}", "return {a} * 2"), lambda a: 2 * a, INTS),
    _known("half halve", ONE, "half of {a}", ("return {a} / 2",), lambda a: a / 2, INTS),
    _known("negate negative", ONE, "{a} with the opposite sign", ("return -{a}",), lambda a: -a, INTS),
    _known("increment add_one successor", ONE, "{a} plus one", ("return {a} + 1",), lambda a: a + 1, INTS),
    _known(
        "absolute absolute_value", ONE, "the absolute value of {a}",
        ("return abs({a})", "if {a} < 0:\n    return -{a}\nreturn {a}", "return {a} if {a} >= 0 else -{a}"), abs,
        INTS,
    ),
    _known(
        "is_even even check_even", ONE, "True if {a} is even, otherwise False",
        ("return {a} % 2 == 0", "if {a} % 2 == 0:\n    return True\nreturn False"), lambda a: a % 2 == 0, INTS,
    ),
    _known(
        "is_odd odd check_odd", ONE, "True if {a} is odd, otherwise False",
        ("return {a} % 2 == 1", "if {a} % 2 == 1:\n    return True\nreturn False"), lambda a: a % 2 == 1, INTS,
    ),
    _known(
        "is_positive positive", ONE, "True if {a} is greater than zero, otherwise False",
        ("return {a} > 0", "if {a} > 0:\n    return True\nreturn False"), lambda a: a > 0, INTS,
    ),
    _known(
        "is_prime prime check_prime", ONE, "True if {a} is a prime number, otherwise False",
        (
            "if {a} < 2:\n    return False\nfor i in range(2, {a}):\n    if {a} % i == 0:\n"
            "        return False\nreturn True",
            "return {a} > 1 and all({a} % i for i in range(2, {a}))",
        ),
        _prime, (0, 1, 2, 7, 9, 12, 13),
    ),
    _known(
        "factorial fact", ONE, "the factorial of {a}",
        (
            "if {a} == 0:\n    return 1\nreturn {a} * {name}({a} - 1)",
            "result = 1\nfor i in range(2, {a} + 1):\n    result *= i\nreturn result",
        ),
        factorial, (0, 1, 3, 5, 6),
    ),
    _known(
        "fibonacci fib", ONE, "the Fibonacci number at position {a}",
        (
            "if {a} < 2:\n    return {a}\nreturn {name}({a} - 1) + {name}({a} - 2)",
            "a, b = 0, 1\nfor _ in range({a}):\n    a, b = b, a + b\nreturn a",
        ),
        _fibonacci, (0, 1, 2, 5, 9),
    ),
    _known(
        "sum_to sum_up_to triangle", ONE, "the sum of the numbers from 1 to {a}",
        (
            "return sum(range(1, {a} + 1))",
            "return {a} * ({a} + 1) // 2",
            "total = 0\nfor i in range(1, {a} + 1):\n    total += i\nreturn total",
        ),
        lambda n: n * (n + 1) // 2, (0, 1, 4, 10),
    ),
    _known(
        "digit_sum sum_digits sum_of_digits", ONE, "the sum of the digits of {a}",
        (
            "return sum(int(digit) for digit in str({a}))",
            "total = 0\nfor digit in str({a}):\n    total += int(digit)\nreturn total",
        ),
        lambda n: sum(map(int, str(n))), (0, 7, 42, 905),
    ),
    _known(
        "gcd greatest_common_divisor", "a,b x,y m,n", "the greatest common divisor of {a} and {b}",
        (
            "while {b}:\n    {a}, {b} = {b}, {a} % {b}\nreturn {a}",
            "if {b} == 0:\n    return {a}\nreturn {name}({b}, {a} % {b})",
        ),
        _gcd, ((12, 8), (5, 7), (9, 3), (4, 0)),
    ),
    _known(
        "max_of_two maximum larger bigger", TWO, "the larger of {a} and {b}",
        (
            "return max({a}, {b})",
            "if {a} > {b}:\n    return {a}\nreturn {b}",
            "return {a} if {a} > {b} else {b}",
        ),
        max, PAIRS,
    ),
    _known(
        "min_of_two minimum smaller", TWO, "the smaller of {a} and {b}",
        (
            "return min({a}, {b})",
            "if {a} < {b}:\n    return {a}\nreturn {b}",
            "return {a} if {a} < {b} else {b}",
        ),
        min, PAIRS,
    ),
    _known(
        "max_of_three largest_of_three", "a,b,c x,y,z", "the largest of {a}, {b} and {c}",
        ("return max({a}, {b}, {c})",), max, ((1, 2, 3), (9, 2, 4), (5, 6, 5)),
    ),
    _known(
        "average mean", LIST, "the average of {a}",
        ("return sum({a}) / len({a})", "total = sum({a})\nreturn total / len({a})"), lambda v: sum(v) / len(v),
        LISTS,
    ),
    _known(
        "average_of_two midpoint", TWO, "the average of {a} and {b}", ("return ({a} + {b}) / 2",),
        lambda a, b: (a + b) / 2, PAIRS,
    ),
    _known(
        "sum_list total sum_all add_all", LIST, "the sum of {a}",
        ("return sum({a})", "total = 0\nfor item in {a}:\n    total += item\nreturn total"), sum, LISTS,
    ),
    _known(
        "find_max max_list largest", LIST, "the largest of {a}",
        (
            "return max({a})",
            "best = {a}[0]\nfor item in {a}:\n    if item > best:\n        best = item\nreturn best",
        ),
        max, LISTS,
    ),
    _known(
        "find_min min_list smallest", LIST, "the smallest of {a}",
        (
            "return min({a})",
            "best = {a}[0]\nfor item in {a}:\n    if item < best:\n        best = item\nreturn best",
        ),
        min, LISTS,
    ),
    _known(
        "reverse_list reversed_list", LIST, "{a} in reverse order",
        ("return {a}[::-1]", "return list(reversed({a}))"), lambda v: v[::-1], LISTS,
    ),
    _known("first_item first_element", LIST, "the first item of {a}", ("return {a}[0]",), lambda v: v[0], LISTS),
    _known("last_item last_element", LIST, "the last item of {a}", ("return {a}[-1]",), lambda v: v[-1], LISTS),
    _known(
        "sort_list sort_numbers", LIST, "a sorted copy of {a}",
        ("return sorted({a})", "result = list({a})\nresult.sort()\nreturn result"), sorted, LISTS,
    ),
    _known(
        "remove_duplicates unique", LIST, "{a} without duplicates, in order",
        (
            "return list(dict.fromkeys({a}))",
            "result = []\nfor item in {a}:\n    if item not in result:\n        result.append(item)\nreturn result",
        ),
        lambda v: list(dict.fromkeys(v)), LISTS,
    ),
    _known(
        "get_evens even_numbers filter_even", LIST, "the even numbers of {a}",
        (
            "return [item for item in {a} if item % 2 == 0]",
            "result = []\nfor item in {a}:\n    if item % 2 == 0:\n        result.append(item)\nreturn result",
        ),
        lambda v: [x for x in v if x % 2 == 0], LISTS,
    ),
    _known(
        "contains is_in", "items,value values,item numbers,target", "True if {b} is in {a}, otherwise False",
        (
            "return {b} in {a}",
            "for element in {a}:\n    if element == {b}:\n        return True\nreturn False",
        ),
        lambda a, b: b in a, (([1, 2], 2), ([3], 4), ([], 1)),
    ),
    _known(
        "greet say_hello hello", "name person who", "a greeting for {a}, such as Hello, Ada!",
        ('return f"Hello, {{a}}!"', 'return "Hello, " + {a} + "!"'), lambda a: f"Hello, {a}!", ("Ada", "Tim", "you"),
    ),
    _known(
        "reverse_string reverse reverse_text", TEXT, "{a} spelled backwards",
        ("return {a}[::-1]", 'return "".join(reversed({a}))'), lambda s: s[::-1], TEXTS,
    ),
    _known(
        "count_vowels vowels number_of_vowels", TEXT, "the number of vowels in {a}",
        (
            'return sum(1 for letter in {a}.lower() if letter in "aeiou")',
            'count = 0\nfor letter in {a}.lower():\n    if letter in "aeiou":\n        count += 1\nreturn count',
        ),
        lambda s: sum(s.lower().count(v) for v in "aeiou"), TEXTS,
    ),
    _known(
        "is_palindrome palindrome", TEXT, "True if {a} reads the same backwards, otherwise False",
        ("return {a} == {a}[::-1]", "backwards = {a}[::-1]\nreturn {a} == backwards"), lambda s: s == s[::-1], TEXTS,
    ),
    _known(
        "count_words word_count number_of_words", TEXT, "the number of words in {a}",
        ("return len({a}.split())", "words = {a}.split()\nreturn len(words)"), lambda s: len(s.split()), TEXTS,
    ),
    _known("to_upper uppercase shout", TEXT, "{a} in upper case", ("return {a}.upper()",), str.upper, TEXTS),
    _known(
        "string_length length", TEXT, "the number of characters in {a}",
        ("return len({a})", "count = 0\nfor _ in {a}:\n    count += 1\nreturn count"), len, TEXTS,
    ),
    _known(
        "celsius_to_fahrenheit to_fahrenheit", "celsius c degrees temperature",
        "{a} degrees Celsius in degrees Fahrenheit", ("return {a} * 9 / 5 + 32",), lambda c: c * 9 / 5 + 32,
        (0, 100, -40, 37),
    ),
    _known(
        "rectangle_area area", "width,height a,b w,h", "the area of a rectangle of {a} by {b}",
        ("return {a} * {b}", "area = {a} * {b}\nreturn area"), lambda a, b: a * b, PAIRS,
    ),
)  # fmt: skip


def draw(rng: Random, words: Words) -> Example:
    """One of the known functions, asked for in one of many ways."""
    known = rng.choice(KNOWN)
    request = rng.randrange(COMMONEST) if rng.random() < 0.3 else rng.randrange(len(REQUESTS))
    name, params = _usual(rng, known.names), _usual(rng, known.params)
    values = {**dict(zip("abc", params, strict=False)), "name": name}
    values |= {"call": f"{name}({', '.join(params)})", "what": fill(known.what, values)}
    text = REQUESTS[request]
    head = f"def {values['call']}:"
    fenced = text.endswith("\n\n{f}") and rng.random() < 0.3
    message = fill(text, {**values, "f": f"```python\n{head}\n```" if fenced else head})
    template = f"known/{known.names[0]}/{request}{'`' if fenced else ''}"
    answer = _answer(rng, known, values, head, fenced)
    cases = [[repr(one), repr(known.run(*one))] for one in known.inputs]
    return Example("code", template, (("user", message),), answer, {"name": name, "cases": cases})


def _usual(rng: Random, options: Sequence[Any]) -> Any:
    """The first of the options half of the time, else any."""
    return options[0] if rng.random() < 0.5 else rng.choice(options)


def _answer(rng: Random, known: Known, values: Mapping[str, str], head: str, fenced: bool) -> str:
    body = fill(rng.choice(known.bodies), values).splitlines()
    doc = [f'"""{fill(rng.choice(DOCSTRINGS), values)}"""'] if rng.random() < 0.6 else []
    code = "\n".join([head, *("    " + line for line in (*doc, *body))])
    code = f"```python\n{code}\n```" if fenced else code
    sentence = fill(rng.choice(SENTENCES), values)
    return f"{code}\n\n{sentence}" if rng.random() < 0.5 else code
