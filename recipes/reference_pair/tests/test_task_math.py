"""The generator of math problems: right references, a checker that tells right from wrong, many templates."""

from __future__ import annotations

import re
from collections import defaultdict
from random import Random

import pytest

from recipes.reference_pair.tasks.base import RESERVED, Example, Words, examples, split_of
from recipes.reference_pair.tasks.math import draw, score, steps_true
from recipes.reference_pair.tasks.math.wording import MEN, WOMEN

NOUNS = "ladder engine window signal pocket hammer letter planet mirror needle barrel saddle wagon anchor kettle"
ADJECTIVES = "quiet rapid brief solid clever gentle proper narrow distant bright modern rough silent simple strong"
WORDS = Words(tuple(NOUNS.split()), tuple(ADJECTIVES.split()), ("collect",), ("read_lines",))
TOKEN = re.compile(r"[A-Za-z]{1,6}|[0-9]|[^\sA-Za-z0-9]|\n")


@pytest.fixture(scope="module")
def drawn() -> list[Example]:
    """20,000 problems."""
    rng = Random(7)
    return [draw(rng, WORDS) for _ in range(10_000)]


def distinct_4grams(text: str) -> float:
    """Share of the runs of four words, digits and marks that are distinct."""
    tokens = re.findall(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]", text)
    runs = [tuple(tokens[place : place + 4]) for place in range(len(tokens) - 3)]
    return len(set(runs)) / len(runs)


def test_references_are_right_and_so_is_each_of_their_computations(drawn: list[Example]) -> None:
    assert all(score(example.check, example.answer) == 1.0 for example in drawn)
    assert all(steps_true(example.answer) == 1.0 for example in drawn)
    assert all(0 < example.check["answer"] < 1000 for example in drawn)


def test_a_changed_number_is_wrong(drawn: list[Example]) -> None:
    for example in drawn[:500]:
        head, _, last = example.answer.rpartition("Answer: ")
        changed = re.sub(r"[0-9]+", str(example.check["answer"] + 1), last, count=1)
        assert score(example.check, f"{head}Answer: {changed}") == 0.0
        first = re.search(r"= ([0-9]+)", example.answer)
        assert first is not None
        wrong = f"{example.answer[: first.start()]}= {int(first[1]) + 1}{example.answer[first.end() :]}"
        assert steps_true(wrong) < 1.0


@pytest.mark.parametrize(
    "text", ["", "answer", "Answer: -", "\x00\n= = 3 +", "9" * 5000, "Answer: 1,,.", "٣", "So 3 / 0 = 1."]
)
def test_garbage_is_wrong_and_breaks_nothing(text: str) -> None:
    assert score({"answer": 84}, text) == 0.0
    assert steps_true(text) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Answer: 84",
        "The ANSWER is 84.",
        "42 + 42 = 84",
        "Answer: 7 * 12 = 84 pencils.",
        "Answer: 84.0",
        "Answer: unknown, 084",
    ],
)
def test_a_right_answer_counts_in_any_wording(text: str) -> None:
    assert score({"answer": 84}, text) == 1.0


def test_the_last_answer_decides() -> None:
    assert score({"answer": 84}, "Answer: 84\nAnswer: 83") == 0.0
    assert score({"answer": 1204}, "There are 3 steps. Answer: 1,204 nails") == 1.0


def test_share_of_computations_that_hold() -> None:
    assert steps_true("48 + 37 = 48 + 30 + 7 = 78 + 7 = 85 pencils") == 1.0
    assert steps_true("48 + 37 = 48 + 30 + 7 = 78 + 7 = 84 pencils") == pytest.approx(2 / 3)
    assert steps_true("3x + 5 = 26, so 3x = 26 - 5 = 21 and x = 21 / 3 = 7.") == 1.0
    assert steps_true("6 * 34 = 6 * 30 + 6 * 4 = 180 + 24 = 204; 9 - 4 = 6") == pytest.approx(3 / 4)


def test_the_seed_decides_the_text() -> None:
    first, second = Random(3), Random(3)
    assert [draw(first, WORDS) for _ in range(200)] == [draw(second, WORDS) for _ in range(200)]


def test_many_templates_in_every_split(drawn: list[Example]) -> None:
    assert len({example.template for example in drawn[:5000]}) >= 600
    kept = defaultdict(set)
    for example in drawn:
        kept[split_of(example.template)].add(example.template)
    assert all(len(kept[split]) >= 24 for split in RESERVED)
    assert split_of(next(examples(draw, Random(1), WORDS, "test")).template) == "test"


def test_templates_know_no_names_and_no_numbers(drawn: list[Example]) -> None:
    texts = defaultdict(set)
    for example in drawn:
        texts[example.template].add(re.sub("[0-9]+", "", example.messages[0][1]))
        parts = set(re.split(r"[/_]", example.template))
        assert not parts & {*WOMEN, *MEN, *WORDS.nouns}
        assert not any(re.fullmatch("[0-9]+", part) for part in parts)
    exercises = [prompts for template, prompts in texts.items() if template.startswith("exercise")]
    assert all(len(prompts) == 1 for prompts in exercises)


def test_lengths_and_repetition(drawn: list[Example]) -> None:
    lengths = sorted(len(TOKEN.findall(example.answer)) for example in drawn)
    assert lengths[len(lengths) // 100] >= 40
    assert lengths[-len(lengths) // 100] <= 220
    shares = sorted(distinct_4grams(example.answer) for example in drawn[:5000])
    assert sum(shares) / len(shares) >= 0.93
    assert shares[len(shares) // 1000] >= 0.75


def test_the_answer_is_not_in_the_prompt_as_a_rule(drawn: list[Example]) -> None:
    copied = [str(e.check["answer"]) in re.findall("[0-9]+", e.messages[0][1]) for e in drawn]
    assert sum(copied) / len(copied) < 0.15


def test_no_slot_is_left_open(drawn: list[Example]) -> None:
    assert not [e for e in drawn if re.search(r"[{}]|  |\.\.|\?\.", e.messages[0][1] + e.answer)]
