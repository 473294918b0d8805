"""Problems of bills: things at a price, with a discount, a delivery or a banknote to pay with."""

from __future__ import annotations

from random import Random

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.math.arithmetic import minus, plus, times
from recipes.reference_pair.tasks.math.wording import Problem, by_position, connector, people, sentence, thing

SHOPS = (
    ("at the market", ("melon", "cabbage", "pumpkin", "cheese", "basket", "jar")),
    ("in a bookshop", ("novel", "atlas", "comic", "guide", "calendar", "bookmark")),
    ("in a toy shop", ("puzzle", "doll", "kite", "robot", "drum", "ball")),
    ("at the bakery", ("cake", "pie", "muffin", "tart", "pizza", "bun")),
    ("in a garden centre", ("rose", "shrub", "pot", "rake", "hose", "spade")),
    ("at a flea market", ("vase", "clock", "mirror", "record", "camera", "lamp")),
    ("in a music shop", ("flute", "drum", "string", "song book", "whistle", "stand")),
    ("at a sports shop", ("racket", "helmet", "jersey", "towel", "cap", "net")),
    ("for the office", ("chair", "folder", "printer", "stapler", "desk", "lamp")),
    ("for the school", ("ruler", "globe", "chart", "notebook", "marker", "bell")),
    ("for a party", ("balloon", "candle", "garland", "plate", "glass", "lantern")),
    ("on the internet", ("cable", "charger", "keyboard", "speaker", "adapter", "screen")),
)
ITEM = (
    "{S} buys {n} {T} at {p} dollars each",
    "{S} takes {n} {T} that cost {p} dollars apiece",
    "{S} pays {p} dollars for each of {n} {T}",
    "{S} orders {n} {T}, and one {t} costs {p} dollars",
)
MORE_ITEM = (
    "{S} also buys {n} {T} at {p} dollars each",
    "besides, {S} takes {n} {T} for {p} dollars apiece",
    "{n} {T} for {p} dollars each come on top",
    "for {his} sister, {S} adds {n} {T}, each for {p} dollars",
)
CHANGES = {
    "discount": (
        "a coupon takes {d} dollars off",
        "the seller gives {him} a discount of {d} dollars",
        "because of a sale, the bill is {d} dollars lower",
    ),
    "fee": (
        "the delivery costs {d} dollars",
        "{S} pays {d} dollars more for the wrapping",
        "a fee of {d} dollars is added to the bill",
    ),
}
WALLET = (
    "{S} has {w} dollars in {his} wallet",
    "{S} pays with {w} dollars",
    "{S} brings {w} dollars along",
)
TOTAL_QUESTION = (
    "how many dollars does {N} pay in all",
    "what is the total of the bill",
    "how much money does {N} spend",
    "what does everything cost together",
)
LEFT_QUESTION = (
    "how many dollars does {N} have left",
    "how much change does {N} get",
    "how much money remains after paying",
    "what is left of the money",
)
ITEM_STEPS = (
    "the {n} {T} cost {c} dollars",
    "we multiply {n} by {p} for the {T}: {c} dollars",
    "{n} {T} at {p} dollars make {c} dollars",
    "for the {T}, {N} pays {c} dollars",
    "the price of all the {T} is {c}",
    "{n} times {p} dollars for the {T} is {c}",
)
SUM_STEPS = (
    "with the {T} the bill comes to {c} dollars",
    "both prices together are {c}",
    "we add this to the bill: {c} dollars",
    "the sum so far is {c} dollars",
)
CHANGE_STEPS = {
    "discount": (
        "we take off {d} dollars: {c}",
        "the bill falls by {d}, to {c} dollars",
        "with {d} dollars less it is {c} dollars",
        "with the discount, {c} dollars are to be paid",
    ),
    "fee": (
        "we put {d} dollars on top: {c}",
        "the bill rises by {d}, to {c} dollars",
        "with {d} dollars more it is {c} dollars",
        "including this, {c} dollars are to be paid",
    ),
}
LEFT_STEPS = (
    "from the {w} dollars, {c} dollars remain",
    "we subtract the bill from {w}: {c} dollars",
    "{N} keeps {c} dollars",
    "of the money, {c} dollars are not spent",
)
TOTAL_ENDS = ("so {N} pays {r} dollars", "the whole bill is {r} dollars", "so everything costs {r} dollars")
LEFT_ENDS = ("so {N} has {r} dollars left", "the rest of the money is {r} dollars", "so {r} dollars remain")


class Bill:
    """One bill while it is told."""

    def __init__(self, rng: Random, words: Words) -> None:
        self.rng = rng
        self.problem = Problem(["bill"])
        self.where, own = rng.choice(SHOPS)
        self.person = people(rng, 1)[0]
        count = rng.choice((1, 2, 2, 2))
        chosen = rng.sample(own, count)
        self.things = [thing(rng, (noun,), words if place == 0 else None) for place, noun in enumerate(chosen)]
        rng.shuffle(self.things)
        self.items = [self._price() for _ in range(count)]
        self.change = rng.choice(("", "discount", "fee")) if count == 2 else rng.choice(("discount", "fee"))
        price = sum(number * price for number, price in self.items)
        self.amount = rng.randint(2, min(9, price - 2))
        self.total = price + self._changed()
        self.wallet = rng.random() < 0.5
        self.money = self._money()

    def _price(self) -> tuple[int, int]:
        """How many, and for how much: mostly within the tables."""
        if self.rng.random() < 0.7:
            return self.rng.randint(2, 12), self.rng.randint(2, 12)
        pair = [self.rng.randint(2, 6), self.rng.randint(13, 39)]
        self.rng.shuffle(pair)
        return pair[0], pair[1]

    def _changed(self) -> int:
        return {"": 0, "discount": -1, "fee": 1}[self.change] * self.amount

    def _money(self) -> int:
        """A round sum that is enough."""
        enough = self.total - self.total % 10 + 10
        return enough + 10 * self.rng.randint(0, 4)

    def _slots(self, named: bool) -> dict[str, object]:
        person = self.person
        subject = person.name if named else person.he
        return {"S": subject, "N": person.name, "his": person.his, "him": person.him, "d": self.amount, "w": self.money}

    def _item_slots(self, place: int, named: bool) -> dict[str, object]:
        (one, many), (number, price) = self.things[place], self.items[place]
        return {**self._slots(named), "t": one, "T": many, "n": number, "p": price}

    def tell_prompt(self) -> None:
        """Writes the purchases and the question."""
        rng, problem = self.rng, self.problem
        problem.parts.append(self.where.replace(" ", "_"))
        first = problem.pick(rng, "item", ITEM).format_map(self._item_slots(0, True))
        problem.prompt.append(sentence(f"{self.where}, {first}"))
        for place in range(1, len(self.items)):
            text = problem.pick(rng, "more", MORE_ITEM)
            problem.prompt.append(sentence(text.format_map(self._item_slots(place, self._named()))))
        told = [(self.change, CHANGES[self.change])] if self.change else []
        if self.wallet:
            told.append(("wallet", WALLET))
            if rng.random() < 0.4:
                told.reverse()
        for label, pool in told:
            text = problem.pick(rng, label, pool)
            problem.prompt.append(sentence(text.format_map(self._slots(self._named()))))
        question = problem.pick(rng, "ask", LEFT_QUESTION if self.wallet else TOTAL_QUESTION)
        problem.prompt.append(sentence(question.format_map(self._slots(True)), "?"))

    def _named(self) -> bool:
        """Whether the next sentence of the prompt has the name; part of the template."""
        named = self.rng.random() < 0.4
        self.problem.parts.append("name" if named else "pronoun")
        return named

    def tell_answer(self) -> None:
        """Writes the worked steps."""
        lines: list[tuple[tuple[str, ...], dict[str, object]]] = []
        total = 0
        for place, (number, price) in enumerate(self.items):
            slots = self._item_slots(place, True)
            lines.append((ITEM_STEPS, {**slots, "c": times(number, price)}))
            if place:
                lines.append((SUM_STEPS, {**slots, "c": plus(total, number * price)}))
            total += number * price
        if self.change:
            calculation = (minus if self.change == "discount" else plus)(total, self.amount)
            lines.append((CHANGE_STEPS[self.change], {**self._slots(True), "c": calculation}))
        if self.wallet:
            lines.append((LEFT_STEPS, {**self._slots(True), "c": minus(self.money, self.total)}))
        for place, (pool, slots) in enumerate(lines):
            begin = connector(self.rng, place, place == len(lines) - 1)
            self.problem.sentences.append(sentence(begin + by_position(self.rng, pool, place, slots)))
        self.problem.result = self.money - self.total if self.wallet else self.total
        self.problem.unit = "dollars"
        ends = LEFT_ENDS if self.wallet else TOTAL_ENDS
        text = self.rng.choice(ends).format_map({**self._slots(True), "r": self.problem.result})
        self.problem.sentences.append(sentence(text))


def bill(rng: Random, words: Words) -> Problem:
    """One or two purchases, and what is added, taken off or left."""
    told = Bill(rng, words)
    told.tell_prompt()
    told.tell_answer()
    return told.problem
