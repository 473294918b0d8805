"""A dense trace in memory: for every position of the target's greedy output, what would be drafted from there.

Position ``p`` of a prompt stands for the state in which ``p`` output tokens are committed. A step that starts there
drafts ``d_1 .. d_g``; the target verifies them with ``g + 1`` positions and commits the accepted ones and one more of
its own. Greedy output does not depend on the draft lengths, so any policy can be replayed exactly; sampled output does
not depend on them in law, so any policy can be replayed in expectation (:mod:`draftgauge.traces.sampled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.compressions import UNCOMPRESSED
from draftgauge.core.errors import TraceError

SIGNALS = ("confidence", "entropy", "margin")

FINISHES = ("length", "stop")


@dataclass(frozen=True)
class PromptInfo:
    """One recorded prompt: ``index`` is its position in the prompt file, ``identifier`` the file's own id or the index,
    ``split`` "train", "validation", "test" or "", ``output_tokens`` is ``N``, at least 1, ``finish`` "length" (the
    limit was reached) or "stop" (an end token is the last of the output), ``prompt_token`` the prompt's token ids, for
    policies that read the text.
    """

    index: int
    identifier: str
    task: str
    split: str
    prompt_tokens: int
    output_tokens: int
    finish: str
    prompt_token: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("index", 0), ("prompt_tokens", 0), ("output_tokens", 1)):
            if not least <= getattr(self, name) < 2**31:
                raise TraceError(f"prompt {self.index}: {name} is {getattr(self, name)}, must be {least} or more")
        if self.finish not in FINISHES:
            raise TraceError(f"prompt {self.index}: finish is {self.finish!r}, must be one of {', '.join(FINISHES)}")


@dataclass(frozen=True)
class SampledDrafts:
    """What a trace of sampled decoding knows of the drafts from its positions, beside those that were drawn.

    ``p`` and ``q`` are the distributions of target and draft at a position; ``y`` is the output's token there. See
    :mod:`draftgauge.traces.sampled`.

    Attributes:
        acceptance: ``[P]`` the chance that a token drafted at the position is accepted, ``sum_v min(p(v), q(v))``.
        survival: ``[P]`` the same chance once the output is known to have ``y`` there, ``min(1, q(y) / p(y))``. Both
            are NaN where nothing could be drafted.
        draft_token: ``[P, G]`` the *refused draft*: its first token is one that the target refused; -1 where nothing
            was drafted.
        confidence, entropy, margin: ``[P, G]`` its signals. Those of its first token belong to the position, whatever
            was drafted there.
    """

    acceptance: NDArray[np.float32]
    survival: NDArray[np.float32]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]


@dataclass(frozen=True)
class Trace:
    """All positions of all prompts, one after the other: ``P`` of them, with drafts of up to ``G = gamma_max`` tokens.

    Attributes:
        offsets: ``[prompts + 1]``; prompt ``i`` owns the rows ``offsets[i]:offsets[i + 1]``.
        token: ``[P]`` the target's token at the position.
        target_entropy: ``[P]`` bits, of the distribution that gave ``token``; a step that starts at ``p`` knows only
            those before ``p``.
        drafted: ``[P]`` tokens drafted from the position, fewer than ``G`` where the drafter ended the text or had no
            more to propose.
        accepted: ``[P]`` how many of them equal the target's continuation; tokens past the recorded output do not.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        confidence, entropy, margin: ``[P, G]`` top-1 probability, bits, top-1 minus top-2 probability; NaN likewise.
        max_new_tokens: a live step that starts at ``p`` drafts at most ``max_new_tokens - p - 1``.
        sampled: of sampled decoding only. The output is then one drawn from the target, and the columns above hold one
            draw of the drafts.
        turns: prompts whose indices agree when divided by it are turns of one conversation.
    """

    prompts: tuple[PromptInfo, ...]
    offsets: NDArray[np.int64]
    token: NDArray[np.int32]
    target_entropy: NDArray[np.float32]
    drafted: NDArray[np.int16]
    accepted: NDArray[np.int16]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]
    gamma_max: int
    max_new_tokens: int
    compression: str = UNCOMPRESSED
    sampled: SampledDrafts | None = None
    turns: int = 1

    @property
    def positions(self) -> int:
        return int(self.offsets[-1])

    @property
    def outputs(self) -> list[NDArray[Any]]:
        """The tokens of each prompt's output."""
        return np.split(self.token, self.offsets[1:-1])

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(prompt.task for prompt in self.prompts))
        mean = float(self.accepted.mean()) if self.positions else 0.0
        return (
            f"<Trace of {len(self.prompts)} prompts ({tasks}): {self.positions:,} positions, target "
            f"{self.compression}, drafts of up to {self.gamma_max}, {mean:.2f} tokens accepted on average>"
        )
