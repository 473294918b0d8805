"""Live acceptance: accepted lengths in real decoding, in the same measures as the teacher-forced ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.diagnostics.alpha import Ints, depth_counts
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.base import Drafter
from draftgauge.models.base import CachedModel
from draftgauge.policies.fixed import FixedLength


@dataclass(frozen=True)
class LiveAcceptance:
    """What decoding found, prompt by prompt.

    Attributes:
        reached, accepted: ``[prompts, depths]``.
        mismatched: prompts whose output is not the plain one. In float32 there must be none.
    """

    reached: Ints
    accepted: Ints
    mismatched: int


def live_acceptance(
    target: CachedModel, drafter: Drafter, texts: Sequence[HeldOutText], depths: int, settings: DecodingSettings
) -> LiveAcceptance:
    """Decode every prompt greedily with drafts of a fixed length and count by depth.

    Args:
        target: the target.
        drafter: follows it.
        texts: prompts with their plain outputs.
        depths: tokens drafted a step.
        settings: those that the plain outputs were decoded with.
    """
    policy = FixedLength(depths)
    runs = [speculative_decode(target, drafter, policy, list(text.prompt), settings) for text in texts]
    counts = []
    for run in runs:
        accepted, drafted = (
            np.array([getattr(step, key) for step in run.steps], np.int64) for key in ("accepted", "drafted")
        )
        counts.append(depth_counts(accepted, drafted, depths))
    return LiveAcceptance(
        reached=np.array([reached for reached, _ in counts], np.int64).reshape(-1, depths),
        accepted=np.array([accepted for _, accepted in counts], np.int64).reshape(-1, depths),
        mismatched=sum(tuple(run.tokens) != text.output for run, text in zip(runs, texts, strict=True)),
    )
