"""What drafting costs: seconds a drafted token, and tokens a second beside plain decoding of the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.base import Drafter
from draftgauge.models.base import CachedModel
from draftgauge.policies.fixed import FixedLength

ROUNDS = 2


@dataclass(frozen=True)
class Latency:
    """Medians over prompts and rounds.

    Attributes:
        draft_ms: milliseconds a drafted token, what a step needs to begin with shared out among them.
        verify_ms: milliseconds of the target's pass over a draft, and of accepting.
        tokens_per_second: of decoding with drafts.
        ratio: of the two, prompt by prompt.
    """

    gamma: int
    draft_ms: float
    verify_ms: float
    tokens_per_second: float
    plain_tokens_per_second: float
    ratio: float


def measure_latency(
    target: CachedModel, drafter: Drafter, texts: Sequence[HeldOutText], gamma: int, settings: DecodingSettings
) -> Latency:
    """Decode some prompts plainly and with drafts in turn; the first one also beforehand, uncounted."""
    policy = FixedLength(gamma)
    rows = []
    for number, text in enumerate([texts[0], *(text for _ in range(ROUNDS) for text in texts)]):
        prompt = list(text.prompt)
        plain = plain_decode(target, prompt, settings)
        run = timed = speculative_decode(target, drafter, policy, prompt, replace(settings, time_phases=True))
        if target.spec.device.type != "cpu":  # to time a phase is to wait for the device, which decoding need not
            run = speculative_decode(target, drafter, policy, prompt, settings)
        drafted = sum(step.drafted for step in timed.steps)
        if number == 0 or drafted == 0 or timed.phases is None:
            continue
        drafting = [step for step in timed.steps if step.drafted]
        rows.append(
            (
                1e3 * timed.phases.draft / drafted,
                1e3 * timed.phases.verify / len(drafting),
                run.tokens_per_second,
                plain.tokens_per_second,
                run.tokens_per_second / plain.tokens_per_second,
            )
        )
    values = np.median(np.array(rows), axis=0) if rows else np.full(5, np.nan)
    return Latency(gamma, *(float(value) for value in values))
