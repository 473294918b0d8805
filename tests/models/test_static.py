"""The static engine: no shape and no operation depends on how long the text is, so that a pass can be recorded."""

from __future__ import annotations

import pytest
import torch

from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.base import UnreadDraft
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from tiny import tiny_model, tokens


def test_logits_are_not_overwritten_by_the_next_pass() -> None:
    model = wrap(tiny_model(), "static")
    first = model.forward(tokens(3))
    kept = first.clone()
    model.forward(tokens(3, seed=1))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("end", [None, 2, 3])
def test_drafts_stay_unread_and_end_where_they_would_have_ended(end: int | None) -> None:
    """An end token inside a draft that was not read ends draft, acceptance and output as in one that was."""
    prompt = tokens(10, seed=2).tolist()
    free = plain_decode(wrap(tiny_model(), "lean"), prompt, DecodingSettings(24)).tokens
    ends = frozenset() if end is None else frozenset({free[end]})
    results = {}
    for engine in ("lean", "static"):
        drafter = LanguageModelDrafter(wrap(tiny_model(), engine), ends)
        results[engine] = speculative_decode(
            wrap(tiny_model(), engine), drafter, FixedLength(5), prompt, DecodingSettings(24, end_tokens=ends)
        )
        drafter.prefill(prompt)
        assert isinstance(drafter.propose_unread(3), UnreadDraft) == (engine == "static")
    lean_result, static_result = results["lean"], results["static"]
    assert static_result.tokens == lean_result.tokens
    assert static_result.origins == lean_result.origins
    counts = [[(step.drafted, step.accepted, step.committed) for step in result.steps] for result in results.values()]
    assert counts[0] == counts[1]
    assert static_result.finish == ("length" if end is None else "stop")
