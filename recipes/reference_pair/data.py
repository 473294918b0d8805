"""From modules and generated tasks to windows and prompts: the data set of the bundled pair."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from recipes.reference_pair import corpus, library, packing
from recipes.reference_pair.tasks import chat, code, math, summarization
from recipes.reference_pair.tasks.base import SPLITS, Draw, Example, Words, examples
from recipes.reference_pair.tasks.chat import drills
from recipes.reference_pair.tokenizer import END, dialogue
from recipes.reference_pair.words import collect_words, documentation, function_names, snake_case

Messages = tuple[tuple[str, str], ...]

DRAWS: dict[str, Draw] = {"code": code.draw, "math": math.draw, "chat": chat.draw, "summarization": summarization.draw}
TASKS = tuple(DRAWS)
PROSE, EXPLANATIONS = "prose", "explanations"
PRACTICE, RECALL = "practice", "recall"
# Of the training tokens in windows of a length; plain source text fills what other documents leave of a window.
SHORT_SHARES = {packing.PLAIN: 0.03, PROSE: 0.05, EXPLANATIONS: 0.12, "code": 0.23, "math": 0.23} | {
    "chat": 0.06,
    PRACTICE: 0.10,
    RECALL: 0.18,
}
LONG_SHARES = {packing.PLAIN: 0.08, PROSE: 0.08, "chat": 0.52, "summarization": 0.32}
DRAWN: dict[str, Draw] = DRAWS | {PRACTICE: drills.practice, RECALL: drills.recall}
TOKENS_AN_EXAMPLE = {"code": 230, "math": 170, "chat": 450, "summarization": 700, PRACTICE: 400, RECALL: 250}
PROMPTS_PER_SPLIT = {"train": 32, "validation": 24, "test": 24, "sealed": 24}
PROSE_CHARACTERS = (150, 1200)
CHARACTERS_A_TOKEN = 4
SPARE, LEAST_CHARACTERS = 2, 500_000  # times what windows will hold, as not every text fits


def shares(long_share: float) -> dict[str, float]:
    """Each kind's share of the training tokens, where ``long_share`` of all are in long windows."""
    kinds = dict.fromkeys([*SHORT_SHARES, *LONG_SHARES])
    return {
        kind: (1 - long_share) * SHORT_SHARES.get(kind, 0.0) + long_share * LONG_SHARES.get(kind, 0.0) for kind in kinds
    }


def training_texts(tokens: int, mixture: Mapping[str, float], seed: int = 0) -> dict[str, list[str]]:
    """Training texts by kind: what the Python installation carries, and examples of every task.

    Args:
        tokens: that will be trained on; enough examples are drawn to see none twice.
        mixture: share of every kind, see :func:`shares`.
        seed: of the examples.
    """
    rng = Random(seed)
    modules = _training_modules()
    documented = list(documentation(modules))
    enough = _enough(tokens * mixture[PROSE])
    prose = [*documented, *corpus.package_documentation(enough=enough), *corpus.language_topics()]
    texts = {
        packing.PLAIN: [module.source + END for module in modules],
        PROSE: [text + END for text in _passages(prose)],
        EXPLANATIONS: [
            dialogue([("user", question)], answer)
            for module in modules
            for question, answer in library.explanations(module, rng)
        ],
    }
    words = _words(modules, documented)
    for kind, draw in DRAWN.items():
        count = int(tokens * mixture[kind] / TOKENS_AN_EXAMPLE[kind] * 1.1) + 100
        drawn = islice(examples(draw, Random(f"{seed} {kind}"), words), count)
        texts[kind] = [dialogue(example.messages, example.answer) for example in drawn]
    return texts


def training_questions(count: int, seed: int = 0) -> list[Messages]:
    """Conversations that wait for an answer, worded as training texts are but not among them; tasks in turn."""
    modules = _training_modules()
    words = _words(modules, list(documentation(modules)))
    drawn = [examples(draw, Random(f"{seed} {task} questions"), words) for task, draw in DRAWS.items()]
    return [next(drawn[n % len(drawn)]).messages for n in range(count)]


def save_questions(path: Path, count: int, seed: int = 0) -> None:
    """Write different questions as JSON Lines, compressed; a longer file begins with what a shorter one holds."""
    lines = [
        json.dumps({"messages": [{"role": role, "content": text} for role, text in messages]}, ensure_ascii=False)
        for messages in dict.fromkeys(training_questions(count, seed))
    ]
    path.write_bytes(lzma.compress("".join(line + "\n" for line in lines).encode(), preset=9))


def _training_modules() -> list[corpus.Module]:
    return [module for module in corpus.standard_library() if not corpus.is_reserved(module.name)]


def _words(modules: Sequence[corpus.Module], documented: Sequence[str]) -> Words:
    return collect_words([*documented, *corpus.language_topics()], function_names(modules))


def _passages(texts: Sequence[str]) -> list[str]:
    """Different passages of whole paragraphs, neither very short nor longer than a window holds."""
    least, most = PROSE_CHARACTERS
    passages: dict[str, None] = {}
    for text in texts:
        passage = ""
        for paragraph in text.strip().split("\n\n"):
            if passage and len(passage) + len(paragraph) > most:
                passages[passage] = None
                passage = ""
            passage = f"{passage}\n\n{paragraph}" if passage else paragraph
        passages[passage] = None
    return [passage for passage in passages if least <= len(passage) <= most]


def sample(texts: Sequence[str], characters: float, rng: np.random.Generator) -> list[str]:
    """Texts of a kind in random order, ``characters`` or more in all."""
    chosen: list[str] = []
    for index in rng.permutation(len(texts)).tolist():
        if characters <= 0:
            break
        chosen.append(texts[index])
        characters -= len(texts[index])
    return chosen


def _enough(tokens: float) -> float:
    """Characters to prepare of a kind for training on ``tokens`` tokens of it."""
    return LEAST_CHARACTERS + SPARE * tokens * CHARACTERS_A_TOKEN


def windows(
    texts: Mapping[str, Sequence[str]],
    tokenizer: PreTrainedTokenizerFast,
    count: int,
    length: int,
    seed: int,
    shares: Mapping[str, float],
) -> NDArray[np.uint16]:
    """Tokenise and pack training texts by kind into ``[count, length]``; only as many texts as may be needed."""
    documents, rng = {}, np.random.default_rng(seed)
    for kind, share in shares.items():
        enough = sample(texts[kind], _enough(share * count * length), rng)
        encoded = tokenizer._tokenizer.encode_batch_fast(enough, add_special_tokens=False)
        documents[kind] = [np.array(e.ids, np.uint16) for e in encoded]
    return packing.pack(documents, shares, count, length, seed)


def prompt_words() -> dict[str, Words]:
    """Vocabulary of the prompts by split: the names are of modules that no training text and no other split has."""
    modules = list(corpus.standard_library())
    texts = [*documentation(modules), *corpus.language_topics()]
    reserved = [module for module in modules if corpus.is_reserved(module.name)]
    words = collect_words(texts, ())
    return {
        split: replace(
            words, identifiers=snake_case(function_names(m for m in reserved if corpus.prompt_split(m.name) == split))
        )
        for split in SPLITS
    }


def choose_prompts(
    tokenizer: PreTrainedTokenizerFast,
    seed: int = 0,
    longest: int = 1400,
    answer: tuple[int, int] = (40, 200),
    counts: Mapping[str, int] = PROMPTS_PER_SPLIT,
) -> dict[str, list[Example]]:
    """Examples for the prompts of some splits: each of a template of its own, of no more tokens than ``longest``.

    Args:
        tokenizer: of the pair.
        seed: of the examples.
        longest: tokens of prompt and answer together.
        answer: least and most tokens of the answer.
        counts: prompts of each task, by split. A larger count goes on where a smaller one ends.
    """
    chosen: dict[str, list[Example]] = {}
    words_of = prompt_words()
    for split, count in counts.items():
        words = words_of[split]
        chosen[split] = []
        for task, draw in DRAWS.items():
            fitting: dict[str, Example] = {}
            for example in examples(draw, Random(f"{seed} {task} {split}"), words, split):
                tokens = len(tokenizer(example.answer).input_ids)
                whole = len(tokenizer(dialogue(example.messages, example.answer)).input_ids)
                if answer[0] <= tokens <= answer[1] and whole <= longest:
                    fitting.setdefault(example.template, example)
                if len(fitting) == count:
                    break
            chosen[split] += fitting.values()
    return chosen
