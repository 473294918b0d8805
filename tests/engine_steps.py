"""The steps that draftgauge's own loop takes to an output that an engine gave, to compare an engine's counts with."""

from __future__ import annotations

from pathlib import Path

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.pair.loading import Pair
from draftgauge.policies.spec import make_policy
from draftgauge.traces.engine_costs import read_costs

LONGEST = 16


def live_steps(
    pair: Pair, policy: str, costs: Path | None, prompt: list[int], output: list[int], *, drafts_end: bool = True
) -> list[list[int]]:
    """Proposed and accepted tokens of the steps in which draftgauge's loop commits what follows the first token.

    The loop goes on beyond the output, as vLLM does not tell its proposers where an output will end. Drafts end with an
    end token, or do not, as in llama.cpp.
    """
    settings = DecodingSettings(max_new_tokens=len(output) + LONGEST, end_tokens=pair.end_tokens)
    curve = None if costs is None else read_costs(costs, "vllm")[1]
    rule = make_policy(policy, LONGEST, curve)
    drafter = pair.drafter(end_tokens=None if drafts_end else frozenset())
    live = speculative_decode(pair.target, drafter, rule, [*prompt, output[0]], settings)
    steps, left = [], len(output) - 1
    for step in live.steps:
        if left > 0:
            steps.append([step.proposed, step.accepted])
        left -= step.accepted + 1
    return steps


def trimmed(steps: list[list[int]], most: int) -> list[list[int]]:
    """The steps where drafts are cut to what is left of ``most`` output tokens, as llama.cpp's server cuts them."""
    cut, left = [], most - 1
    for drafted, accepted in steps:
        room = max(left - 1, 0)
        cut.append([min(drafted, room), min(accepted, room)])
        left -= accepted + 1
    return cut
