"""One drafter measured as a whole: parts agree with each other, and everything goes into JSON."""

from __future__ import annotations

import json

import pytest

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import EvaluationPlan, evaluate_drafter
from reuse_nets import net_for, target, texts


@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
def test_parts_agree(engine: str) -> None:
    model = target(engine)
    settings = DecodingSettings(max_new_tokens=12)
    held_out = texts(model, 4, settings)
    plan = EvaluationPlan(depths=3, settings=settings, live=3, tree=2, latency=1)
    found = evaluate_drafter(net_for(model, "hybrid"), model, held_out, plan)
    assert found.reached.shape == found.accepted.shape == (4, 3)
    assert len(found.live_reached) == 3
    assert found.mismatched == 0
    assert found.tree_tokens.tolist() == [
        len(text.output) for text in held_out[1:2]
    ]  # the first prompt is too short for a tree
    assert found.latency is not None
    assert found.latency.tokens_per_second > 0
    assert found.latency.draft_ms > 0
    assert json.loads(json.dumps(found.to_json()))["accepted"] == found.accepted.tolist()
