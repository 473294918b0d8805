"""A trace from the acceptance that vLLM reports of each request, for drafters that draftgauge cannot load.

After a draft that was accepted whole it is not known whether the drafter would be right: that is drawn. See
docs/serving.md for which drafters this holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError, misread
from draftgauge.serving.exchange import answers_of, count, draft_length
from draftgauge.traces.trace import PromptInfo, PromptRecord, Trace, make_record
from draftgauge.traces.writer import make_trace

NO, YES, UNKNOWN = 0, 1, 2
START = "start the server with --per-request-spec-decode-metrics detailed, and ask for one sequence a request"


@dataclass(frozen=True)
class RequestSteps:
    """The steps of one request."""

    prompt_tokens: int
    output_tokens: int
    drafted: tuple[int, ...]  # tokens of each step
    accepted: tuple[int, ...]
    longest: int  # most tokens that a step may draft
    task: str = ""


@dataclass(frozen=True)
class ImportedTrace:
    """What was imported."""

    trace: Trace  # outputs begin with the second token: the prompt's pass gives the first one without a draft
    drawn: float  # share of positions at which it was not known whether the drafter's token is the target's
    left_out: int  # requests whose steps do not account for their tokens


def import_requests(path: Path) -> ImportedTrace:
    steps = [request_steps(answer, where) for where, answer in answers_of(path)]
    if not steps:
        raise TraceError(f"{path} holds no answers: write one JSON object a line")
    return trace_of_requests(steps)


def request_steps(answer: Any, where: str) -> RequestSteps:
    try:
        usage, metrics = answer["usage"], answer["metrics"]["speculative_decoding"]
        nothing: list[int] | None = [] if metrics["num_spec_steps"] == 0 else None  # vLLM then leaves the lists out
        drafted, accepted = (metrics.get(f"per_step_{name}", nothing) for name in ("drafted", "accepted"))
        steps = RequestSteps(
            prompt_tokens=count(usage["prompt_tokens"]),
            output_tokens=count(usage["completion_tokens"]),
            drafted=tuple(map(count, drafted)),
            accepted=tuple(map(count, accepted)),
            longest=draft_length(metrics["num_spec_tokens"]),
            task=str(answer.get("task", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        said = f"{where} is no answer of vLLM with metrics of every step ({misread(error)})"
        raise TraceError(f"{said}: {START}") from error
    if len(steps.drafted) != len(steps.accepted) or any(
        not accepted <= drafted <= steps.longest
        for drafted, accepted in zip(steps.drafted, steps.accepted, strict=True)
    ):
        raise TraceError(f"{where} accepts more tokens than it drafts, or drafts more than {steps.longest}")
    return steps


def trace_of_requests(requests: Sequence[RequestSteps]) -> ImportedTrace:
    """A trace with the drafts' lengths up to the longest one that the server drafts."""
    longest = {request.longest for request in requests}
    if len(longest) > 1:
        raise TraceError(f"the answers are of servers that draft up to {sorted(longest)} tokens: import one of them")
    (width,) = longest
    if width < 1:
        raise TraceError("the server drafts no tokens, so its answers say nothing of a drafter")
    accounted = [(request, matches) for request in requests if (matches := position_matches(request)) is not None]
    if not accounted:
        raise TraceError(
            "no answer's steps account for its tokens: some steps drafted nothing; draft at every step, with one length"
        )
    whole = [s for r in requests for s in zip(r.drafted, r.accepted, strict=True) if s[0] == width]
    reached = sum(accepted >= width - 1 for _, accepted in whole)
    chance = sum(accepted == width for _, accepted in whole) / reached if reached else 0.0
    rng = np.random.default_rng(0)
    records, unknown, positions = [], 0, 0
    for index, (request, matches) in enumerate(accounted):
        open_ = matches == UNKNOWN
        unknown, positions = unknown + int(open_.sum()), positions + len(matches)
        drawn = np.where(open_, rng.random(len(matches)) < chance, matches == YES)
        records.append(_record(request, index, drawn, width))
    limit = max(record.info.output_tokens for record in records)
    return ImportedTrace(make_trace(records, limit), unknown / positions, len(requests) - len(accounted))


def position_matches(request: RequestSteps) -> NDArray[np.int64] | None:
    """``[output_tokens - 1]`` whether the drafter's token is the target's: :data:`NO`, :data:`YES`, :data:`UNKNOWN`.

    None where the steps do not account for all tokens after the first, as those that drafted nothing are not listed.
    """
    matches: list[int] = []
    for drafted, accepted in zip(request.drafted, request.accepted, strict=True):
        matches += [YES] * accepted + [NO if accepted < drafted else UNKNOWN]
    length = request.output_tokens - 1
    return np.array(matches[:length]) if 0 < length <= len(matches) else None


def _record(request: RequestSteps, index: int, matches: NDArray[np.bool_], width: int) -> PromptRecord:
    """Tokens are position numbers; a wrong draft token is 0, which the output never contains."""
    length = len(matches)
    token = list(range(1, length + 1))
    drafts = []
    for row in range(length):
        ahead = matches[row : row + width]
        right = int(ahead.argmin()) if not ahead.all() else len(ahead)
        drafts.append([*token[row : row + right], *[0] * (width - right)])
    task, prompt_tokens = request.task or "requests", request.prompt_tokens + 1
    return make_record(PromptInfo(index, str(index), task, "", prompt_tokens, length, "stop"), token, drafts, width)
