"""Vocabulary for the generated tasks, taken from the standard library's documentation by where words stand in it.

No word list is shipped: a noun is what follows an article and has a plural in the same texts, an adjective what stands
before such a noun and ends as adjectives do, a verb what follows "to" or an auxiliary and has a regular past form.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from recipes.reference_pair.modules import Module
from recipes.reference_pair.tasks.base import Words

ARTICLES = {"a", "an", "each", "every", "the"}
AFTER_NOUNS = {"as", "at", "by", "for", "from", "in", "of", "on", "to", "with", "and", "or", "that", "which", ".", ","}
AFTER_NOUNS |= {"can", "has", "is", "was", "will"}
BEFORE_VERBS = {"to", "will", "can", "must", "should", "not"}
AFTER_VERBS = {"the", "a", "an", "it", "this", "all"}
ADJECTIVE_ENDINGS = ("al", "ic", "ive", "able", "ible", "ous", "ful", "less", "ent", "ant", "ary", "ern", "der", "ect")
NOT_NOUNS = {"boolean", "case", "cause", "delta", "future", "global", "kind", "local", "need", "other", "return"}
NOT_NOUNS |= {"right", "second", "spec"}
NOT_VERBS = {"become", "cause", "confuse", "have", "just", "like", "only", "quite", "see", "which", "using", "mention"}
IDENTIFIER = re.compile(r"[a-z]{3,}(_[a-z]{3,}){1,2}")
LONGEST_IDENTIFIER = 24


def documentation(modules: Iterable[Module]) -> Iterator[str]:
    """Every documentation string of the modules, tests left out."""
    for module in modules:
        if not {"test", "tests", "idle_test"}.intersection(module.name.split(".")):
            yield from module.documentation


def collect_words(texts: Iterable[str], identifiers: Iterable[str]) -> Words:
    """Sort the words of English texts into kinds, in alphabetical order.

    Args:
        texts: documentation.
        identifiers: names to choose the snake_case ones from.
    """
    words = re.findall(r"[A-Za-z]+|[^\sA-Za-z]", " ".join(texts))
    counts, nouns, verbs, before_nouns = Counter(words), Counter[str](), Counter[str](), Counter[str]()
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        nouns[word] += before in ARTICLES and after in AFTER_NOUNS
        verbs[word] += before in BEFORE_VERBS and after in AFTER_VERBS
    chosen = {w for w, n in nouns.items() if n >= 2 and _is_noun(w, counts)}
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        before_nouns[word] += before in ARTICLES and after in chosen
    adjectives = {w for w, n in before_nouns.items() if n and w.islower() and w.endswith(ADJECTIVE_ENDINGS)} - chosen
    regular = {w for w, n in verbs.items() if n >= 2 and len(w) > 2 and w.islower() and _past(w) in counts} - NOT_VERBS
    return Words(tuple(sorted(chosen)), tuple(sorted(adjectives)), tuple(sorted(regular)), snake_case(identifiers))


def snake_case(names: Iterable[str]) -> tuple[str, ...]:
    """The names of two or three plain words, tests left out, in alphabetical order."""
    chosen = {name for name in names if IDENTIFIER.fullmatch(name) and len(name) <= LONGEST_IDENTIFIER}
    return tuple(sorted(name for name in chosen if not name.startswith("test_")))


def function_names(modules: Iterable[Module]) -> Iterator[str]:
    """The plain names of all functions and methods."""
    for module in modules:
        yield from module.functions


def _is_noun(word: str, counts: Counter[str]) -> bool:
    regular_plural = not word.endswith(("s", "y", "ch", "sh", "x", "z", "ing", "man", "io"))
    return word.islower() and len(word) > 3 and regular_plural and counts[word + "s"] > 0 and word not in NOT_NOUNS


def _past(verb: str) -> str:
    return verb + ("d" if verb.endswith("e") else "ed")
