"""The published records as arrays: speculation steps, and the runs they belong to.

``S`` is the number of steps, ``R`` of runs, ``P`` of prompts. Compressions, tasks and prompts are indices into their
names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = list[dict[str, Any]]

COMPRESSIONS = ("fp16", "int8", "nf4")
TASKS = ("code", "math", "chat", "summarization")
GAMMAS = (2, 4, 6, 8)
SIGNALS = ("mean_draft_entropy", "mean_draft_confidence", "max_draft_entropy", "min_draft_confidence")
ALL = "all"


@dataclass(frozen=True)
class Steps:
    """Speculation steps in the order of the file, ``[S]`` each.

    Attributes:
        gamma: draft length of the step's run; ``drafted`` is what the step really drafted, fewer where a run ends.
        accepted: drafted tokens that the target accepted; ``rate`` that over drafted, as published.
        signals: ``[S, 4]`` of the step's draft tokens, columns as in :data:`SIGNALS`; entropies in bits.
    """

    compression: Ints
    task: Ints
    gamma: Ints
    accepted: Ints
    drafted: Ints
    rate: Floats
    signals: Floats
    run: Ints

    @property
    def tokens(self) -> Ints:
        return self.accepted + 1


@dataclass(frozen=True)
class Runs:
    """One output each, ``[R]``: a prompt at one compression and draft length. ``steps, drafted, tokens`` are sums, the
    seconds wall-clock time."""

    compression: Ints
    task: Ints
    gamma: Ints
    prompt: Ints
    steps: Ints
    drafted: Ints
    tokens: Ints
    seconds: Floats
    tokens_per_second: Floats


@dataclass(frozen=True)
class Records:
    steps: Steps
    runs: Runs

    @property
    def prompts(self) -> int:
        return int(self.runs.prompt.max()) + 1

    @property
    def prompt_of_step(self) -> Ints:
        """``[S]`` the prompt that each step belongs to."""
        return self.runs.prompt[self.steps.run]

    def by_prompt(self, values: NDArray[np.generic], steps: Mask) -> Floats:
        """``[P]`` sums over a prompt's steps of a value ``[S]``, counting only the steps that the mask names."""
        sums = np.bincount(self.prompt_of_step[steps], values[steps].astype(np.float64), self.prompts)
        return np.asarray(sums, np.float64)


def of_compression(compression: Ints) -> list[tuple[str, Mask]]:
    masks = [(name, compression == c) for c, name in enumerate(COMPRESSIONS)]
    return [*masks, (ALL, np.ones(len(compression), np.bool_))]
