"""A dense trace in memory: for every position of the target's greedy output, what would be drafted from there.

Position ``p`` of a prompt stands for the state in which ``p`` output tokens are committed. A step that starts there
drafts ``d_1 .. d_g``; the target verifies them with ``g + 1`` positions and commits the accepted ones and one more of
its own. Greedy output does not depend on the draft lengths, so any policy can be replayed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PromptInfo:
    """One recorded prompt.

    Attributes:
        index: place in the prompt file, counted from 0.
        identifier: the file's own id of the prompt, else its index as text.
        task: the kind of task.
        split: "train", "validation", "test" or "" where the file names none.
        prompt_tokens: length of the prompt.
        output_tokens: length of the recorded output, ``N``.
        finish: "length" (the limit was reached) or "stop" (an end token is the last of the output).
    """

    index: int
    identifier: str
    task: str
    split: str
    prompt_tokens: int
    output_tokens: int
    finish: str


@dataclass(frozen=True)
class Trace:
    """All positions of all prompts, one after the other.

    ``P`` is the number of positions (the sum of the prompts' output lengths), ``G`` is ``gamma_max``.

    Attributes:
        prompts: what was recorded, in the order of the rows.
        offsets: ``[prompts + 1]``; prompt ``i`` owns the rows ``offsets[i]:offsets[i + 1]``.
        token: ``[P]`` the target's greedy token at the position.
        target_entropy: ``[P]`` bits, of the target's distribution that gave ``token``. A step that starts at position
            ``p`` may know it only for the rows before ``p``.
        drafted: ``[P]`` tokens drafted from the position: ``G``, fewer where the drafter ended the text or had no more to propose.
        accepted: ``[P]`` how many of the drafted tokens equal the target's greedy continuation, 0..drafted. Tokens past the
            recorded output count as rejected.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        confidence: ``[P, G]`` top-1 probability, NaN where nothing was drafted.
        entropy: ``[P, G]`` bits, NaN likewise.
        margin: ``[P, G]`` top-1 minus top-2 probability, NaN likewise.
        gamma_max: longest draft recorded.
        max_new_tokens: the limit of output tokens; a live step that starts at ``p`` drafts at most ``max_new_tokens - p - 1``.
        compression: of the target, by name.
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

    @property
    def positions(self) -> int:
        """Rows of the trace, ``P``."""
        return int(self.offsets[-1])
