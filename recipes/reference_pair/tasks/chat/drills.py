"""Training text that teaches to find facts: conversations in which many questions on the same notes are answered.

None of it is asked in a prompt, and no question of it is of a template that is kept for prompts; nothing is checked.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from recipes.reference_pair.tasks.base import TRAINING, Example, Words, split_of
from recipes.reference_pair.tasks.chat import (
    ENTRIES,
    Shape,
    Turn,
    conversation,
    draw_shape,
    phrases,
    template_of,
)
from recipes.reference_pair.tasks.chat.answers import TELLING, Teller, answer_to
from recipes.reference_pair.tasks.chat.notes import SCENES, Entry, Notes, capitalized, draw_notes, says, subject
from recipes.reference_pair.tasks.chat.questions import ASKING, WEIGHTS
from recipes.reference_pair.tasks.chat.scenes import Attribute

ROUNDS = 3, 5  # questions of a conversation of practice
# The shortest notes: how many entries, how often they are asked for, and the kinds of single questions.
RECALLED, RECALL_ROUNDS = (2, 6), (3, 5)
LIST_STYLES = ("{g}: {w}.", "{g}: {w}.", "{g} - {w};", "{s}.", "{s}.", "{s};")
RECALLING = ("direct", "reverse", "reverse", "pair", "chain", "chain")


def practice(rng: Random, words: Words) -> Example:
    """Training text in which several questions on the same notes are asked and answered in turn.

    A token of it teaches more of finding facts than one of :func:`draw` does, where notes and filler are most of the
    text. No question is of a template that is kept for prompts; nothing is checked.
    """
    size = rng.choices((0, 1), (3, 1))[0]
    notes = draw_notes(rng, words, rng.choice(SCENES), rng.randint(*ENTRIES[size]), rng.random() < 0.3)
    shape = replace(draw_shape(rng, size), filler="none")
    rounds: list[Turn] = []  # of a question and its answer
    forms: set[str] = set()
    wanted = rng.randint(*ROUNDS)
    while len(rounds) < wanted:
        kind = rng.choices(tuple(ASKING), WEIGHTS)[0]
        question = ASKING[kind](rng, notes)
        each = replace(shape, preface=rng.choice(phrases.PREFACES) if not rounds or rng.random() < 0.4 else "")
        if question.text in forms or split_of(template_of(notes, each, question)) != TRAINING:
            shape = replace(shape, intro=rng.randrange(3)) if not rounds else shape
            continue
        forms.add(question.text)
        asked = f"{each.preface.format(title=notes.scene.title)} {question.text}".strip()
        rounds.append((asked, answer_to(rng, notes, question)))
    messages = list(conversation(rng, words, notes, shape, rounds[0][0], 0))
    for (_, answer), (asked, _) in pairwise(rounds):
        messages += [("assistant", answer), ("user", asked)]
    return Example("chat", f"practice/{notes.scene.name}", tuple(messages), rounds[-1][1], {})


def recall(rng: Random, words: Words) -> Example:
    """Training text on short notes: nearly every fact of them is asked for, in lists and in single questions.

    Before a model answers well from long conversations, it must learn to bind a value to the entry that it stands
    with; here every few tokens need that. In lists the value follows its key at once, or after some words.
    """
    drawn = draw_notes(rng, words, rng.choice(SCENES), rng.randint(*RECALLED), False)
    notes = replace(drawn, attributes=drawn.attributes[: rng.choice((1, 1, 2, 2, 4))])
    shape = replace(draw_shape(rng, 0), filler="none")
    messages: list[Turn] = []
    for _ in range(rng.randint(*RECALL_ROUNDS)):
        asked, answer = list_round(rng, notes) if rng.random() < 0.6 else question_round(rng, notes, shape)
        opening = () if messages else conversation(rng, words, notes, shape, asked, 0)
        messages += [*(opening or (("user", asked),)), ("assistant", answer)]
    return Example("chat", f"recall/{notes.scene.name}", tuple(messages[:-1]), messages[-1][1], {})


def list_round(rng: Random, notes: Notes) -> Turn:
    """Several entries, each told by its name or by a value, and what the notes say of another property of each."""
    given, wanted = rng.sample((None, *notes.attributes), 2)  # None is the name
    if rng.random() < 0.4 and given is not None:
        given, wanted = None, given
    entries = rng.sample(notes.entries, rng.randint(2, len(notes.entries)))
    label = f"the {notes.scene.item}" if wanted is None else wanted.label
    form = rng.choice(phrases.LISTED)
    asked = form.format(given=", ".join(property_of(entry, given) for entry in entries), label=label)
    style, said = rng.choice(LIST_STYLES), rng.randrange(3)
    parts = [style.format(**parts_of(notes, entry, given, wanted, said)) for entry in entries]
    return asked, capitalized(" ".join(parts))


def property_of(entry: Entry, attribute: Attribute | None) -> str:
    """The name of an entry, or its value of an attribute as it stands in a list."""
    return entry.key if attribute is None else attribute.cell.format(v=entry.values[attribute.name])


def parts_of(
    notes: Notes, entry: Entry, given: Attribute | None, wanted: Attribute | None, said: int
) -> dict[str, str]:
    """What stands for the letters in a style of lists: given, wanted, and a sentence that holds both."""
    told = [says(each, said, entry.values[each.name]) for each in (given, wanted) if each is not None]
    sentence = f"{subject(notes.scene, entry)} {' and '.join(told)}"
    return {"g": property_of(entry, given), "w": property_of(entry, wanted), "s": sentence}


def question_round(rng: Random, notes: Notes, shape: Shape) -> Turn:
    """A question, and one sentence on what was asked."""
    kinds = RECALLING if len(notes.attributes) > 1 else tuple(kind for kind in RECALLING if kind != "chain")
    while True:
        question = ASKING[rng.choice(kinds)](rng, notes)
        if split_of(template_of(notes, shape, question)) == TRAINING:
            return question.text, capitalized(TELLING[question.kind](Teller(rng, notes), question)[0])
