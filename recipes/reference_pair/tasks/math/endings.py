"""Last steps of a story: what is done with all that is left, or who has more, and what is asked about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from recipes.reference_pair.tasks.math.arithmetic import minus, over, plus, times
from recipes.reference_pair.tasks.math.wording import Problem, sentence

Slots = Mapping[str, object]
Step = tuple[tuple[str, ...], dict[str, object]]
Numbers = Mapping[str, int]
Work = tuple[list[Step], int]


@dataclass(frozen=True)
class Asked:
    """What may be asked: the questions, the conclusions with the result ``r``, and what it counts."""

    questions: tuple[str, ...]
    conclusions: tuple[str, ...]
    unit: str


@dataclass(frozen=True)
class Ending:
    """A kind of last step.

    Attributes:
        facts: what the prompt says about it.
        asked: what may be asked.
        most_steps: computations at most.
        numbers: draws its numbers for the number of things before it; none where nothing fits.
        work: for what is asked, the computations as pools of wordings with their slots, and the result.
    """

    facts: tuple[str, ...]
    asked: Mapping[str, Asked]
    most_steps: int
    numbers: Callable[[Random, int], dict[str, int]]
    work: Callable[[str, int, Numbers], Work]

    def tell(self, rng: Random, problem: Problem, name: str, slots: Slots) -> str:
        """Adds the facts and the question to a prompt; gives what is asked."""
        if self.facts:
            problem.prompt.append(sentence(problem.pick(rng, name, self.facts).format_map(slots)))
        ask = rng.choice(tuple(self.asked))
        problem.parts.append(ask)
        question = problem.pick(rng, "ask", self.asked[ask].questions)
        problem.prompt.append(sentence(question.format_map(slots), "?"))
        return ask

    def conclude(self, rng: Random, problem: Problem, ask: str, slots: Slots) -> None:
        """Adds the conclusion to an answer whose result is known."""
        asked = self.asked[ask]
        problem.unit = asked.unit.format_map(slots)
        problem.sentences.append(sentence(rng.choice(asked.conclusions).format_map({**slots, "r": problem.result})))


SHARED = (
    "dividing {v} by {n} gives each {p} {c} {T}",
    "the {v} {T} make {n} equal shares: {c}",
    "each of the {n} {P} gets {c} {T}",
    "we split {v} into {n} equal parts, {c}",
)
PACKED = (
    "dividing {v} by {m} gives {c} {K}",
    "the {v} {T} go into {K} of {m}: {c}",
    "with {m} in every {q}, {c} {K} are full",
    "we split {v} into groups of {m}, {c}",
)
PRICED = (
    "we multiply the {v} {T} by the price: {c} dollars",
    "{v} times {d} dollars is {c} dollars",
    "at {d} dollars each, the {T} bring {c} dollars",
    "the price of all {v} {T} is {c} dollars",
)
MISSING = (
    "from {v} to {g} it is {c} {T}",
    "the gap up to {g} is {c}",
    "of the {g} {T}, {c} are still missing",
    "we compare {v} with the goal of {g}: {c}",
)
USED_DAILY = (
    "dividing {v} by {m} a day gives {c} days",
    "the {v} {T} are enough for {c} days",
    "at {m} {T} a day, that takes {c} days",
    "we count how often {m} fits into {v}: {c}",
)
HIGHER = (
    "{O} has {d} more than {v}, and that is {c} {T}",
    "for {O} we add {d}: {c}",
    "the count for {O} is higher by {d}, so {c}",
    "{O} comes to {c} {T}",
)
LOWER = (
    "{O} has {d} fewer than {v}, and that is {c} {T}",
    "for {O} we subtract {d}: {c}",
    "the count for {O} is lower by {d}, so {c}",
    "{O} comes to {c} {T}",
)
MULTIPLE = (
    "{O} has {n} times {v}, and that is {c} {T}",
    "for {O} we multiply by {n}: {c}",
    "the count for {O} is {n} times as high, so {c}",
    "{O} comes to {c} {T}",
)
TOGETHER = (
    "the two of them have {c} {T}",
    "both numbers add up to {c}",
    "{N} and {O} together reach {c} {T}",
    "the sum for both is {c}",
)
GAP = (
    "the difference is {c} {T}",
    "we compare both numbers: {c}",
    "between {N} and {O} there is a gap of {c} {T}",
    "that is more by {c}",
)

END = Asked(
    (
        "how many {T} does {N} have now",
        "how many {T} are there {where} in the end",
        "what is the number of {T} now",
        "how many {T} are {where} after all this",
    ),
    ("so there are {r} {T} {where} now", "so {N} is left with {r} {T}", "the number of {T} is now {r}"),
    "{T}",
)
END_TRIP = Asked(
    (
        "how many {T} are still ahead of {N}",
        "how many {T} does {N} have to go",
        "how far is it still for {N}, in {T}",
        "what is the rest of the way in {T}",
    ),
    ("so {r} {T} are still ahead", "so {N} has {r} {T} to go", "the rest of the way is {r} {T}"),
    "{T}",
)
EACH = Asked(
    (
        "how many {T} does each {p} get",
        "how many {T} go to every {p}",
        "what is the share of one {p}, counted in {T}",
    ),
    ("so each {p} gets {r} {T}", "so every {p} receives {r} {T}", "the share of one {p} is {r} {T}"),
    "{T}",
)
BOXES = Asked(
    ("how many {K} does {N} need", "how many {K} are filled", "what is the number of {K}"),
    ("so {N} needs {r} {K}", "so {r} {K} are filled", "the number of {K} is {r}"),
    "{K}",
)
MONEY = Asked(
    (
        "how many dollars does {N} get for all the {T}",
        "how much money are all the {T} worth",
        "what is the value of all the {T} in dollars",
    ),
    ("so {N} gets {r} dollars", "so all the {T} are worth {r} dollars", "the value of the {T} is {r} dollars"),
    "dollars",
)
MORE_NEEDED = Asked(
    ("how many more {T} does {N} need", "how many {T} are still missing", "how many {T} short is {N}"),
    ("so {N} needs {r} more {T}", "so {r} {T} are still missing", "the goal is {r} {T} away"),
    "{T}",
)
DAYS = Asked(
    ("for how many days do the {T} last", "after how many days are no {T} left", "how many days does that take"),
    ("so the {T} last for {r} days", "so after {r} days no {T} are left", "it takes {r} days"),
    "days",
)
OTHER = Asked(
    ("how many {T} does {O} have", "what is the number of {T} that {O} has", "how many {T} are with {O}"),
    ("so {O} has {r} {T}", "so the number for {O} is {r} {T}", "{r} {T} are with {O}"),
    "{T}",
)
BOTH = Asked(
    (
        "how many {T} do {N} and {O} have together",
        "how many {T} do the two have in all",
        "what is the total number of {T} of {N} and {O}",
    ),
    ("so {N} and {O} have {r} {T} together", "so the two have {r} {T} in all", "the total is {r} {T}"),
    "{T}",
)
DIFFERENCE = Asked(
    (
        "how many more {T} does {O} have than {N}",
        "what is the difference between {O} and {N} in {T}",
        "by how many {T} is {O} ahead of {N}",
    ),
    ("so {O} has {r} {T} more than {N}", "so the difference is {r} {T}", "{O} is ahead by {r} {T}"),
    "{T}",
)


def _divisor(rng: Random, value: int, name: str) -> dict[str, int]:
    """A divisor of a value within the tables."""
    fits = [number for number in range(2, 13) if value % number == 0 and 2 <= value // number <= 12]
    return {name: rng.choice(fits)} if fits else {}


def _division(divisor: str, pool: tuple[str, ...]) -> Callable[[str, int, Numbers], Work]:
    def work(ask: str, value: int, numbers: Numbers) -> Work:
        by = numbers[divisor]
        return [(pool, {"v": value, "c": over(value, by)})], value // by

    return work


def _price_work(ask: str, value: int, numbers: Numbers) -> Work:
    return [(PRICED, {"v": value, "c": times(value, numbers["d"])})], value * numbers["d"]


def _missing_work(ask: str, value: int, numbers: Numbers) -> Work:
    goal = numbers["g"]
    return [(MISSING, {"v": value, "c": minus(goal, value)})], goal - value


def _compared(ask: str, value: int, other: int, first: Step) -> Work:
    """The number of the other person, and what is asked about both."""
    if ask == "both":
        return [first, (TOGETHER, {"c": plus(value, other)})], value + other
    if ask == "gap":
        return [first, (GAP, {"c": minus(other, value)})], other - value
    return [first], other


def _more_work(ask: str, value: int, numbers: Numbers) -> Work:
    first = (HIGHER, {"v": value, "c": plus(value, numbers["d"])})
    return _compared(ask, value, value + numbers["d"], first)


def _fewer_work(ask: str, value: int, numbers: Numbers) -> Work:
    first = (LOWER, {"v": value, "c": minus(value, numbers["d"])})
    return _compared(ask, value, value - numbers["d"], first)


def _times_work(ask: str, value: int, numbers: Numbers) -> Work:
    first = (MULTIPLE, {"v": value, "c": times(value, numbers["n"])})
    return _compared(ask, value, value * numbers["n"], first)


def _end(asked: Asked) -> Ending:
    return Ending((), {"end": asked}, 0, lambda rng, value: {"r": value}, lambda ask, value, numbers: ([], value))


ENDINGS = {
    "end": _end(END),
    "end_trip": _end(END_TRIP),
    "share": Ending(
        (
            "the {T} are then shared equally among {n} {P}",
            "{S} divides all these {T} equally among {n} {P}",
            "{n} {P} share all the {T} that there are now, each getting as many as the next",
        ),
        {"each": EACH},
        1,
        lambda rng, value: _divisor(rng, value, "n"),
        _division("n", SHARED),
    ),
    "pack": Ending(
        (
            "now {S} packs all the {T} into {K} of {m}",
            "every {q} takes {m} of these {T}",
            "all that remain are packed into {K} that hold {m} {T} each",
        ),
        {"boxes": BOXES},
        1,
        lambda rng, value: _divisor(rng, value, "m"),
        _division("m", PACKED),
    ),
    "price": Ending(
        (
            "each {t} is worth {d} dollars",
            "{S} then sells all the {T} for {d} dollars each",
            "the price of every {t} is {d} dollars",
        ),
        {"money": MONEY},
        1,
        lambda rng, value: {"d": rng.randint(2, 9)} if value < 100 else {},
        _price_work,
    ),
    "missing": Ending(
        (
            "{S} wants to have {g} {T}",
            "the goal of {S} is to reach {g} {T}",
            "{g} {T} are needed in all",
        ),
        {"missing": MORE_NEEDED},
        1,
        lambda rng, value: {"g": value + rng.randint(3, 60)} if value < 150 else {},
        _missing_work,
    ),
    "daily": Ending(
        (
            "from now on, {m} {T} are {gone} every day",
            "each day that follows, {m} of the {T} are {gone}",
            "after that, exactly {m} {T} a day are {gone}",
        ),
        {"days": DAYS},
        1,
        lambda rng, value: _divisor(rng, value, "m"),
        _division("m", USED_DAILY),
    ),
    "more": Ending(
        (
            "now {O} has {d} more {T} than {N}",
            "{O} has as many {T} as {N} and {d} more",
            "compared with {N}, {O} has {d} {T} more",
        ),
        {"other": OTHER, "both": BOTH},
        2,
        lambda rng, value: {"d": rng.randint(2, 40)},
        _more_work,
    ),
    "fewer": Ending(
        (
            "now {O} has {d} fewer {T} than {N}",
            "{O} lacks {d} {T} to have as many as {N}",
            "compared with {N}, {O} has {d} {T} fewer",
        ),
        {"other": OTHER, "both": BOTH},
        2,
        lambda rng, value: {"d": rng.randint(2, min(40, value - 2))} if value > 6 else {},
        _fewer_work,
    ),
    "times": Ending(
        (
            "now {O} has {n} times as many {T} as {N}",
            "the number of {T} that {O} has is {n} times that of {N}",
            "compared with {N}, {O} has {n} times as many {T}",
        ),
        {"other": OTHER, "both": BOTH, "gap": DIFFERENCE},
        2,
        lambda rng, value: {"n": rng.randint(2, 5)} if 2 <= value < 100 else {},
        _times_work,
    ),
}
