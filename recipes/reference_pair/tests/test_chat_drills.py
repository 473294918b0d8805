"""Drills of the chat task: many questions on the same notes, each answered by what the notes say."""

from __future__ import annotations

import re
from random import Random

from recipes.reference_pair.tasks.chat.drills import RECALL_ROUNDS, ROUNDS, practice, recall
from recipes.reference_pair.tests.chat_words import WORDS


def test_practice_asks_several_different_questions_on_the_same_notes() -> None:
    rng = Random(5)
    for example in (practice(rng, WORDS) for _ in range(200)):
        roles = [role for role, _ in example.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        asked = [text for role, text in example.messages if role == "user" and "?" in text]
        assert len(set(asked)) == len(asked)
        told = [text for role, text in example.messages if role == "assistant"]
        answers = [*told[-(ROUNDS[0] - 1) :], example.answer]
        assert all(len(answer) > 60 and not re.search(r"[{}]|  ", answer) for answer in answers)


def test_practice_repeats_what_the_notes_say() -> None:
    """Numbers of an answer stand in the first messages of its conversation, or they count its entries."""
    rng = Random(6)
    for example in (practice(rng, WORDS) for _ in range(200)):
        notes = " ".join(text for role, text in example.messages if role == "user")
        assert all(number in notes for number in re.findall(r"\d\d+", example.answer))


def test_recall_asks_for_lists_and_single_facts_of_short_notes() -> None:
    rng = Random(7)
    lists = 0
    for example in (recall(rng, WORDS) for _ in range(200)):
        roles = [role for role, _ in example.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        told = [text for role, text in example.messages if role == "assistant"] + [example.answer]
        assert len(told) >= RECALL_ROUNDS[0]
        assert all(answer[0] == answer[0].upper() and not re.search(r"[{}]|  ", answer) for answer in told)
        lists += sum(answer.count(": ") + answer.count(" - ") > 1 for answer in told)
    assert lists > 200


def test_recall_gives_every_entry_of_a_list_the_value_that_its_notes_state() -> None:
    rng = Random(8)
    checked = 0
    for example in (recall(rng, WORDS) for _ in range(300)):
        notes = " ".join(text for role, text in example.messages if role == "user")
        for key, value in re.findall(r"(\w+): (\d\d+)", example.answer):
            rows = [row for row in re.split(r"\n|(?<=\.) (?=[A-Z])", notes) if re.search(rf"\b{key}\b", row, re.I)]
            if any(row.startswith(("|", "- ", key)) for row in rows):
                checked += 1
                assert any(value in row for row in rows)
    assert checked > 10
