"""What drafting costs: seconds a drafted token, and tokens a second beside plain decoding of the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.base import Draft, Drafter, DraftsUnread, UnreadDraft, device_of, record_passes
from draftgauge.models.base import CachedModel
from draftgauge.models.device import seconds
from draftgauge.policies.fixed import FixedLength

ROUNDS = 2


@dataclass(frozen=True)
class Latency:
    """Medians over prompts and rounds.

    Attributes:
        draft_ms: milliseconds a drafted token, what a step needs to begin with shared out among them.
        verify_ms: milliseconds of all else of a step, mostly the target's pass over the draft.
        tokens_per_second: of decoding with drafts.
        ratio_to_plain: of the two, prompt by prompt.
    """

    gamma: int
    draft_ms: float
    verify_ms: float
    tokens_per_second: float
    plain_tokens_per_second: float
    ratio_to_plain: float


class _TimedDrafter:
    """Sums the seconds of a drafter's proposals. On an accelerator this waits for the device after each."""

    def __init__(self, drafter: Drafter, *devices: torch.device) -> None:
        self._drafter, self._devices, self.seconds = drafter, devices, 0.0
        self.prefill, self.commit = drafter.prefill, drafter.commit

    def propose(self, *arguments: Any) -> Draft:
        return self._timed(self._drafter.propose, *arguments)

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        return self._timed(self._drafter.propose_unread, limit) if isinstance(self._drafter, DraftsUnread) else None

    def _timed(self, propose: Callable[..., Any], *arguments: Any) -> Any:
        begun = seconds(*self._devices)
        draft = propose(*arguments)
        self.seconds += seconds(*self._devices) - begun
        return draft


def measure_latency(
    target: CachedModel, drafter: Drafter, texts: Sequence[HeldOutText], gamma: int, settings: DecodingSettings
) -> Latency:
    """Decode some prompts plainly and with drafts in turn; the first one also beforehand, uncounted."""
    policy, device = FixedLength(gamma), target.spec.device
    rows = []
    record_passes(target, drafter, gamma, max(len(text.prompt) for text in texts) + settings.max_new_tokens)
    for number, text in enumerate([texts[0], *(text for _ in range(ROUNDS) for text in texts)]):
        prompt = list(text.prompt)
        plain = plain_decode(target, prompt, settings)
        timer = _TimedDrafter(drafter, device, device_of(drafter, device))
        run = timed = speculative_decode(target, timer, policy, prompt, settings)
        if device.type != "cpu":  # to time a part is to wait for the device, which decoding need not
            run = speculative_decode(target, drafter, policy, prompt, settings)
        drafted = sum(step.drafted for step in timed.steps)
        if number == 0 or drafted == 0:
            continue
        rows.append(
            (
                1e3 * timer.seconds / drafted,
                1e3 * (timed.decode_seconds - timer.seconds) / len(timed.steps),
                run.tokens_per_second,
                plain.tokens_per_second,
                run.tokens_per_second / plain.tokens_per_second,
            )
        )
    values = np.median(np.array(rows), axis=0) if rows else np.full(5, np.nan)
    return Latency(gamma, *(float(value) for value in values))
