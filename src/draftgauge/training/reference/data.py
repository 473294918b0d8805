"""From modules to windows and prompts: the data set of the bundled pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from draftgauge.training.reference import corpus, library, packing
from draftgauge.training.reference.tokenizer import END, dialogue

SHARES = {packing.PLAIN: 0.45, "code": 0.24, "math": 0.13, "summarization": 0.11, "chat": 0.07}
TASK_CYCLE = list(library.TASKS)
MATH_PROBLEMS = 60_000
TOPIC_COPIES = 3
PROMPTS_PER_SPLIT = {"train": 24, "validation": 12, "test": 24}


@dataclass(frozen=True)
class Texts:
    """Training texts by kind, and the reserved examples by (task, split)."""

    training: dict[str, list[str]]
    reserved: dict[tuple[str, str], list[library.Example]]


def collect(seed: int = 0) -> Texts:
    """Read the standard library and sort it into training text and reserved examples."""
    rng = Random(seed)
    training: dict[str, list[str]] = {kind: [] for kind in SHARES}
    reserved: dict[tuple[str, str], list[library.Example]] = {(t, s): [] for t in library.TASKS for s in corpus.SPLITS}
    for module in corpus.standard_library():
        found = library.examples(module, rng)
        if corpus.is_reserved(module.name):
            for task, examples in found.items():
                reserved[task, corpus.prompt_split(module.name)] += examples
            continue
        training[packing.PLAIN].append(module.source + END)
        for task, examples in found.items():
            training[task] += [dialogue(e.question, e.answer) for e in examples]
    training[packing.PLAIN] += [topic + END for topic in corpus.language_topics()] * TOPIC_COPIES
    training["math"] = [
        dialogue(e.question, e.answer) for e in library.math_examples(MATH_PROBLEMS, rng, reserved=False)
    ]
    for split, example in zip(
        (s for s in corpus.SPLITS for _ in range(200)),
        library.math_examples(200 * len(corpus.SPLITS), rng, reserved=True),
        strict=True,
    ):
        reserved["math", split].append(example)
    return Texts(training, reserved)


def windows(
    texts: Texts,
    tokenizer: PreTrainedTokenizerFast,
    count: int,
    length: int,
    seed: int,
    shares: Mapping[str, float] = SHARES,
) -> NDArray[np.uint16]:
    """Tokenise and pack the training texts into ``[count, length]``."""
    documents = {}
    for kind, entries in texts.training.items():
        encoded = tokenizer._tokenizer.encode_batch_fast(entries, add_special_tokens=False)
        documents[kind] = [np.array(e.ids, np.uint16) for e in encoded]
    return packing.pack(documents, shares, count, length, seed)


def choose_prompts(
    texts: Texts, tokenizer: PreTrainedTokenizerFast, seed: int = 0, longest: int = 900
) -> dict[str, list[library.Example]]:
    """Reserved examples for every task and split, spread over as many modules as there are."""
    chosen: dict[str, list[library.Example]] = {}
    for split, wanted in PROMPTS_PER_SPLIT.items():
        chosen[split] = []
        for task in library.TASKS:
            pool = list(texts.reserved[task, split])
            Random(f"{seed}{task}{split}").shuffle(pool)
            rank: dict[str, int] = {}
            order: list[tuple[int, int, library.Example]] = []
            for example in pool:
                module = example.source.rsplit(".", 1)[0]
                rank[module] = rank.get(module, 0) + 1
                order.append((rank[module], len(order), example))
            fitting = (
                e
                for _, _, e in sorted(order)
                if len(e.answer) >= 60 and len(tokenizer(e.question).input_ids) <= longest
            )
            chosen[split] += [e for e, _ in zip(fitting, range(wanted), strict=False)]
    return chosen
