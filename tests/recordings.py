"""Traces that tiny models record, and their steps beside those of the live loop."""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.core.prompts import Prompt
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.base import Drafter
from draftgauge.judging.replay import Replay
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import Step
from draftgauge.traces.trace import Trace
from draftgauge.traces.writer import make_trace


def recorded_trace(
    target: CachedModel, drafter: Drafter, prompts: Sequence[list[int]], settings: DecodingSettings, gamma_max: int
) -> Trace:
    plan = RecordingPlan(settings, gamma_max)
    records = [
        record_prompt(target, drafter, Prompt(n, str(n), "code", "test", ""), prompt, plan)
        for n, prompt in enumerate(prompts)
    ]
    return make_trace(records, settings.max_new_tokens)


def assert_same_steps(live: Sequence[Step], replayed: Replay) -> None:
    for name in ("drafted", "dropped", "appended", "accepted", "committed", "accepted_text"):
        assert [getattr(step, name) for step in live] == getattr(replayed.record, name).tolist(), name
