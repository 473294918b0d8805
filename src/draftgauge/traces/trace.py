"""A dense trace in memory: for every position of the target's greedy output, what would be drafted from there.

Position ``p`` of a prompt stands for the state in which ``p`` output tokens are committed. A step that starts there
drafts ``d_1 .. d_g``; the target verifies them with ``g + 1`` positions and commits the accepted ones and one more of
its own. Greedy output does not depend on the draft lengths, so any policy can be replayed exactly; sampled output does
not depend on them in law, so any policy can be replayed in expectation (:mod:`draftgauge.traces.sampled`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError

FINISHES = ("length", "stop")


@dataclass(frozen=True)
class PromptInfo:
    """One recorded prompt.

    Attributes:
        index: position in the prompt file, counted from 0.
        identifier: the file's own id of the prompt, else its index as text.
        task: the kind of task.
        split: "train", "validation", "test" or "" where the file names none.
        prompt_tokens: length of the prompt.
        output_tokens: length of the recorded output, ``N``, at least 1.
        finish: "length" (the limit was reached) or "stop" (an end token is the last of the output).
        prompt_token: the prompt's token ids, for policies that read the text; empty where they are not known.

    Raises:
        TraceError: for values out of range.
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

    ``p`` and ``q`` are the distributions of target and draft at a position; ``y`` is the output's token there.
    :mod:`draftgauge.traces.sampled` says what each of the two chances is for.

    Attributes:
        acceptance: ``[P]`` the chance that a token drafted at the position is accepted, ``sum_v min(p(v), q(v))``.
        survival: ``[P]`` the same chance once it is known that the output has ``y`` there, ``min(1, q(y) / p(y))``.
        draft_token: ``[P, G]`` the *refused draft*: drafted from the position, its first token one that the target
            refused; -1 where nothing was drafted.
        confidence, entropy, margin: ``[P, G]`` its signals, NaN likewise. Those of its first token belong to the
            position, whatever was drafted there.

    Both chances are NaN where nothing could be drafted, as the text is longer than the draft model takes.
    """

    acceptance: NDArray[np.float32]
    survival: NDArray[np.float32]
    draft_token: NDArray[np.int32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    margin: NDArray[np.float32]


@dataclass(frozen=True)
class Trace:
    """All positions of all prompts, one after the other.

    ``P`` is the number of positions (the sum of the prompts' output lengths), ``G`` is ``gamma_max``.

    Attributes:
        prompts: what was recorded, in the order of the rows.
        offsets: ``[prompts + 1]``; prompt ``i`` owns the rows ``offsets[i]:offsets[i + 1]``.
        token: ``[P]`` the target's token at the position.
        target_entropy: ``[P]`` bits, of the target's distribution that gave ``token``. A step that starts at position
            ``p`` may know it only for the rows before ``p``.
        drafted: ``[P]`` tokens drafted from the position: ``G``, fewer where the drafter ended the text or had no more
            to propose.
        accepted: ``[P]`` how many of the drafted tokens equal the target's continuation, 0..drafted. Tokens past the
            recorded output count as rejected.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        confidence: ``[P, G]`` top-1 probability, NaN where nothing was drafted.
        entropy: ``[P, G]`` bits, NaN likewise.
        margin: ``[P, G]`` top-1 minus top-2 probability, NaN likewise.
        gamma_max: longest draft recorded.
        max_new_tokens: the limit of output tokens; a live step that starts at ``p`` drafts at most ``max_new_tokens - p
            - 1``.
        compression: of the target, by name.
        sampled: only of sampled decoding: the chances behind the drafts. The output then is one drawn from the target,
            and the columns above hold one draw of the drafts, which any policy may be walked over like a greedy trace.
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
    compression: str = "none"
    sampled: SampledDrafts | None = None
    turns: int = 1
    derived: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was computed from the other columns, by name, so that it is computed once."""

    @property
    def positions(self) -> int:
        """Rows of the trace, ``P``."""
        return int(self.offsets[-1])
