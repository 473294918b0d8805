"""Code with known answers: references are right however written, wrong code is not, and what is reserved is unseen."""

import re
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from recipes.reference_pair.tasks import code
from recipes.reference_pair.tasks.base import RESERVED, TRAINING, Words, split_of
from recipes.reference_pair.tasks.code import simple
from recipes.reference_pair.tasks.code.body import INDENT, Writer
from recipes.reference_pair.tasks.code.cases import draw_cases
from recipes.reference_pair.tasks.code.check import extract
from recipes.reference_pair.tasks.code.spec import draw_spec
from recipes.reference_pair.tasks.code.text import signature

WORDS = Words(
    nouns=(
        "ladder",
        "engine",
        "basket",
        "window",
        "garden",
        "market",
        "river",
        "button",
        "pencil",
        "ticket",
        "lamp",
        "bridge",
        "camera",
        "carpet",
    ),
    adjectives=(
        "quiet",
        "empty",
        "bright",
        "simple",
        "rapid",
        "narrow",
        "stable",
        "local",
        "remote",
        "hidden",
        "broken",
        "clean",
        "iron",
        "open",
    ),
    verbs=(
        "collect",
        "gather",
        "check",
        "filter",
        "pick",
        "scan",
        "merge",
        "load",
        "pack",
        "print",
        "trim",
        "weigh",
        "wrap",
        "clean",
        "join",
        "mark",
    ),
    identifiers=(
        "read_lines",
        "find_all",
        "get_items",
        "make_table",
        "scan_tokens",
        "from_parts",
        "total_cost",
        "node_values",
    ),
)
OTHER = Words(
    nouns=(
        "donkey",
        "forest",
        "guitar",
        "hammer",
        "island",
        "jacket",
        "kettle",
        "lemon",
        "mirror",
        "needle",
        "orange",
        "packet",
        "rocket",
    ),
    adjectives=(
        "final",
        "gentle",
        "hollow",
        "junior",
        "keen",
        "large",
        "minor",
        "noble",
        "plain",
        "rough",
        "sharp",
        "tiny",
        "upper",
        "vivid",
    ),
    verbs=(
        "match",
        "order",
        "parse",
        "plan",
        "rank",
        "shift",
        "split",
        "start",
        "test",
        "track",
        "visit",
        "count",
        "sort",
        "reset",
    ),
    identifiers=(
        "line_ends",
        "pick_best",
        "iter_parts",
        "load_keys",
        "map_names",
        "sum_parts",
        "token_list",
        "head_words",
    ),
)
ADD = {"name": "add", "cases": [["(1, 2)", "3"], ["(0, 0)", "0"]]}


@pytest.fixture(scope="module")
def drawn():
    rng = Random(7)
    return [code.draw(rng, WORDS) for _ in range(2500)]


def test_reference_answers_are_right(drawn):
    assert code.score_many([(e.check, e.answer) for e in drawn[:250]]) == [1.0] * 250


def test_all_bodies_of_a_spec_agree_with_its_meaning():
    rng, pairs = Random(3), []
    for _ in range(25):
        spec = draw_spec(rng, WORDS)
        cases = [[repr(args), repr(result)] for args, result in draw_cases(rng, WORDS, spec, 3, 5)]
        for _ in range(8):
            body = "\n".join(INDENT + line for line in Writer(rng, spec).write())
            pairs.append(({"name": spec.name, "cases": cases}, f"{signature(spec, True)}\n{body}"))
    assert code.score_many(pairs) == [1.0] * len(pairs)


def test_answers_to_other_questions_are_wrong(drawn):
    some = drawn[:200]
    swapped = []
    for one, other in pairwise(some):
        theirs = re.sub(rf"\b{other.check['name']}\b", one.check["name"], other.answer)
        swapped.append((one.check, theirs))
    assert sum(code.score_many(swapped)) <= 4


def test_a_changed_condition_or_number_is_wrong(drawn):
    swaps = (
        (" > ", " < "),
        (" == ", " != "),
        (".upper()", ".lower()"),
        (" += ", " -= "),
        ("append(", "append(None and "),
    )
    changed = []
    for example in drawn[:300]:
        at = example.answer.rfind("def ")
        body = example.answer[at:]
        for old, new in swaps:
            if old in body:
                changed.append((example.check, example.answer[:at] + body.replace(old, new)))
                break
    assert len(changed) > 100
    assert sum(code.score_many(changed)) < 0.08 * len(changed)


@pytest.mark.parametrize(
    "answer",
    [
        "def add(a, b):\n    return a + b",
        "def add(a, b):\n    return a + b\n\nIt returns the sum.",
        "Sure:\n\n```python\ndef add(x, y):\n    return x + y\n```\n\nDone.",
        "```python\ndef add(a, b):\n    return sum([a, b])",
        "import math\n\ndef add(a, b):\n    return int(math.fsum([a, b]))",
        "def plus(a, b):\n    return a + b\n\ndef add(a, b):\n    return plus(a, b)",
    ],
)
def test_any_right_answer_counts(answer):
    assert code.score(ADD, answer) == 1.0


BAD = (
    "",
    "Add a b",
    "def",
    "def add(a, b):",
    "def add(a, b):\n    return a - b",
    "def add(a, b):\n    return a",
    "def other(a, b):\n    return a + b",
    "def add(a, b):\n    return add(a, b)",
    "def add(a, b):\n    while True:\n        pass",
    "def add(a, b):\n    return [0] * 10**10",
    "def add(a, b):\n    raise SystemExit(0)",
    "def add(a, b):\n    import os\n    os._exit(0)",
    "def add(a, b):\n    open('x', 'w')\n    return a + b",
    "def add(a, b):\n    print(a + b)",
    "```python\ndef add(a, b)\n    return a + b\n```",
    "def add(a, b):\n    return '\udc80\x00'",
)


def test_wrong_and_harmful_answers_score_nothing_and_spoil_no_others():
    good = (ADD, "def add(a, b):\n    return a + b")
    scores = code.score_many([pair for answer in BAD for pair in ((ADD, answer), good)])
    assert scores == [0.0, 1.0] * len(BAD)


def test_bool_is_not_a_number():
    check = {"name": "f", "cases": [["(1,)", "True"]]}
    assert code.score(check, "def f(x):\n    return 1") == 0.0


def test_text_around_code_is_left_out():
    assert extract("It is so.\n\ndef f(x):\n\n    return x\n\nThat is all.").split() == ["def", "f(x):", "return", "x"]
    assert extract("no code") == ""


def test_same_seed_same_text():
    first, second = ([code.draw(rng, WORDS) for _ in range(50)] for rng in (Random(1), Random(1)))
    assert first == second


def test_templates_are_many_and_do_not_depend_on_names(drawn):
    assert len({e.template for e in drawn}) > 2000
    text = " ".join(e.template for e in drawn)
    assert not any(name in text for name in (*WORDS.identifiers, "ladder", "donkey"))
    rng = Random(7)
    others = {operations(code.draw(rng, OTHER)) for _ in range(800)}
    assert len(others & {operations(e) for e in drawn}) > 20


def operations(example):
    """The part of a template that names operations."""
    return "/".join(example.template.split("/")[:7])


def test_reserved_operations_are_in_no_training_text(drawn):
    specs = [e for e in drawn if not e.template.startswith("known/")]
    homes = Counter(split_of(e.template) for e in drawn)
    assert all(homes[split] >= 24 for split in RESERVED)
    seen = {operations(e) for e in specs if split_of(e.template) == TRAINING}
    assert not seen & {operations(e) for e in specs if split_of(e.template) != TRAINING}


def test_parts_of_reserved_prompts_are_in_training_text(drawn):
    def parts(examples):
        return Counter(part for e in examples for part in enumerate(e.template.split("/")[:5]))

    specs = [e for e in drawn if not e.template.startswith("known/")]

    training = parts(e for e in specs if split_of(e.template) == TRAINING)
    assert not set(parts(e for e in specs if split_of(e.template) == "test")) - set(training)


def test_answers_are_of_the_wanted_length_and_do_not_repeat(drawn):
    lengths, shares = [], []
    for example in drawn[:1000]:
        tokens = re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]|\n *", example.answer)
        grams = list(zip(*(tokens[i:] for i in range(4)), strict=False))
        lengths.append(len(tokens))
        shares.append(len(set(grams)) / len(grams))
    assert max(lengths) < 260
    assert sum(shares) / len(shares) > 0.9
    assert sum(share < 0.75 for share in shares) < 0.02 * len(shares)


def test_functions_asked_for_by_a_bare_signature_are_a_regular_part(drawn):
    bare = [e for e in drawn if e.template.startswith("known/")]
    assert 0.06 < len(bare) / len(drawn) < 0.10
    rng = Random(2)
    many = [simple.draw(rng, WORDS) for _ in range(8000)]
    assert any(e.messages[-1][1] == "Complete the code: def add(a, b):" for e in many)
    assert code.score_many([(e.check, e.answer) for e in many[:150]]) == [1.0] * 150
