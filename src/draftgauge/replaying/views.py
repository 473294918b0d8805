"""A trace as policies see it, in whole columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.policies.base import SignalArrays, TextView
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.traces.trace import Trace

_STORED = "with stored texts"


def text_view(trace: Trace, reads: Reads = OF_DRAFTED_TOKENS, stored: StoredTexts | None = None) -> TextView:
    """A trace as policies that read text, these signals and stored texts see it.

    Raises:
        TraceError: if the trace was recorded without the prompts' tokens.
    """
    check_prompt_tokens(trace)
    prompt_tokens = [prompt.prompt_token for prompt in trace.prompts]
    return TextView(
        signal_arrays(trace, reads),
        trace.draft_token,
        trace.token,
        trace.offsets,
        prompt_tokens,
        derived_with(trace, stored),
        stored,
    )


def derived_with(trace: Trace, stored: StoredTexts | None) -> dict[str, Any]:
    """What has been computed from a trace together with stored texts: with one store of them at a time."""
    if stored is None:
        return trace.derived
    views: tuple[StoredTexts, dict[str, Any]] | None = trace.derived.get(_STORED)
    if views is None or views[0] is not stored:
        views = trace.derived[_STORED] = stored, {}
    return views[1]


def signal_arrays(trace: Trace, reads: Reads) -> SignalArrays:
    """The signals of all positions, NaN for those that are not read."""
    unread = np.broadcast_to(np.float32(np.nan), trace.confidence.shape)
    return SignalArrays(
        confidence=trace.confidence if SignalName.CONFIDENCE in reads else unread,
        entropy=trace.entropy if SignalName.ENTROPY in reads else unread,
        margin=trace.margin if SignalName.MARGIN in reads else unread,
    )


def check_prompt_tokens(trace: Trace) -> None:
    lacking = sum(len(prompt.prompt_token) != prompt.prompt_tokens for prompt in trace.prompts)
    if lacking:
        raise TraceError(
            f"the policy reads the text, and the trace lacks the prompt tokens of {lacking} of {len(trace.prompts)} "
            "prompts (traces of earlier versions do): profile again into a new folder"
        )
