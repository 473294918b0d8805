"""Token timelines: how each token of an output came about."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.policies import make_policy
from draftgauge.replaying.simulate import replay
from draftgauge.reporting import timeline
from draftgauge.reporting.timeline import replay_timeline, representative_prompts
from draftgauge.traces.build import make_trace, select
from draftgauge.traces.record import make_record
from draftgauge.traces.trace import PromptInfo
from synthetic import synthetic_trace

WORDS = ["a", " b", "\n", "<d>", " e", "f", " g"]


def _trace(drafts, confidence=1.0):
    info = PromptInfo(0, "first", "code", "test", 5, len(WORDS), "length")
    record = make_record(info, list(range(len(WORDS))), drafts, 3)
    record.confidence[record.draft_token >= 0] = confidence
    return make_trace([record], max_new_tokens=len(WORDS))


def test_every_kind_of_token():
    # Two accepted and a bonus, a rejection, a position with no draft, one accepted at the end, where two were left to
    # draft.
    drafts = [[0, 1], [], [], [3, 6, 0], [], [5], []]
    confidence = [0.9, 0.8, 0.7, 0.25, 0.1, 0.6]  # row by row
    line = replay_timeline(_trace(drafts, confidence), 0, 3, WORDS)
    kinds = [[(token.text, token.kind) for token in step] for step in line.steps]
    assert kinds == [
        [("a", "accepted"), (" b", "accepted"), ("\n", "bonus")],
        [("<d>", "accepted"), (" e", "corrected")],
        [("f", "accepted"), (" g", "bonus")],
    ]
    assert line.tokens == len(WORDS)
    titles = [token.title for step in line.steps for token in step]
    assert titles[1] == "drafted token 2 of its step, accepted, confidence 0.80"
    assert titles[4] == "corrected: drafted token 2 ' g' was rejected, confidence 0.25"


def test_nothing_drafted_is_plain():
    line = replay_timeline(_trace([[0]] * 7), 0, 0, WORDS)
    assert [[token.kind for token in step] for step in line.steps] == [["plain"]] * len(WORDS)


@pytest.mark.parametrize("gamma", [0, 1, 3, 6])
def test_steps_are_those_of_replay_and_texts_are_the_output(gamma):
    trace = synthetic_trace(seed=2, prompts=6, length=50, gamma_max=6)
    texts = [f"{token}|" for token in trace.token]
    for prompt in range(len(trace.prompts)):
        line = replay_timeline(trace, prompt, gamma, texts)
        alone = select(trace, np.arange(len(trace.prompts)) == prompt)
        record = replay(alone, make_policy(f"fixed:{gamma}", 6)).record
        assert [len(step) for step in line.steps] == record.committed.tolist()
        assert "".join(token.text for step in line.steps for token in step) == "".join(
            f"{token}|" for token in alone.token
        )


def test_long_outputs_end_with_a_whole_step(monkeypatch):
    trace = synthetic_trace(seed=4, prompts=1, length=60, gamma_max=6)
    texts = ["x"] * trace.positions
    whole = replay_timeline(trace, 0, 4, texts)
    monkeypatch.setattr(timeline, "TOKENS_SHOWN", 20)
    part = replay_timeline(trace, 0, 4, texts)
    assert 20 <= part.tokens < 26
    assert part.steps == whole.steps[: len(part.steps)]


def test_representative_prompts_are_the_median_ones():
    records = []
    for index, right in enumerate((0, 2, 5, 1, 3)):
        info = PromptInfo(index, str(index), "chat" if index == 4 else "code", "", 5, 6, "length")
        drafts = [[token] if token < right else [9] for token in range(6)]
        records.append(make_record(info, list(range(6)), drafts, 1))
    trace = make_trace(records, max_new_tokens=6)
    assert representative_prompts(trace, 2) == (1, 3, 4)
