"""Per-row quantities of a trace: position in the prompt, context length, and how much may be drafted."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import Reads
from draftgauge.policies.base import SignalArrays
from draftgauge.traces.trace import SIGNALS, Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def draft_caps(trace: Trace) -> Ints:
    """``[positions]`` the most tokens that a step can draft there, whatever the policy.

    A step leaves room for the target's own token under ``max_new_tokens``, and drafts no more than the drafter had to
    propose. That the output stops before the limit is not known to it.
    """
    return np.minimum(trace.drafted, draft_room(trace))


def draft_room(trace: Trace) -> Ints:
    """``[positions]`` tokens that may be drafted there, leaving room for the target's own under ``max_new_tokens``."""
    return trace.max_new_tokens - 1 - positions_in_prompt(trace)


def positions_in_prompt(trace: Trace) -> Ints:
    starts: Ints = np.repeat(trace.offsets[:-1], np.diff(trace.offsets))
    return np.arange(trace.positions) - starts


def context_lengths(trace: Trace) -> Ints:
    """``[positions]`` prompt and committed output tokens at each row: the context length that steps are costed at."""
    prompt_tokens = np.array([prompt.prompt_tokens for prompt in trace.prompts], np.int64)
    return np.repeat(prompt_tokens, np.diff(trace.offsets)) + positions_in_prompt(trace)


def prompt_of_rows(trace: Trace) -> Ints:
    """``[positions]`` index of each row's prompt in ``trace.prompts``."""
    return np.repeat(np.arange(len(trace.prompts)), np.diff(trace.offsets))


def sum_by_prompt(prompt: Ints, values: ArrayLike, count: int = 0) -> Floats:
    """Sums over what has the same number (rows or steps of a prompt, turns of a conversation), at least ``count``."""
    return np.bincount(prompt, values, count).astype(np.float64, copy=False)  # integers if there are none


def signal_arrays(trace: Trace, reads: Reads) -> SignalArrays:
    """The signals of all positions, NaN for those that are not read."""
    unread = np.broadcast_to(np.float32(np.nan), trace.confidence.shape)
    return SignalArrays(**{name: getattr(trace, name) if name in reads else unread for name in SIGNALS})


def check_prompt_tokens(trace: Trace) -> None:
    lacking = sum(len(prompt.prompt_token) != prompt.prompt_tokens for prompt in trace.prompts)
    if lacking:
        raise TraceError(
            f"the text is needed, and the trace lacks the prompt tokens of {lacking} of {len(trace.prompts)} "
            "prompts (traces of earlier versions do): profile again into a new folder"
        )
