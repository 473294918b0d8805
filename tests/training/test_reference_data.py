"""The text of the bundled pair: answers that are right, prompts kept apart from training."""

from __future__ import annotations

import ast
import re
from random import Random

import pytest

from draftgauge.training.reference import arithmetic, corpus, library
from draftgauge.training.reference.corpus import Module
from draftgauge.training.reference.tokenizer import END, dialogue, train_tokenizer

SOURCE = '''"""Tools for boxes. They do little."""

import os
from math import pi

class Box(dict):
    """A box of things."""

    def open(self, hard=False):
        """Open the box, and say whether it was shut. Hard opening breaks the lid of it."""
        was_shut = self.shut
        self.shut = False
        return was_shut

def area(width, height=1, *, scale=pi):
    """Return the area of a rectangle, scaled by some factor that the caller may choose."""
    product = width * height
    return product * scale
''' + "".join(
    f"\ndef helper_{n}(value):\n    # {'padding ' * 8}\n    value += {n}\n    return value\n" for n in range(8)
)


@pytest.fixture
def module() -> Module:
    return Module("toolbox.boxes", SOURCE, ast.parse(SOURCE))


@pytest.mark.parametrize("kind", arithmetic.KINDS, ids=lambda kind: kind.__name__)
def test_every_step_of_worked_arithmetic_is_true(kind: object) -> None:
    rng = Random(3)
    checked = 0
    for _ in range(200):
        question, answer = kind(rng)
        assert answer.splitlines()[-1].startswith("Answer: ")
        for left, right in re.findall(
            r"((?:\d[\d. ]*[-+*/] )+\d[\d.]*) = (-?\d+(?:\.\d+)?)(?![\d.]*\s*[-+*/])", answer
        ):
            assert eval(left) == pytest.approx(float(right)), (question, answer)
            checked += 1
    assert checked > 100


def test_reserved_problems_are_disjoint() -> None:
    free = {e.question for e in library.math_examples(500, Random(0), reserved=False)}
    kept = {e.question for e in library.math_examples(100, Random(0), reserved=True)}
    assert len(free) == 500
    assert not free & kept


def test_code_answers_are_the_functions_bodies(module: Module) -> None:
    found = {e.source: e for e in library.code_examples(module, Random(0))}
    area = found["toolbox.boxes.area"]
    assert area.answer == "    product = width * height\n    return product * scale"
    assert area.question.endswith(
        '"""Return the area of a rectangle, scaled by some factor that the caller may choose."""'
    )
    assert found["toolbox.boxes.Box.open"].answer.startswith("        was_shut")


def test_chat_answers_give_signature_and_documentation(module: Module) -> None:
    found = {e.source: e for e in library.chat_examples(module, Random(0))}
    assert found["toolbox.boxes.Box.open"].answer.startswith("`toolbox.boxes.Box.open(hard=False)`\n\nOpen the box")
    assert "`toolbox.boxes.area(width, height=1, *, scale=pi)`" in found["toolbox.boxes.area"].question


def test_summaries_name_only_what_is_shown(module: Module) -> None:
    examples = list(library.summarization_examples(module, Random(0)))
    assert examples
    for example in examples:
        assert "Tools for boxes." in example.answer
        assert "It imports `os`, `math`." in example.answer
        for name in re.findall(r"- `(\w+)", example.answer):
            assert re.search(rf"(def|class) {name}\b", example.question), name


def test_a_module_is_reserved_as_a_whole_and_for_one_split() -> None:
    names = [f"package.module_{n}" for n in range(2000)]
    share = sum(map(corpus.is_reserved, names)) / len(names)
    assert share == pytest.approx(corpus.RESERVED_PERCENT / 100, abs=0.03)
    assert {corpus.prompt_split(name) for name in names} == set(corpus.SPLITS)


def test_tokenizer_keeps_digits_and_specials_apart() -> None:
    tokenizer = train_tokenizer([SOURCE, "12345 67890"] * 20, vocabulary=400)
    assert tokenizer.convert_ids_to_tokens(tokenizer("12345").input_ids) == list("12345")
    text = dialogue("What is 1 + 1?", "    indented = 2")
    ids = tokenizer(text).input_ids
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids) == text
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 1 + 1?"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith(rendered)
    assert ids[: len(tokenizer(rendered).input_ids)] == tokenizer(rendered).input_ids
    assert END in tokenizer.get_vocab()
