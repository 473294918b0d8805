"""A policy asked token by token on a trace, as the live loop asks it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice, takewhile

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import SignalName
from draftgauge.judging.positions import signal_arrays
from draftgauge.policies.base import DropsLast, Extends, Policy, Signal, Step, asks_after_each_token, begin, reads_of
from draftgauge.traces.trace import Trace

Ints = NDArray[np.int64]


def prompt_steps(
    trace: Trace, prompt: int, caps: Ints, policy: Policy, greedy: bool
) -> Iterator[tuple[int, int, int, int, int]]:
    """Ask a policy token by token, as the live loop does; yields each step's row and its tokens drafted, appended,
    accepted, dropped.

    Args:
        caps: ``[P]`` the most tokens that a step can draft.
        greedy: whether drafting is: a sampled token is never dropped (:class:`DropsLast`).
    """
    first, end = trace.offsets[prompt : prompt + 2].tolist()
    limits, accepts = caps[first:end].tolist(), trace.accepted[first:end].tolist()
    reads = reads_of(policy)
    asks, reads_text = asks_after_each_token(reads), SignalName.TEXT in reads
    arrays = signal_arrays(trace, reads)
    token = trace.draft_token if reads_text else np.broadcast_to(np.int32(-1), trace.draft_token.shape)
    fields = (arrays.confidence, arrays.entropy, arrays.margin, token)  # of a signal, after its depth
    columns = [values[first:end].tolist() for values in fields] if asks else []
    target_entropy = trace.target_entropy[first:end].tolist()
    tokens = trace.token[first:end].tolist()
    extends = policy if isinstance(policy, Extends) else None
    drops = policy if greedy and isinstance(policy, DropsLast) else None
    told_last = isinstance(policy, Extends | DropsLast)  # also of the last possible token
    begin(policy, trace.prompts[prompt].prompt_token)
    position, length = 0, end - first
    while position < length:
        most = max(0, min(policy.limit(), limits[position]))
        signals: list[Signal] = []
        shown = zip(count(1), *(values[position] for values in columns), strict=False)
        for signal in map(Signal._make, islice(shown, most if asks else 0)):
            signals.append(signal)
            if (signal.depth < most or told_last) and not policy.keep_drafting(signal):
                break
        drafted = len(signals) if asks else most
        dropped = int(drops is not None and drafted > 0 and drops.drops_last())
        kept = drafted - dropped
        accepted, appended = min(kept, accepts[position]), 0
        room = trace.max_new_tokens - 1 - position - kept
        if extends is not None and room > 0:
            looked_up = list(extends.extend(room))[:room]
            appended = len(looked_up)
            agreeing = takewhile(
                lambda pair: pair[0] == pair[1], zip(looked_up, tokens[position + kept :], strict=False)
            )
            accepted += len(list(agreeing)) if accepted == kept else 0
        committed = min(accepted + 1, length - position)
        entropy = target_entropy[position + committed - 1] if SignalName.TARGET_ENTROPY in reads else float("nan")
        text = tokens[position : position + committed] if reads_text else ()
        policy.observe(Step(drafted, accepted, committed, signals, entropy, text, appended, dropped))
        yield first + position, drafted, appended, accepted, dropped
        position += committed
