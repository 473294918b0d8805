"""Problems of several people whose numbers are told by comparison."""

from __future__ import annotations

from random import Random

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.math.arithmetic import minus, over, plus, times
from recipes.reference_pair.tasks.math.wording import Problem, by_position, connector, people, sentence, thing

# What people do with the things: third person, plural, things.
ACTIVITIES = (
    ("collects", "collect", ("stamp", "shell", "coin", "badge", "button", "bottle top")),
    ("reads", "read", ("page", "poem", "comic", "letter", "chapter", "story")),
    ("bakes", "bake", ("roll", "cake", "muffin", "pie", "cookie", "bagel")),
    ("sells", "sell", ("ticket", "lamp", "poster", "candle", "basket", "flower")),
    ("paints", "paint", ("picture", "tile", "mask", "plate", "card", "egg")),
    ("picks", "pick", ("apple", "plum", "lemon", "mushroom", "berry", "pear")),
    ("builds", "build", ("kite", "toy", "model", "bird house", "chair", "robot")),
    ("runs", "run", ("lap", "mile", "kilometre", "round")),
    ("scores", "score", ("point", "goal", "basket", "hit")),
    ("owns", "own", ("book", "record", "game", "marble", "sticker", "doll")),
    ("plants", "plant", ("tree", "rose", "tulip", "bean", "bush", "carrot")),
    ("carries", "carry", ("box", "brick", "log", "bucket", "stone", "sack")),
    ("finds", "find", ("pebble", "key", "feather", "fossil", "nut", "coin")),
    ("repairs", "repair", ("bicycle", "clock", "radio", "watch", "pump", "phone")),
    ("writes", "write", ("letter", "song", "report", "card", "line", "note")),
    ("counts", "count", ("bird", "car", "train", "star", "boat", "cloud")),
)
ANY_THING = ("collects", "sells", "owns", "carries", "finds", "counts")
FIRST = ("{A} {does} {v} {T}", "{v} {T} is what {A} {does}", "the number of {T} that {A} {does} is {v}")
RELATIONS = {
    "more": (
        "{B} {does} {d} more {T} than {A}",
        "{B} {does} as many as {A} and {d} more",
        "compared with {A}, {B} {does} {d} {T} more",
    ),
    "fewer": (
        "{B} {does} {d} fewer {T} than {A}",
        "{B} {does} as many as {A} less {d}",
        "compared with {A}, {B} {does} {d} {T} fewer",
    ),
    "times": (
        "{B} {does} {d} times as many {T} as {A}",
        "the count for {B} is {d} times that for {A}",
        "compared with {A}, {B} {does} {d} times as many {T}",
    ),
    "half": (
        "{B} {does} half as many {T} as {A}",
        "the count for {B} is half of that for {A}",
        "compared with {A}, {B} {does} only half as many {T}",
    ),
}
RELATION_STEPS = {
    "more": (
        "{B} {does} {d} more than {A}, so {c} {T}",
        "we add {d} to the count for {A} and get {c} for {B}",
        "for {B} that makes {c} {T}",
        "with {d} more, {B} comes to {c}",
    ),
    "fewer": (
        "{B} {does} {d} fewer than {A}, so {c} {T}",
        "we subtract {d} from the count for {A} and get {c} for {B}",
        "for {B} that leaves {c} {T}",
        "with {d} fewer, {B} comes to {c}",
    ),
    "times": (
        "{B} {does} {d} times as many as {A}, so {c} {T}",
        "we multiply the count for {A} by {d} and get {c} for {B}",
        "for {B} that means {c} {T}",
        "with {d} times as many, {B} comes to {c}",
    ),
    "half": (
        "{B} {does} half as many as {A}, so {c} {T}",
        "we divide the count for {A} by 2 and get {c} for {B}",
        "for {B} half of it is {c} {T}",
        "with one half, {B} comes to {c}",
    ),
}
LAST_QUESTION = ("how many {T} does {Z} {do}", "what is the number of {T} for {Z}", "how many {T} is that for {Z}")
ENDS_QUESTION = (
    "how many {T} do {F} and {Z} {do} together",
    "what is the sum of the {T} of {F} and {Z}",
    "how many {T} is that for {F} and {Z} in all",
)
TOTAL_QUESTION = (
    "how many {T} do all of them {do} together",
    "what is the total number of {T}",
    "how many {T} is that in all",
)
SUM_STEPS = (
    "the numbers for {A} and {B} add up to {c}",
    "{A} and {B} together {do} {c} {T}",
    "we add {B} to the others: {c}",
    "including {B}, the sum is {c} {T}",
)
STARTS = (
    "{A} {does} {v} {T}",
    "the count for {A} is {v}",
    "we know that {A} {does} {v} {T}",
    "we start from {A} with {v}",
)
ENDS_STEPS = (
    "the numbers for {F} and {Z} add up to {c}",
    "{F} and {Z} together {do} {c} {T}",
    "we add up what {F} and {Z} have: {c}",
    "for {F} and {Z} the sum is {c} {T}",
)
LAST_ENDS = ("so {Z} {does} {r} {T}", "the number of {T} for {Z} is {r}", "so it is {r} {T} for {Z}")
ENDS_ENDS = ("so {F} and {Z} {do} {r} {T} together", "the sum for {F} and {Z} is {r}", "so it is {r} {T} for both")
TOTAL_ENDS = ("so all of them {do} {r} {T} together", "the total number of {T} is {r}", "so it is {r} {T} in all")


QUESTIONS = {"last": LAST_QUESTION, "total": TOTAL_QUESTION, "ends": ENDS_QUESTION}
CONCLUSIONS = {"last": LAST_ENDS, "total": TOTAL_ENDS, "ends": ENDS_ENDS}
# What may be asked about so many comparisons; a total of four numbers would be long.
ASKS = {1: ("total",), 2: ("total", "total", "ends", "last"), 3: ("ends", "last")}

Line = tuple[tuple[str, ...], dict[str, object]]


def _related(rng: Random, kind: str, value: int) -> tuple[int, int]:
    """The number in a comparison with a value, and the value that it leads to; 0 where none fits."""
    if kind == "more":
        number = rng.randint(2, 50)
        return number, value + number
    if kind == "fewer":
        number = rng.randint(2, 30)
        return number, max(0, value - number)
    if kind == "times":
        number = rng.randint(2, 4)
        return number, value * number
    return 2, value // 2 if value % 2 == 0 and value <= 80 else 0


def _chain(rng: Random, kinds: list[str]) -> list[tuple[int, int]]:
    """The numbers of a chain of comparisons with the values they lead to, each from 2 to 150."""
    while True:
        steps = [(0, rng.randint(4, 60))]
        for kind in kinds:
            steps.append(_related(rng, kind, steps[-1][1]))
        if all(2 <= value <= 150 for _, value in steps):
            return steps


def _calculation(kind: str, value: int, number: int) -> str:
    if kind == "times":
        return times(value, number)
    return {"more": plus, "fewer": minus, "half": over}[kind](value, number)


class Comparison:
    """Two to four people, each compared with the one before, while it is told."""

    def __init__(self, rng: Random, words: Words) -> None:
        self.rng = rng
        self.problem = Problem(["comparison"])
        does, do, own = rng.choice(ACTIVITIES)
        self.kinds = [rng.choice(tuple(RELATIONS)) for _ in range(rng.choice((1, 2, 2, 3)))]
        self.ask = rng.choice(ASKS[len(self.kinds)])
        self.problem.parts += [do, self.ask]
        self.steps = _chain(rng, self.kinds)
        self.names = [person.name for person in people(rng, len(self.kinds) + 1)]
        many = thing(rng, own, words if does in ANY_THING else None)[1]
        told = {"does": does, "do": do, "T": many, "F": self.names[0], "Z": self.names[-1]}
        self.slots: dict[str, object] = {**told, "A": self.names[0], "v": self.steps[0][1]}

    def _pair(self, place: int) -> dict[str, object]:
        """Who is compared at a place, and by which number."""
        return {**self.slots, "A": self.names[place], "B": self.names[place + 1], "d": self.steps[place + 1][0]}

    def tell_prompt(self) -> None:
        """Writes the comparisons and the question."""
        rng, problem = self.rng, self.problem
        problem.prompt.append(sentence(problem.pick(rng, "first", FIRST).format_map(self.slots)))
        for place, kind in enumerate(self.kinds):
            text = problem.pick(rng, kind, RELATIONS[kind])
            problem.prompt.append(sentence(text.format_map(self._pair(place))))
        question = problem.pick(rng, "ask", QUESTIONS[self.ask])
        problem.prompt.append(sentence(question.format_map(self.slots), "?"))

    def _lines(self) -> list[Line]:
        """The computations: every number in turn, then where asked a sum, one number after another."""
        values = [value for _, value in self.steps]
        lines: list[Line] = [
            (
                RELATION_STEPS[kind],
                {**self._pair(place), "c": _calculation(kind, values[place], self.steps[place + 1][0])},
            )
            for place, kind in enumerate(self.kinds)
        ]
        if self.ask == "ends":
            return [*lines, (ENDS_STEPS, {**self.slots, "c": plus(values[0], values[-1])})]
        if self.ask == "total":
            for place in range(1, len(values)):
                slots = {**self._pair(place - 1), "c": plus(sum(values[:place]), values[place])}
                lines.append((SUM_STEPS if place == 1 else SUM_STEPS[2:], slots))
        return lines

    def tell_answer(self) -> None:
        """Writes the worked steps."""
        rng, problem, lines = self.rng, self.problem, self._lines()
        problem.sentences.append(sentence(rng.choice(STARTS).format_map(self.slots)))
        for place, (pool, slots) in enumerate(lines):
            begin = connector(rng, place, place == len(lines) - 1)
            problem.sentences.append(sentence(begin + by_position(rng, pool, place, slots)))
        values = [value for _, value in self.steps]
        problem.result = {"total": sum(values), "ends": values[0] + values[-1], "last": values[-1]}[self.ask]
        problem.unit = str(self.slots["T"])
        end = rng.choice(CONCLUSIONS[self.ask]).format_map({**self.slots, "r": problem.result})
        problem.sentences.append(sentence(end))


def comparison(rng: Random, words: Words) -> Problem:
    """One chain of comparisons."""
    told = Comparison(rng, words)
    told.tell_prompt()
    told.tell_answer()
    return told.problem
