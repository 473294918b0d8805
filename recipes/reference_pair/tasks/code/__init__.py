"""Code with known answers: a signature with a docstring and examples, answered by a function that is run."""

from __future__ import annotations

from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Example, Words, split_of
from recipes.reference_pair.tasks.code import simple
from recipes.reference_pair.tasks.code.body import INDENT, Writer
from recipes.reference_pair.tasks.code.cases import draw_cases
from recipes.reference_pair.tasks.code.check import score, score_many
from recipes.reference_pair.tasks.code.explain import comment, explain
from recipes.reference_pair.tasks.code.spec import Spec, draw_spec
from recipes.reference_pair.tasks.code.text import FORM_WEIGHTS, FORMS, Wordings, prompt, signature, stub

SIMPLE_SHARE = 0.08
MOST_SHOWN = 3
HIDDEN_CASES = 5

Cases = list[tuple[tuple[Any, ...], Any]]

__all__ = ["draw", "score", "score_many"]


def draw(rng: Random, words: Words) -> Example:
    """One example; a spec's wording is drawn again until its template falls into the split of its operations.

    So no operations of a reserved prompt, put together in this way, are in any training text, however worded.
    """
    if rng.random() < SIMPLE_SHARE:
        return simple.draw(rng, words)
    spec = draw_spec(rng, words)
    home = split_of(spec.composition)
    cases = draw_cases(rng, words, spec, MOST_SHOWN, HIDDEN_CASES)
    while True:
        example = _worded(rng, spec, cases)
        if split_of(example.template) == home:
            return example


def _worded(rng: Random, spec: Spec, cases: Cases) -> Example:
    wordings = Wordings(rng, spec)
    doc = wordings.docstring()
    form = rng.choices(FORMS, FORM_WEIGHTS)[0]
    hints, shown = rng.random() < 0.85, rng.randint(2, MOST_SHOWN)
    head = signature(spec, hints)
    message, request, fenced = prompt(rng, form, stub(spec, head, doc, cases[:shown]))
    wording = ".".join(map(str, wordings.choices))
    template = f"{spec.composition}/{wording}/{request}/{int(hints)}{shown}"
    check: dict[str, Any] = {"name": spec.name, "cases": [[repr(args), repr(result)] for args, result in cases]}
    return Example("code", template, (("user", message),), _answer(rng, wordings, head, form, fenced), check)


def _answer(rng: Random, wordings: Wordings, head: str, form: str, fenced: bool) -> str:
    lines = Writer(rng, wordings.spec).write()
    if form == "comments":
        lines = comment(rng, wordings, lines)
    code = "\n".join([head, *(INDENT + line for line in lines)])
    if form in ("code", "comments"):
        return f"```python\n{code}\n```" if fenced else code
    code = f"```python\n{code}\n```"
    sentence = explain(rng, wordings, lines)
    return f"{code}\n\n{sentence}" if form == "after" else f"{sentence}\n\n{code}"
