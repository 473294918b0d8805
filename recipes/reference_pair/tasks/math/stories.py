"""Stories of one number of things that grows and shrinks: a scenario, a chain of events and a last step."""

from __future__ import annotations

from random import Random

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.math.arithmetic import minus, over, plus, times
from recipes.reference_pair.tasks.math.endings import ENDINGS
from recipes.reference_pair.tasks.math.scenarios import SCENARIOS, Scenario
from recipes.reference_pair.tasks.math.wording import (
    Problem,
    by_position,
    connector,
    people,
    plural,
    sentence,
    thing,
)

MOST = 300
TRIES = 400
GROUPS = (
    "friend",
    "cousin",
    "child",
    "neighbour",
    "guest",
    "scout",
    "student",
    "visitor",
    "colleague",
    "family",
    "team",
)
# What the last step packs things into.
PARCELS = ("bag", "packet", "chest", "trunk", "case", "bin", "sack")
TIMES = (
    ("", "", "in the morning, ", "on Monday, ", "one day ", "on the first day, ", "early on, "),
    ("then ", "later, ", "on Tuesday, ", "at noon, ", "the next day, ", "soon after, ", "after a while, "),
    ("after that, ", "on Wednesday, ", "in the evening, ", "a week later, ", "afterwards, ", "some days later, "),
)
DOUBLE = ("the number of {T} {where} doubles", "there are suddenly twice as many {T} {where}")
TRIPLE = ("the number of {T} {where} triples", "there are suddenly three times as many {T} {where}")
HALF = ("half of the {T} are {gone}", "one half of all the {T} is {gone}")
THIRD = ("a third of the {T} are {gone}", "one third of all the {T} is {gone}")
QUARTER = ("a quarter of the {T} are {gone}", "one quarter of all the {T} is {gone}")

# Events by kind: each is drawn about as often as it stands here.
KINDS = ("gain", "gain", "gain", "lose", "lose", "lose", "gain_packs", "gain_packs", "lose_packs", "lose_packs")
RARE_KINDS = ("double", "triple", "half", "third", "quarter")
SCALES = {"double": 2, "triple": 3}
SHARES = {"half": 2, "third": 3, "quarter": 4}
SPECIAL = {"double": DOUBLE, "triple": TRIPLE, "half": HALF, "third": THIRD, "quarter": QUARTER}

IRRELEVANT = (
    "{S} is {d} years old.",
    "{S} lives at number {d} in a quiet street.",
    "It is {d} degrees outside.",
    "The radio plays {d} songs.",
    "There are {d} clouds in the sky.",
    "{S} woke up {d} minutes before the alarm.",
)

GAIN_LINKS = (
    "so {S} {has} {c} {T}",
    "which makes {c} {T}",
    "so there are {c} {T} {where}",
    "and that gives {c}",
    "which brings the number to {c}",
    "so the count is now {c} {T}",
)
GAIN_PLAIN = (
    "adding the {x} new {T} gives {c}",
    "we add {x} to {v} and get {c} {T}",
    "with {x} more, the number of {T} is {c}",
    "the {v} {T} become {c}",
    "the number grows by {x}, to {c}",
    "{x} more and {v} from before are {c} {T}",
)
LOSE_LINKS = (
    "so {S} still {has} {c} {T}",
    "which leaves {c} {T}",
    "so {c} {T} are left",
    "and {c} remain {where}",
    "so the number falls to {c}",
    "so there are only {c} {T} {where}",
)
LOSE_PLAIN = (
    "taking away {x} {T} leaves {c}",
    "we subtract {x} from {v} and get {c} {T}",
    "with {x} fewer, the number of {T} is {c}",
    "of the {v} {T}, {c} stay {where}",
    "the number drops by {x}, to {c}",
    "{v} less {x} is {c} {T}",
)
PACKS = (
    "{n} times {m} {T} is {c}",
    "as {a}, this is about {c} {T}",
    "{a}, which is {c} {T} in all",
    "the {n} groups of {m} are {c} {T}",
    "we multiply {n} by {m}: {c} {T}",
    "{a}, that is {c} {T}",
)
SCALED = (
    "as {a}, we multiply {v} by {n}: {c} {T}",
    "{n} times the old number is {c} {T}",
    "{a}, which means {c}",
    "the {v} {T} turn into {c}",
)
PARTS = (
    "as {a}, we divide by {n}: {c} {T} go",
    "the part that is {gone} is {c} {T}",
    "{a}, which means {c} of them",
    "of {v} {T}, {c} are {gone}",
)
STARTS = (
    "{S} starts with {v} {T}.",
    "at the start there are {v} {T} {where}.",
    "we begin with {v} {T}.",
    "the first number of {T} is {v}.",
    "the story opens with {v} {T}.",
)
START_PACKS = (
    "{n} {B} with {m} {T} each make {c} {T}.",
    "at the start there are {c} {T} {where}.",
    "{n} times {m} gives the first number of {T}, {c}.",
    "{S} begins with {n} {B} of {m}, so with {c} {T}.",
    "the {n} {B} come to {c} {T}.",
)


class Story:
    """One story while it is told: what is fixed by its template first, its numbers then, its text last."""

    def __init__(self, rng: Random, words: Words) -> None:
        self.rng = rng
        self.problem = Problem(["story"])
        self.scenario: Scenario = rng.choice(SCENARIOS)
        self.person, self.other = people(rng, 2)
        self.slots = self._names(words)
        self.ending_name = rng.choice(self.scenario.endings)
        self.ending = ENDINGS[self.ending_name]
        self.start_packs = rng.random() < 0.4
        self.kinds = self._kinds()
        self.start: tuple[int, ...] = (0,)
        self.numbers: list[tuple[int, ...]] = []
        self.final: dict[str, int] = {}
        self.clauses: list[str] = []
        self.ask = ""
        self.position = 0

    def _names(self, words: Words) -> dict[str, object]:
        rng, scenario = self.rng, self.scenario
        one, many = thing(rng, scenario.things, words if scenario.any_thing else None)
        noun = one.split()[-1]
        box = rng.choice([box for box in scenario.boxes if box != noun])
        parcel = rng.choice([parcel for parcel in PARCELS if parcel != noun])
        group = rng.choice(GROUPS)
        groups = "children" if group == "child" else plural(group)
        who = {"S": self.person.name, "N": self.person.name, "O": self.other.name}
        pronouns = {"his": self.person.his, "him": self.person.him}
        place = {"where": scenario.where, "has": scenario.has, "gone": scenario.gone}
        boxes = {"B": plural(box), "b": box, "K": plural(parcel), "q": parcel}
        return {**who, **pronouns, **place, **boxes, "T": many, "t": one, "P": groups, "p": group}

    def _kinds(self) -> list[str]:
        """Kinds of events that make 2 to 5 computations with the start and the last step."""
        rng = self.rng
        while True:
            kinds = [rng.choice(KINDS) for _ in range(rng.choice((1, 2, 2, 2, 3, 3)))]
            if rng.random() < 0.3:
                kinds[rng.randrange(len(kinds))] = rng.choice(RARE_KINDS)
            work = sum(2 if kind.endswith("packs") or kind in SHARES else 1 for kind in kinds)
            if 2 <= work + self.start_packs + self.ending.most_steps <= 5:
                return kinds

    def find_numbers(self) -> bool:
        """Draws numbers until every step is a small one; whether that succeeded."""
        return any(self._numbers_fit() for _ in range(TRIES))

    def _numbers_fit(self) -> bool:
        rng = self.rng
        self.start = (rng.randint(2, 12), rng.randint(2, 12)) if self.start_packs else (rng.randint(6, 90),)
        value = self.start[0] * self.start[-1] if self.start_packs else self.start[0]
        self.numbers = []
        for kind in self.kinds:
            drawn = self._event_numbers(kind, value)
            if not drawn:
                return False
            self.numbers.append(drawn)
            value = drawn[-1]
        self.final = self.ending.numbers(rng, value)
        return bool(self.final)

    def _event_numbers(self, kind: str, value: int) -> tuple[int, ...]:
        """The numbers of an event, the value after it last; none where it does not fit the value before."""
        rng = self.rng
        if kind in SCALES:
            after = value * SCALES[kind]
            return (SCALES[kind], after) if after <= MOST / 2 else ()
        if kind in SHARES:
            parts = SHARES[kind]
            fits = value % parts == 0 and 2 <= value // parts <= (40 if parts == 2 else 12)
            return (parts, value - value // parts) if fits else ()
        if kind.endswith("packs"):
            count, each = rng.randint(2, 9), rng.randint(2, 12)
            drawn: tuple[int, ...] = (count, each)
            change = count * each
        else:
            change = rng.randint(2, 60)
            drawn = (change,)
        after = value + change if kind.startswith("gain") else value - change
        return (*drawn, after) if 2 <= after <= MOST else ()

    def tell_prompt(self) -> None:
        """Writes the story, its events and its question."""
        problem, rng = self.problem, self.rng
        problem.parts.append(self.scenario.name)
        pool = self.scenario.packs if self.start_packs else self.scenario.opening
        opening = problem.pick(rng, "packs" if self.start_packs else "open", pool)
        numbers = {"n": self.start[0], "m": self.start[-1], "v": self.start[0]}
        problem.prompt.append(sentence(opening.format_map({**self.slots, **numbers})))
        self.clauses = [self._event(place, kind) for place, kind in enumerate(self.kinds)]
        self.ask = self.ending.tell(rng, problem, self.ending_name, {**self.slots, **self.final})
        if rng.random() < 0.15:
            extra = problem.pick(rng, "extra", IRRELEVANT)
            place = rng.randint(1, len(problem.prompt) - 1)
            problem.parts.append(f"at{place}")
            problem.prompt.insert(place, extra.format_map({**self.slots, "d": rng.randint(3, 60)}))

    def _event(self, place: int, kind: str) -> str:
        """Adds the sentence of an event to the prompt, and gives its clause as the answer may repeat it."""
        rng, problem = self.rng, self.problem
        wording = problem.pick(rng, kind, SPECIAL.get(kind) or getattr(self.scenario, kind))
        when = problem.pick(rng, "when", TIMES[place])
        named = "{S}" not in wording or rng.random() < 0.4
        problem.parts.append("name" if named else "pronoun")
        numbers = self.numbers[place]
        slots = {**self.slots, "k": numbers[0], "n": numbers[0], "m": numbers[-2]}
        told = wording.format_map(slots if named else {**slots, "S": self.person.he})
        problem.prompt.append(sentence(when + told))
        return wording.format_map(slots if rng.random() < 0.5 else {**slots, "S": self.person.he})

    def tell_answer(self) -> None:
        """Writes the worked steps, one sentence for each computation."""
        value = self._start_answer()
        for place, kind in enumerate(self.kinds):
            value = self._event_answer(place, kind, value)
        steps, self.problem.result = self.ending.work(self.ask, value, self.final)
        for index, (pool, slots) in enumerate(steps):
            self._step(pool, {**self.final, **slots}, last=index == len(steps) - 1)
        self.ending.conclude(self.rng, self.problem, self.ask, {**self.slots, **self.final})

    def _start_answer(self) -> int:
        rng = self.rng
        if self.start_packs:
            count, each = self.start
            slots = {**self.slots, "n": count, "m": each, "c": times(count, each)}
            self.problem.sentences.append(sentence(rng.choice(START_PACKS).format_map(slots), ""))
            self.position = 1
            return count * each
        if rng.random() < 0.7:
            start = rng.choice(STARTS).format_map({**self.slots, "v": self.start[0]})
            self.problem.sentences.append(sentence(start, ""))
        return self.start[0]

    def _event_answer(self, place: int, kind: str, value: int) -> int:
        drawn, clause = self.numbers[place], self.clauses[place]
        slots: dict[str, object] = {"v": value, "a": clause, "n": drawn[0], "m": drawn[-2]}
        after, gains = drawn[-1], drawn[-1] > value
        if kind in SCALES:
            self._step(SCALED, {**slots, "c": times(value, drawn[0])})
            return after
        change = abs(after - value)
        if kind in SHARES:
            self._step(PARTS, {**slots, "c": over(value, drawn[0])})
        elif kind.endswith("packs"):
            self._step(PACKS, {**slots, "c": times(drawn[0], drawn[1])})
        plain: tuple[str, ...] = GAIN_PLAIN if gains else LOSE_PLAIN
        slots |= {"x": change, "c": plus(value, change) if gains else minus(value, change)}
        if kind in ("gain", "lose") and self.rng.random() < 0.6:
            plain = tuple("{a}, " + link for link in (GAIN_LINKS if gains else LOSE_LINKS))
        self._step(plain, slots)
        return after

    def _step(self, pool: tuple[str, ...], slots: dict[str, object], last: bool = False) -> None:
        subject = self.person.name if self.rng.random() < 0.5 else self.person.he
        told = by_position(self.rng, pool, self.position, {**self.slots, "S": subject, **slots})
        self.problem.sentences.append(sentence(connector(self.rng, self.position, last) + told))
        self.position += 1


def story(rng: Random, words: Words) -> Problem:
    """A story whose numbers are small ones; where its chain finds none, another is drawn."""
    while True:
        told = Story(rng, words)
        if told.find_numbers():
            told.tell_prompt()
            told.tell_answer()
            return told.problem
