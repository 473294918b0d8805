"""Plain exercises without a story: sums, products, equations, means, percentages, rectangles and the like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from recipes.reference_pair.tasks.base import Words
from recipes.reference_pair.tasks.math.exercise_numbers import (
    Slots,
    area_numbers,
    clock_numbers,
    difference_numbers,
    equation_minus_numbers,
    equation_numbers,
    mean_numbers,
    percentage_numbers,
    perimeter_numbers,
    product_and_sum_numbers,
    product_numbers,
    quotient_numbers,
    rule_of_three_numbers,
    sequence_numbers,
    span_numbers,
    sum_numbers,
    three_terms_numbers,
)
from recipes.reference_pair.tasks.math.wording import Problem, sentence

CLOSINGS = ("so the result is {r}", "that gives {r} as the result", "therefore we get {r}", "the value we want is {r}")
OPENERS = (
    "let us go step by step.",
    "we take it in small steps.",
    "here is one way to do it.",
    "this is not hard.",
    "let us see.",
)


@dataclass(frozen=True)
class Exercise:
    """A kind of exercise.

    Attributes:
        prompts: its wordings.
        numbers: draws the numbers, with the result as ``r`` and the computations of the steps.
        steps: sentences of the answer in order, each with its wordings.
    """

    prompts: tuple[str, ...]
    numbers: Callable[[Random], Slots]
    steps: tuple[tuple[str, ...], ...]


EXERCISES = {
    "sum": Exercise(
        (
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "Compute {a} + {b}.",
            "Find the sum of {a} and {b}.",
            "{a} plus {b} is what?",
        ),
        sum_numbers,
        (
            ("we split {b} into {t} and {o}", "the second number is {t} and {o}", "{b} has the parts {t} and {o}"),
            ("first come the tens: {c}", "adding {t} gives {c}", "with the tens we reach {c}"),
            ("then we add the ones: {e}", "the {o} that is left makes {e}", "after that, the ones lead to {e}"),
        ),
    ),
    "difference": Exercise(
        (
            "What is {a} - {b}?",
            "Subtract {b} from {a}.",
            "Compute {a} - {b}.",
            "Take {b} away from {a}.",
            "{a} minus {b} is what?",
        ),
        difference_numbers,
        (
            ("we split {b} into {t} and {o}", "to take away are {t} and {o}", "{b} has the parts {t} and {o}"),
            ("first the tens go: {c}", "taking away {t} gives {c}", "without the tens we are at {c}"),
            ("then we remove the ones: {e}", "the {o} that is left makes {e}", "after that, the ones lead to {e}"),
        ),
    ),
    "product": Exercise(
        ("Compute {a} * {b}.", "What is {a} * {b}?", "Multiply {a} by {b}.", "Find the product of {a} and {b}."),
        product_numbers,
        (
            ("the tens give {c}", "we multiply the tens first: {c}", "{a} times {t} is {c}"),
            ("for the ones we have {f}", "next come the ones, {f}", "in the same way, {f}"),
            ("both parts together are {e}", "the sum of these is {e}", "adding them up, {e}"),
        ),
    ),
    "quotient": Exercise(
        ("Compute {a} / {b}.", "What is {a} / {b}?", "Divide {a} by {b}.", "How often does {b} fit into {a}?"),
        quotient_numbers,
        (
            (
                "we look for the number that makes {a} when it is multiplied by {b}",
                "which number times {b} is {a}, we ask in the table of {b}",
                "the table of {b} helps us to find how often it goes into {a}",
            ),
            ("there we find {c}", "the table says {c}", "it holds that {c}"),
            ("turned around, this is {e}", "the division is therefore {e}", "that means {e}"),
        ),
    ),
    "three_terms": Exercise(
        (
            "What is {a} + {b} - {d}?",
            "Compute {a} + {b} - {d}.",
            "Add {a} and {b}, then subtract {d}.",
            "Work out {a} + {b} - {d}.",
        ),
        three_terms_numbers,
        (
            (
                "from left to right, we begin with the sum: {c}",
                "the first two numbers make {c}",
                "we start by adding: {c}",
            ),
            ("the third number is taken off: {e}", "now {d} goes away from it: {e}", "subtracting {d} leaves {e}"),
        ),
    ),
    "product_and_sum": Exercise(
        (
            "What is {a} * {b} + {d}?",
            "Compute {a} * {b} + {d}.",
            "Multiply {a} by {b}, then add {d}.",
            "Find {a} times {b}, plus {d}.",
        ),
        product_and_sum_numbers,
        (
            ("the product comes before the sum: {c}", "we multiply first: {c}", "{a} times {b} comes to {c}"),
            ("the rest is an addition, {e}", "now {d} is added to it: {e}", "with {d} on top it is {e}"),
        ),
    ),
    "equation": Exercise(
        (
            "Solve {a}x + {b} = {d}.",
            "Find x: {a}x + {b} = {d}.",
            "What is x if {a}x + {b} = {d}?",
            "For which x is {a}x + {b} equal to {d}?",
        ),
        equation_numbers,
        (
            ("we subtract {b} on both sides", "first, {b} has to go from both sides", "both sides lose {b}"),
            ("this leaves {a}x = {c}", "we have {a}x = {c} after that", "it follows that {a}x = {c}"),
            ("dividing by {a} gives x = {e}", "one x is therefore {e}", "we divide by {a} and find x = {e}"),
        ),
    ),
    "equation_minus": Exercise(
        (
            "Solve {a}x - {b} = {d}.",
            "Find x: {a}x - {b} = {d}.",
            "What is x if {a}x - {b} = {d}?",
            "For which x is {a}x - {b} equal to {d}?",
        ),
        equation_minus_numbers,
        (
            ("we add {b} on both sides", "first, {b} has to come to both sides", "both sides grow by {b}"),
            ("this leaves {a}x = {c}", "we have {a}x = {c} after that", "it follows that {a}x = {c}"),
            ("dividing by {a} gives x = {e}", "one x is therefore {e}", "we divide by {a} and find x = {e}"),
        ),
    ),
    "mean": Exercise(
        (
            "What is the mean of {a}, {b} and {d}?",
            "Find the average of {a}, {b} and {d}.",
            "Compute the mean of {a}, {b}, {d}.",
            "What is {a}, {b} and {d} on average?",
        ),
        mean_numbers,
        (
            ("we add the first two numbers: {c}", "the sum begins with {c}", "two of the numbers make {c}"),
            ("the third one leads to {f}", "with {d} this becomes {f}", "then {d} is added, {f}"),
            ("there are 3 numbers, so we divide: {e}", "shared by 3, that is {e}", "a mean of 3 numbers needs {e}"),
        ),
    ),
    "percentage": Exercise(
        ("What is {p}% of {w}?", "Find {p} percent of {w}.", "How much is {p}% of {w}?", "Compute {p} percent of {w}."),
        percentage_numbers,
        (
            (
                "ten percent is one tenth",
                "we begin with 10 percent, a tenth",
                "a tenth of a number is 10 percent of it",
            ),
            ("a tenth of {w} is {c}", "here that means {c}", "for this number we get {c}"),
            ("{p} percent is {n} times that: {e}", "we need it {n} times, {e}", "taking {n} of these tenths, {e}"),
        ),
    ),
    "area": Exercise(
        (
            "What is the area of a rectangle with sides {a} and {b}?",
            "A rectangle is {a} wide and {b} long. Find its area.",
            "How large is the area of a field of {a} by {b} metres?",
            "Find the area of a room that measures {a} by {b} metres.",
        ),
        area_numbers,
        (
            ("the area of a rectangle is the product of its sides", "for an area, we multiply width and length"),
            ("one side is {a} and the other is {b}", "here the sides are {a} and {b}", "the sides measure {a} and {b}"),
            ("their product is {f}", "this makes {f}", "multiplied, that is {f}"),
        ),
    ),
    "perimeter": Exercise(
        (
            "What is the perimeter of a rectangle with sides {a} and {b}?",
            "A rectangle is {a} wide and {b} long. Find its perimeter.",
            "How long is a fence around a field of {a} by {b} metres?",
            "How far is it around a yard that measures {a} by {b} metres?",
        ),
        perimeter_numbers,
        (
            (
                "a rectangle has two sides of each length",
                "we go along each side twice",
                "each length is there two times",
            ),
            ("one long and one short side are {c}", "half of the way is {c}", "two neighbouring sides make {c}"),
            ("all four together are {e}", "doubling this gives {e}", "the full way is {e}"),
        ),
    ),
    "sequence": Exercise(
        (
            "Which number comes next: {a}, {b}, {d}?",
            "Continue the sequence {a}, {b}, {d}.",
            "What follows after {a}, {b}, {d}?",
            "Find the next number of {a}, {b}, {d}.",
        ),
        sequence_numbers,
        (
            ("from the first to the second number it is {c}", "the first gap is {c}", "we look at the first step: {c}"),
            ("the second gap is the same, {f}", "it goes on with {f}", "another step of this size follows, {f}"),
            ("so the next number is {e}", "once more by {s}, that makes {e}", "we continue with {e}"),
        ),
    ),
    "rule_of_three": Exercise(
        (
            "If {a} tickets cost {w} dollars, what do {b} tickets cost?",
            "{a} notebooks cost {w} dollars. How much are {b} notebooks?",
            "Someone pays {w} dollars for {a} plants. What is the price of {b} plants?",
            "The price of {a} cups is {w} dollars. Find the price of {b} cups.",
        ),
        rule_of_three_numbers,
        (
            (
                "we find the price of a single one first",
                "the price of one is the key to this",
                "one of them has to be priced first",
            ),
            ("dividing by {a}, it is {c} dollars", "a single one costs {c}", "for one we pay {c} dollars"),
            ("now {b} of them cost {e}", "for {b} that makes {e} dollars", "times {b}, this is {e}"),
        ),
    ),
    "span": Exercise(
        (
            "What is the difference between the largest and the smallest of {a}, {b}, {d} and {f}?",
            "Find the range of {a}, {b}, {d}, {f}.",
            "How far are the smallest and the largest of {a}, {b}, {d}, {f} apart?",
            "Compute the range of the numbers {a}, {b}, {d} and {f}.",
        ),
        span_numbers,
        (
            ("the largest number is {h}", "we find {h} at the top", "no number is larger than {h}"),
            ("the smallest one is {l}", "at the bottom there is {l}", "the least of them is {l}"),
            ("between these it is {e}", "the difference is {e}", "we subtract and get {e}"),
        ),
    ),
    "clock": Exercise(
        (
            "How many minutes are {h} hours and {m} minutes?",
            "Convert {h} hours and {m} minutes into minutes.",
            "A film takes {h} hours and {m} minutes. How long is that in minutes?",
            "Write {h} hours and {m} minutes in minutes.",
        ),
        clock_numbers,
        (
            ("an hour has 60 minutes", "there are 60 minutes in every hour", "each hour lasts 60 minutes"),
            ("so the full hours are {c} minutes", "for {h} hours that makes {c}", "the hours alone take {c} minutes"),
            ("with the other minutes it is {e}", "then {m} more are added: {e}", "together with the rest we have {e}"),
        ),
    ),
}


def exercise(rng: Random, words: Words) -> Problem:
    """One plain exercise; ``words`` is not needed, as nothing is counted."""
    problem = Problem(["exercise"])
    name = rng.choice(tuple(EXERCISES))
    kind = EXERCISES[name]
    slots = kind.numbers(rng)
    problem.prompt.append(problem.pick(rng, name, kind.prompts).format_map(slots))
    problem.sentences.append(sentence(rng.choice(OPENERS), ""))
    for wordings in kind.steps:
        problem.sentences.append(sentence(rng.choice(wordings).format_map(slots)))
    problem.sentences.append(sentence(rng.choice(CLOSINGS).format_map(slots)))
    problem.result = int(str(slots["r"]))
    return problem
