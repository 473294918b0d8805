"""Generated arithmetic with worked answers: the ``math`` task of the bundled pair."""

from __future__ import annotations

from random import Random

from draftgauge.training.reference.corpus import percentile

PLACES = ("Ones", "Tens", "Hundreds", "Thousands", "Ten thousands", "Hundred thousands")
NAMES = [
    "Ada",
    "Ben",
    "Chen",
    "Dora",
    "Emil",
    "Fatima",
    "Grace",
    "Hugo",
    "Iris",
    "Jonas",
    "Kofi",
    "Lena",
    "Mira",
    "Nils",
    "Omar",
    "Priya",
    "Quinn",
    "Rosa",
    "Sam",
    "Tara",
]
THINGS = [
    "apples",
    "books",
    "cards",
    "coins",
    "eggs",
    "flowers",
    "keys",
    "lamps",
    "marbles",
    "pens",
    "plums",
    "shells",
    "stamps",
    "tickets",
    "tokens",
]
BOXES = ("box", "boxes"), ("bag", "bags"), ("basket", "baskets"), ("shelf", "shelves"), ("crate", "crates")


def addition(rng: Random) -> tuple[str, str]:
    a, b = (rng.randrange(10, 10 ** rng.randint(2, 5)) for _ in range(2))
    lines, carry = [], 0
    for place in range(len(str(max(a, b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        with_carry = f" + {carry}" if carry else ""
        carry, digit = divmod(total, 10)
        lines.append(
            f"{PLACES[place]}: {x} + {y}{with_carry} = {total}, write {digit}" + (", carry 1." if carry else ".")
        )
    return f"What is {a} + {b}?", "\n".join(lines) + f"\nAnswer: {a + b}"


def multiplication(rng: Random) -> tuple[str, str]:
    a, b = rng.randrange(12, 1000), rng.randrange(11, 100)
    tens, ones = b // 10 * 10, b % 10
    parts = [(a, tens), (a, ones)] if ones else [(a, tens)]
    lines = [f"{a} * {b} = " + " + ".join(f"{x} * {y}" for x, y in parts)]
    lines += [f"{x} * {y} = {x * y}" for x, y in parts]
    lines.append(" + ".join(str(x * y) for x, y in parts) + f" = {a * b}")
    return rng.choice((f"Compute {a} * {b}.", f"What is {a} times {b}?")), "\n".join(lines) + f"\nAnswer: {a * b}"


def equation(rng: Random) -> tuple[str, str]:
    a, x, b = rng.randint(2, 19), rng.randint(2, 60), rng.randint(1, 99)
    c = a * x + b
    lines = (
        f"Subtract {b} from both sides: {a}x = {c} - {b}, so {a}x = {c - b}.",
        f"Divide both sides by {a}: x = {c - b} / {a} = {x}.",
        f"Check: {a} * {x} + {b} = {a * x} + {b} = {c}.",
    )
    return f"Solve {a}x + {b} = {c} for x.", "\n".join(lines) + f"\nAnswer: {x}"


def mean(rng: Random) -> tuple[str, str]:
    values = [rng.randint(2, 80) for _ in range(rng.randint(3, 5))]
    values[-1] += -sum(values) % len(values)
    running, lines = values[0], []
    for value in values[1:]:
        lines.append(f"{running} + {value} = {running + value}")
        running += value
    n = len(values)
    lines += [f"There are {n} numbers, and {running} / {n} = {running // n}."]
    return f"Find the mean of {', '.join(map(str, values))}.", "\n".join(lines) + f"\nAnswer: {running // n}"


def percentage(rng: Random) -> tuple[str, str]:
    share, base = rng.choice((5, 10, 15, 20, 25, 30, 40, 60, 75)), rng.randrange(20, 1000, 20)
    lines = (
        f"1% of {base} is {base} / 100 = {base / 100:g}.",
        f"{share}% of {base} is {share} * {base / 100:g} = {share * base / 100:g}.",
    )
    return f"How much is {share}% of {base}?", "\n".join(lines) + f"\nAnswer: {share * base / 100:g}"


def packing_story(rng: Random) -> tuple[str, str]:
    (box, boxes), thing, (first, second) = rng.choice(BOXES), rng.choice(THINGS), rng.sample(NAMES, 2)
    n, each, extra, gone = rng.randint(3, 19), rng.randint(4, 40), rng.randint(5, 60), rng.randint(2, 30)
    stored = n * each
    question = (
        f"{first} has {n} {boxes} with {each} {thing} in each {box}. {second} brings {extra} more {thing}, "
        f"and then they give away {gone}. How many {thing} are left?"
    )
    lines = (
        f"The {boxes} hold {n} * {each} = {stored} {thing}.",
        f"With the ones that {second} brings there are {stored} + {extra} = {stored + extra} {thing}.",
        f"After giving away {gone} there are {stored + extra} - {gone} = {stored + extra - gone} {thing}.",
    )
    return question, "\n".join(lines) + f"\nAnswer: {stored + extra - gone}"


def savings_story(rng: Random) -> tuple[str, str]:
    name, weekly, weeks, had, cost = (
        rng.choice(NAMES),
        rng.randint(3, 45),
        rng.randint(3, 16),
        rng.randint(10, 99),
        rng.randint(2, 50),
    )
    earned = weekly * weeks
    question = (
        f"{name} saves {weekly} dollars every week for {weeks} weeks and had {had} dollars before. "
        f"A present costs {cost} dollars. How much money does {name} have after buying it?"
    )
    lines = (
        f"In {weeks} weeks {name} saves {weeks} * {weekly} = {earned} dollars.",
        f"Together with the {had} dollars from before that is {earned} + {had} = {earned + had} dollars.",
        f"After buying the present {name} has {earned + had} - {cost} = {earned + had - cost} dollars.",
    )
    return question, "\n".join(lines) + f"\nAnswer: {earned + had - cost}"


def journey_story(rng: Random) -> tuple[str, str]:
    name, speed, hours, second, more = (
        rng.choice(NAMES),
        rng.randint(4, 90),
        rng.randint(2, 9),
        rng.randint(4, 90),
        rng.randint(2, 9),
    )
    one, two = speed * hours, second * more
    question = (
        f"{name} travels {hours} hours at {speed} kilometres per hour and then {more} hours at {second} kilometres per hour. "
        f"How far does {name} travel in total?"
    )
    lines = (
        f"The first part is {hours} * {speed} = {one} kilometres.",
        f"The second part is {more} * {second} = {two} kilometres.",
        f"In total {name} travels {one} + {two} = {one + two} kilometres.",
    )
    return question, "\n".join(lines) + f"\nAnswer: {one + two}"


KINDS = (addition, multiplication, equation, mean, percentage, packing_story, savings_story, journey_story)


def problem(rng: Random, *, reserved: bool) -> tuple[str, str]:
    """A problem and its worked answer; reserved problems (for prompts) never appear among the others."""
    while True:
        question, answer = rng.choice(KINDS)(rng)
        if (percentile(question, "math") < 5) == reserved:
            return question, answer
