"""Latency of a drafter: speeds are of decoding that waits for nothing, phases of one that is timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics import latency
from draftgauge.diagnostics.latency import measure_latency
from draftgauge.diagnostics.texts import HeldOutText

STEPS = (SimpleNamespace(drafted=3), SimpleNamespace(drafted=0), SimpleNamespace(drafted=3))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_speed_is_not_of_a_run_that_waits_for_its_clock(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    def speculative_decode(target: Any, drafter: Any, policy: Any, prompt: Any, settings: DecodingSettings) -> Any:
        timed = settings.time_phases
        phases = SimpleNamespace(draft=0.6, verify=0.8) if timed else None
        return SimpleNamespace(steps=STEPS, phases=phases, tokens_per_second=150.0 if timed else 200.0)

    monkeypatch.setattr(latency, "speculative_decode", speculative_decode)
    monkeypatch.setattr(latency, "plain_decode", lambda *_: SimpleNamespace(tokens_per_second=100.0))
    target: Any = SimpleNamespace(spec=SimpleNamespace(device=torch.device(device)))
    drafter: Any = None
    texts = [HeldOutText((1, 2), (3, 4))]
    measured = measure_latency(target, drafter, texts, 3, DecodingSettings(10))
    speed = 150.0 if device == "cpu" else 200.0  # where a clock waits for nothing one run serves for both
    assert (measured.tokens_per_second, measured.ratio) == (speed, speed / 100.0)
    assert (measured.draft_ms, measured.verify_ms) == pytest.approx((100.0, 400.0))
