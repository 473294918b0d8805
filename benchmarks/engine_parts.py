"""What the parts of ``engines.py`` share: prompts, files, and rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import console, show_progress
from transformers import PreTrainedTokenizerBase

from draftgauge.api.profile import profile
from draftgauge.benching.arms import Arm, BenchPrompt, bench_arms
from draftgauge.benching.bench_rows import Reference, bench_rows
from draftgauge.core.prompts import first_per_task, read_prompts
from draftgauge.models.folder import reference_path
from draftgauge.models.tokenizer import encode_with
from draftgauge.pair.prompts import prompt_file

LONGEST = 16
CONTEXT = 1024  # of the servers; a cache of one GiB takes it several times over
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Bench:
    """What is decoded, how often, and where files go.

    Attributes:
        place: a folder for files that are not kept.
        prompts: held out; arms are measured on them.
        training: what advice is from.
        tokenizer: of the pair.
        per_task, rounds, max_new_tokens: as asked for.
    """

    place: Path
    prompts: Sequence[BenchPrompt]
    training: Sequence[BenchPrompt]
    tokenizer: PreTrainedTokenizerBase
    per_task: int
    rounds: int
    max_new_tokens: int

    @classmethod
    def prepare(cls, place: Path, given: Any, tokenizer: PreTrainedTokenizerBase) -> Bench:
        """Read prompts, but for those that would not fit the servers' context."""
        longest = CONTEXT - given.max_new_tokens - LONGEST

        def chosen(split: str) -> list[BenchPrompt]:
            every = [(p, encode_with(tokenizer, p)) for p in read_prompts(prompt_file(f"reference:{split}"))]
            short = [p for p, tokens in every if len(tokens) <= longest]
            return [BenchPrompt(encode_with(tokenizer, p), p.task) for p in first_per_task(short, given.per_task)]

        prompts, training = chosen("test"), chosen("train")
        return cls(place, prompts, training, tokenizer, given.per_task, given.rounds, given.max_new_tokens)

    def gguf(self, part: str) -> Path:
        """The bundled target or draft as a GGUF file."""
        from gguf_files import write_gguf  # of the tests, found once engines.py has named their folder

        path = self.place / f"{part}.gguf"
        return path if path.is_file() else write_gguf(reference_path(part), path, self.tokenizer)

    def recorded(self, name: str, **pair: Any) -> Path:
        """A run recorded on training prompts."""
        run = self.place / name
        if not run.is_dir():
            asked = {"prompts": "reference:train", "per_task": self.per_task, "max_new_tokens": self.max_new_tokens}
            profile(out=run, **(asked | {key: str(value) for key, value in pair.items()}))
        return run


def measured(arms: Sequence[Arm], bench: Bench, label: str, over: Reference | None = None) -> Rows:
    """Arms against each other on held-out prompts; rows of all tasks together."""
    bench_arms(arms, bench.prompts, bench.rounds, np.random.default_rng(0), partial(show_progress, label))
    return [row for row in bench_rows(arms, bench.prompts, "uncompressed", over) if row["task"] == "all"]


def lengths_with(lengths: Sequence[int], advice: Rows) -> list[str]:
    """Fixed lengths to try, the one advised among them."""
    advised = next(row["policy"] for row in advice if row["recommended"])
    tried = [f"fixed:{length}" for length in lengths]
    return tried if advised in tried or not advised.startswith("fixed:") else [*tried, advised]


def tagged(rows: Rows, engine: str, advice: Rows) -> Rows:
    """Rows with their engine and what was advised: ``advised``, ``expected``, and ``of_best``, the speed over that of
    the fastest of all settings tried: in tokens per second over all prompts, as ``gain``, which is over one arm in all
    rows.
    """
    by_setting = {row["policy"]: row for row in advice}
    best = max(row["gain"] for row in rows)
    for row in rows:
        found = by_setting.get(row["policy"], {})
        row |= {"engine": engine, "cores": os.cpu_count(), "of_best": (1 + row["gain"]) / (1 + best)}
        row |= {"advised": found.get("recommended"), "expected": found.get("ratio_to_plain")}
        sign = " (advised)" if row["advised"] else ""
        console.print(f"{engine} {row['policy']}: {row['ratio_to_plain']:.2f}x plain{sign}", highlight=False)
    return rows
