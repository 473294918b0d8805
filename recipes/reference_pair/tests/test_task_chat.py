"""The chat task: answers are judged by what they say, and a template names structure and wording only."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from recipes.reference_pair.tasks.base import RESERVED, Example, split_of
from recipes.reference_pair.tasks.chat import draw, score
from recipes.reference_pair.tasks.chat.scenes import NAMES
from recipes.reference_pair.tests.chat_words import WORDS


def drawn(count: int, seed: int = 0) -> list[Example]:
    rng = Random(seed)
    return [draw(rng, WORDS) for _ in range(count)]


@pytest.fixture(scope="module")
def many() -> list[Example]:
    return drawn(6_000)


def with_facts(found: list[Example]) -> list[Example]:
    return [example for example in found if example.check["facts"]]


def tokens(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d|[^\sa-z\d]", text.lower())


def estimate(text: str) -> float:
    digits = sum(character.isdigit() for character in text)
    return digits + (len(text) - digits) / 3.9


def distinct_4grams(text: str) -> float:
    found = tokens(text)
    grams = [tuple(found[at : at + 4]) for at in range(len(found) - 3)]
    return len(set(grams)) / len(grams)


def test_reference_answers_are_right(many: list[Example]) -> None:
    assert [example for example in many[:3000] if score(example.check, example.answer) != 1.0] == []


def test_answers_without_a_fact_or_with_another_value_are_wrong(many: list[Example]) -> None:
    for example in with_facts(many)[:500]:
        fact = example.check["facts"][0][0]
        removed = re.sub(rf"\b{re.escape(fact)}s?\b", "something", example.answer, flags=re.IGNORECASE)
        assert score(example.check, removed) == 0.0
        for value in example.check["wrong"][:1]:
            assert score(example.check, f"{example.answer} Or {value}.") == 0.0
            assert score(example.check, removed.replace("something", value)) == 0.0


@pytest.mark.parametrize("garbage", ["", " ", "?", "\x00\ufffd", "Add a b Add a b", "Yes.", "0 00 000 1000", "((([[["])
def test_garbage_is_wrong(many: list[Example], garbage: str) -> None:
    assert sum(score(example.check, garbage) for example in many[:300]) == 0.0


def test_wording_does_not_matter() -> None:
    check = {"facts": [["14:30", "14.30", "2:30 pm"], ["Maria"]], "wrong": ["30", "Anna"]}
    assert score(check, "maria, at 2:30 PM") == 1.0
    assert score(check, "It leaves at 14:30; Maria comes along.") == 1.0
    assert score(check, "Marianna leaves at 14:30.") == 0.0
    assert score(check, "Maria leaves at 114:30.") == 0.0
    assert score(check, "Maria leaves at 14:30 or at 30.") == 0.0


def test_values_of_two_entries_must_not_be_swapped() -> None:
    check = {"facts": [["14"], ["9"]], "wrong": [], "pairs": [["ladder", ["14"]], ["mirror", ["9"]]]}
    assert score(check, "The ladder is on shelf 14 and the mirror on shelf 9.") == 1.0
    assert score(check, "Shelf 9 holds the mirror, shelf 14 the ladder.") == 1.0
    assert score(check, "They are on 14 and 9.") == 1.0
    assert score(check, "The ladder is on shelf 9 and the mirror on shelf 14.") == 0.0


def test_plain_answers_need_two_sentences_and_no_repetition() -> None:
    check = {"facts": [], "wrong": [], "sentences": 2}
    assert score(check, "A ladder is a useful thing. Would you like to hear more?") == 1.0
    assert score(check, "A ladder is a useful thing.") == 0.0
    assert score(check, "A ladder is useful. It is good. A ladder is useful. It is good.") == 0.0


def test_the_same_seed_gives_the_same_examples() -> None:
    assert drawn(50, seed=3) == drawn(50, seed=3)
    assert drawn(50, seed=3) != drawn(50, seed=4)


def test_there_are_many_templates_in_every_split(many: list[Example]) -> None:
    templates = {example.template for example in many}
    assert len({example.template for example in many[:5000]}) >= 600
    splits = Counter(map(split_of, templates))
    assert all(splits[split] >= 24 for split in RESERVED)


def test_parts_of_reserved_templates_occur_in_training_text(many: list[Example]) -> None:
    parts = {split: Counter[str]() for split in ("", "test")}
    for example in many:
        split = split_of(example.template)
        if split in parts:
            parts[split].update(re.split("[/-]", example.template.replace("{y}", "{x}")))
    assert {part for part in parts["test"] if not parts[""][part]} == set()


def test_templates_hold_neither_numbers_nor_names_of_the_facts(many: list[Example]) -> None:
    for example in many[:3000]:
        said = set(re.findall(r"\w+", example.template))
        assert not said & {*NAMES, *WORDS.nouns, *WORDS.identifiers[:-1]}
        assert not re.search(r"\d\d", example.template)


def test_lengths_spread_as_they_should(many: list[Example]) -> None:
    found = with_facts(many)[:3000]
    totals = [estimate(example.answer) + sum(estimate(text) + 3 for _, text in example.messages) for example in found]
    shares = [sum(low <= total < high for total in totals) / len(totals) for low, high in ((0, 250), (250, 555))]
    assert shares == pytest.approx([0.3, 0.4], abs=0.06)
    assert max(totals) < 1300
    answers = sorted(estimate(example.answer) for example in found)
    assert answers[len(answers) // 20] >= 38
    assert answers[-1] < 150


def test_plain_turns_have_their_share(many: list[Example]) -> None:
    assert 1 - len(with_facts(many)) / len(many) == pytest.approx(0.15, abs=0.02)


def test_conversations_alternate_and_end_with_a_question(many: list[Example]) -> None:
    for example in many[:2000]:
        roles = [role for role, _ in example.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        texts = [text for _, text in example.messages] + [example.answer]
        assert all(text and text == text.strip() and not re.search(r"[{}]|  ", text) for text in texts)


def test_answers_do_not_repeat_themselves(many: list[Example]) -> None:
    shares = [distinct_4grams(example.answer) for example in many[:3000]]
    assert sum(shares) / len(shares) >= 0.95
    assert sum(share < 0.75 for share in shares) <= 5
