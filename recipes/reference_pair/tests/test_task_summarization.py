"""The summarization task: right summaries score, changed ones do not; templates are many, without names."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from statistics import mean

import pytest

from recipes.reference_pair.tasks import summarization
from recipes.reference_pair.tasks.base import RESERVED, TRAINING, Example, Words, examples, split_of
from recipes.reference_pair.tasks.summarization import names

NOUNS = """
ladder engine bottle garden window basket hammer pencil kettle lantern blanket ticket camera bridge folder
marker sensor bucket magnet pillow anchor button carpet drawer filter handle island jacket kernel object
"""
ADJECTIVES = """
quiet green heavy narrow ancient clever empty useful rusty simple distant unusual broken modern plain rapid
shallow famous gentle honest sturdy visible wooden early internal optional yellow random steady curious
"""
VERBS = """
collect repair return compare follow accept remove replace answer finish open carry close measure count
deliver explain handle inspect join limit mention notice offer paint repeat select visit check improve
"""
IDENTIFIERS = """
read_lines write_block parse_header find_items make_index load_table max_depth open_file line_count
flush_cache merge_rows sort_keys next_token add_rule get_option is_ready to_text from_bytes close_all
split_path
"""
WORDS = Words(*(tuple(text.split()) for text in (NOUNS, ADJECTIVES, VERBS, IDENTIFIERS)))


def _drawn(count: int, seed: int = 0) -> list[Example]:
    rng = Random(seed)
    return [summarization.draw(rng, WORDS) for _ in range(count)]


@pytest.fixture(scope="module")
def many() -> list[Example]:
    return _drawn(3000)


def test_reference_summaries_name_all_facts_and_every_fact_stands_in_the_report(many: list[Example]) -> None:
    for example in many[:300]:
        assert summarization.score(example.check, example.answer) == 1.0, example.answer
        assert summarization.score(example.check, example.answer.upper()) == 1.0
        for fact in example.check["facts"]:
            assert re.search(rf"(?<!\w){re.escape(fact.lower())}s?(?!\w)", example.messages[-1][1].lower()), fact


def test_facts_are_four_to_eight(many: list[Example]) -> None:
    counts = Counter(len(example.check["facts"]) for example in many)
    assert min(counts) >= 4
    assert max(counts) <= 8
    assert len(counts) >= 4


def test_a_changed_fact_costs_its_share(many: list[Example]) -> None:
    for example in many[:200]:
        for fact in example.check["facts"]:
            changed = re.sub(re.escape(fact), "7" if fact.isdigit() else "Nowhere", example.answer, flags=re.IGNORECASE)
            assert summarization.score(example.check, changed) < 1.0, (fact, example.answer)


@pytest.mark.parametrize(
    "garbage", ["", " ", "(((*+?[", "\\d{1,3}", "the the the " * 300, "\x00\ud800", "May 4 of 000"]
)
def test_garbage_scores_nothing(many: list[Example], garbage: str) -> None:
    assert all(summarization.score(example.check, garbage) == 0.0 for example in many[:50])


def test_other_wordings_of_facts_count() -> None:
    check = {"facts": ["4 May", "240", "kettle", "Ada Reed"], "report": "short"}
    assert summarization.score(check, "ada  reed gave 240,000 pounds for kettles on May 4th.") == 1.0
    assert summarization.score(check, "On the 4th of May 240 kettles came from Ada\nReed") == 1.0
    assert summarization.score(check, "on 14 May, 1,240 kettle-drums; Ada Reeds, 2.240, 2405") == 0.5


def test_copying_the_report_is_halved(many: list[Example]) -> None:
    for example in many[:50]:
        report = example.messages[-1][1]
        assert summarization.score({**example.check, "report": report}, report) <= 0.5


def test_same_seed_same_examples() -> None:
    assert _drawn(50, 7) == _drawn(50, 7)
    assert _drawn(50, 7) != _drawn(50, 8)


def test_templates_are_many_in_every_split(many: list[Example]) -> None:
    assert len({example.template for example in many}) >= 600
    templates = {example.template for example in many}
    assert all(sum(split_of(template) == split for template in templates) >= 24 for split in RESERVED)
    for split in (*RESERVED, TRAINING):
        found = examples(summarization.draw, Random(1), WORDS, split)
        assert split_of(next(found).template) == split


def test_every_part_of_a_held_out_template_is_common_in_training(many: list[Example]) -> None:
    parts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for example in many:
        parts[split_of(example.template) == TRAINING].update(set(example.template.split("/")[:3]))
    assert all(parts[True][part] >= 30 for part in parts[False])


def test_templates_hold_no_names_or_drawn_numbers(many: list[Example]) -> None:
    drawn = {*names.TOWNS, *names.FIRST_NAMES, *names.SURNAMES, *names.PRODUCTS, *NOUNS.split(), *names.WEEKDAYS}
    for example in many:
        assert not drawn.intersection(re.findall(r"\w+", example.template))
        assert not re.search(r"\d{3}", example.template)


def test_template_stays_when_all_words_change() -> None:
    """Consonants are exchanged for others: no length changes, and no article."""
    changed = str.maketrans("bdgkp", "dgkpb")
    renamed = Words(*(tuple(word.translate(changed) for word in kind) for kind in vars(WORDS).values()))
    rng = Random(3)
    for example in _drawn(40, 3):
        other = summarization.draw(rng, renamed)
        assert other.template == example.template
        assert other.messages != example.messages


def _tokens(text: str) -> float:
    digits = sum(character.isdigit() for character in text)
    return (len(text) - digits) / 4.3 + digits


def test_lengths_and_sentences(many: list[Example]) -> None:
    reports = sorted(_tokens(example.messages[-1][1]) for example in many)
    answers = sorted(_tokens(example.answer) for example in many)
    assert reports[0] > 280
    assert reports[-1] < 1320
    assert 0.3 < mean(length < 450 for length in reports) < 0.4
    assert 0.25 < mean(length > 750 for length in reports) < 0.36
    assert answers[len(answers) // 100] > 34
    assert answers[-1] < 180


def _distinct(text: str) -> float:
    pieces = re.findall(r"[^\W\d]+|\d|[^\w\s]", text)
    grams = [tuple(pieces[i : i + 4]) for i in range(len(pieces) - 3)]
    return len(set(grams)) / len(grams)


def test_summaries_do_not_repeat_themselves_and_differ(many: list[Example]) -> None:
    shares = sorted(_distinct(example.answer) for example in many)
    assert mean(shares) > 0.95
    assert shares[len(shares) // 100] > 0.85
    assert len({example.answer for example in many}) == len(many)


def test_no_slot_is_left_and_articles_fit(many: list[Example]) -> None:
    for example in many[:1000]:
        text = example.messages[0][1] + example.answer
        assert not re.search(r"[{}]", text)
        assert not re.search(r"\b[Aa] (early|object|island|honest|empty)|\b[Aa]n (quiet|useful|kettle)", text)


@pytest.mark.parametrize("domain", summarization.DOMAINS, ids=lambda domain: domain.name)
def test_wordings_of_one_thing_name_the_same_slots(domain: summarization.Domain) -> None:
    for wordings in domain.events + domain.figures:
        assert len(wordings) >= 3
        assert len({frozenset(re.findall(r"{(\w+)}", wording)) for wording in wordings}) == 1, wordings


def test_main_facts_stand_early_and_late(many: list[Example]) -> None:
    """The last main fact of a report is near its end in some reports and far from it in others."""
    behind = []
    for example in many[:1000]:
        report, fact = example.messages[-1][1], example.check["facts"][-1]
        behind.append(_tokens(report[report.find(fact) :]))
    assert mean(distance > 400 for distance in behind) > 0.1
    assert mean(distance < 150 for distance in behind) > 0.2
