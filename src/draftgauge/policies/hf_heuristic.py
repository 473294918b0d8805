"""The draft length of Hugging Face transformers' ``num_assistant_tokens_schedule="heuristic"``."""

from __future__ import annotations

from typing import ClassVar

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Policy, PolicyBase, Step, check_tokens
from draftgauge.policies.spec import register_policy


class HuggingFaceHeuristic(PolicyBase):
    """Two tokens more after a full acceptance, else one fewer, at least 1.

    The rule of ``AssistedCandidateGenerator.update_candidate_strategy`` in transformers 5, alone: transformers applies
    its confidence threshold beside it, unless ``assistant_confidence_threshold`` is set to 0. A step that drafted
    nothing counts as fully accepted there, and so it does here. One difference: the length stays within ``gamma_max``,
    where transformers lets it grow without end.
    """

    reads: ClassVar[Reads] = NO_SIGNALS

    def __init__(self, gamma_max: int, start: int = 20, persistent: bool = True) -> None:
        """Begin at ``start`` tokens (transformers' ``num_assistant_tokens``), or at ``gamma_max`` if that is less.

        Args:
            persistent: the length carries over from prompt to prompt ("heuristic"); if not, every prompt starts again
                ("heuristic_transient").
        """
        self.gamma_max = gamma_max
        self.start = min(start, gamma_max)
        self.persistent = persistent
        self.gamma = self.start

    def reset(self) -> None:
        if not self.persistent:
            self.gamma = self.start

    def observe(self, step: Step) -> None:
        # As transformers counts: an end token that ends the output replaces the target's own token.
        matches = step.committed - 1
        if matches == step.drafted:
            self.gamma = min(self.gamma + 2, self.gamma_max)
        else:
            self.gamma = max(self.gamma - 1, 1)


@register_policy(
    "hf-heuristic",
    "two more after a full acceptance, else one fewer (transformers' heuristic schedule)",
    grid={"start": (1, 4, 20), "gamma_max": (2, 3, 4, 6, 8), "persistent": (True, False)},
    compared=True,
)
def hf_heuristic(start: int = 20, persistent: bool = True, *, gamma_max: int) -> Policy:
    check_tokens("hf-heuristic", "start", start)
    return HuggingFaceHeuristic(gamma_max, start, persistent)
