"""Fit the rule of two sources to dense traces; see :mod:`draftgauge.policies.two_source` for what is fitted."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import TraceError
from draftgauge.judging.evaluate import task_masks
from draftgauge.judging.fitting.logistic import DIGITS, accepted_by_depth, common_gamma_max, fit_logistic
from draftgauge.judging.replay import Replay, replay, replay_each
from draftgauge.judging.splits import MIN_PROMPTS, Design, keys_of
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FITTED_HERE, FittedPolicy, fitted_policy
from draftgauge.policies.ngrams import MOST_MATCHED, NgramIndex
from draftgauge.policies.stopping import logit
from draftgauge.policies.two_source import SIGNALS, TWO_SOURCE, LookupNumbers, TwoSource, TwoSourceNumbers, lookup_terms
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, check_prompt_tokens, conversations, draft_caps, select

Floats = NDArray[np.float64]

FITTED = TWO_SOURCE + FITTED_HERE
"""The setting whose numbers were fitted to the drafter, as ``draftgauge fit`` does."""
TAIL_WEIGHTS = (0.0, 0.3, 1.0)


def fit_two_source(traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int = 0) -> FittedPolicy:
    """Fit the chances of drafted and looked-up tokens, then, by the speed that the rule reaches, ``tail_weight`` and
    whether to draft at all. A drafter that is not worth its time is never asked, as none of its tokens counts on.

    Args:
        traces: dense and greedy, of the prompts to fit on, one for each pair or compression; of one ``gamma_max``.
    """
    if any(trace.sampled is not None for trace in traces):
        raise TraceError(
            "two-source looks tokens up in the text, and a trace of sampled decoding does not hold the target's "
            "chances of those: fit it on runs recorded at temperature 0"
        )
    gamma_max = common_gamma_max(traces)
    drafted, looked_up = (np.concatenate(parts) for parts in zip(*map(_examples, traces), strict=True))
    if not len(looked_up):
        raise TraceError("in these texts no words occur twice, so that nothing can be looked up: record more prompts")
    weights, constant = fit_logistic(drafted[:, :-1], drafted[:, -1] > 0)
    by_match, lookup_constant = fit_logistic(looked_up[:, :-1], looked_up[:, -1] > 0)
    constant, slope, agrees, disagrees = np.round([constant, *weights], DIGITS).tolist()
    lookup = LookupNumbers(*np.round([lookup_constant, *by_match], DIGITS).tolist())
    numbers = TwoSourceNumbers(constant, slope, agrees, disagrees, lookup, accepted_by_depth(traces))
    never = replace(numbers, accepted_by_depth=(0.0,) * gamma_max)
    tried = (never, *(replace(numbers, tail_weight=weight) for weight in TAIL_WEIGHTS))
    candidates = [_scaled(each, traces, costs) for each in tried]
    best = max(candidates, key=lambda each: each[1])[0]
    return FittedPolicy(TWO_SOURCE, gamma_max, SIGNALS, to_mapping(best), trained_on=keys_of(traces))


def replay_fitted(design: Design, costs: CostCurve) -> Replay:
    """The rule of two sources fitted to a drafter on the training prompts of a design. Where there are none, each half
    of a task's conversations is judged by the fit on the other, alternating.

    Raises:
        TraceError: for fewer than 8 prompts to fit on, sampled ones, or texts in which nothing is looked up.
    """
    trace, count = design.trace, len(design.trace.prompts)
    if design.train is not None:
        return replay(trace, fitted_to(design.train, costs), costs)
    numbers, half = conversations(trace), np.zeros(count, np.int64)
    for _, mask in reversed([*task_masks(trace)]):  # of all prompts first, then by task
        half[mask] = np.unique(numbers[mask], return_inverse=True)[1].reshape(-1) % 2
    policies = [fitted_to(select(trace, half != own), costs) for own in (0, 1)]
    return replay_each(trace, [policies[own] for own in half.tolist()], costs)


def fitted_to(trace: Trace, costs: CostCurve) -> Policy:
    """The rule of two sources with numbers fitted to a drafter."""
    if len(trace.prompts) < MIN_PROMPTS:
        raise TraceError(f"{len(trace.prompts)} prompts are too few to fit on, {MIN_PROMPTS} are needed")
    return fitted_policy(fit_two_source([trace], [costs]), trace.gamma_max, costs)


def _scaled(
    numbers: TwoSourceNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]
) -> tuple[TwoSourceNumbers, float]:
    """The numbers with the rate that the rule reaches on the traces; and the mean logarithm of its speed."""
    scales, speeds = [], []
    for trace, curve in zip(traces, costs, strict=True):
        policy = TwoSource(numbers, curve)
        speeds.append(replay(trace, policy, curve).tokens_per_second)
        scales.append(speeds[-1] / policy.prices.rate)
    return replace(numbers, rate_scale=round(float(np.mean(scales)), DIGITS)), float(np.mean(np.log(speeds)))


def _examples(trace: Trace) -> tuple[Floats, Floats]:
    """Drafted and looked-up tokens of every position, each sort up to the first wrong one. Drafted ``[n, 4]``: logit of
    confidence, whether a match agrees and disagrees, whether it was accepted. Looked up after each accepted draft
    ``[m, 4]``: :func:`~draftgauge.policies.two_source.lookup_terms`, whether it was the output's."""
    check_prompt_tokens(trace)
    drafted, looked_up = array("d"), array("d")  # rows of four, one after the other
    caps, index = draft_caps(trace).tolist(), NgramIndex()
    for number, prompt in enumerate(trace.prompts):
        first, end = trace.offsets[number : number + 2].tolist()
        output = trace.token[first:end].tolist()
        index.reset()
        index.extend(prompt.prompt_token)
        for position, row in enumerate(range(first, end)):
            accepted = int(trace.accepted[row])
            tokens = trace.draft_token[row].tolist()
            logits = logit(trace.confidence[row].astype(np.float64)).tolist()
            context = index.text[-MOST_MATCHED:]
            for depth in range(accepted + 1):
                match = index.match(context[-MOST_MATCHED:])
                tail, at = list(context), position + depth
                looked = match
                while looked is not None and at < len(output) and at - position < trace.gamma_max:
                    looked_up.extend((*lookup_terms(looked), output[at] == looked.token))
                    if output[at] != looked.token:
                        break
                    tail.append(looked.token)
                    at += 1
                    looked = index.match(tail[-MOST_MATCHED:])
                if depth < min(accepted + 1, caps[row]):
                    agrees = match is not None and match.token == tokens[depth]
                    drafted.extend((logits[depth], agrees, match is not None and not agrees, depth < accepted))
                if depth < accepted:
                    context.append(tokens[depth])
            index.extend([output[position]])
    return np.array(drafted, np.float64).reshape(-1, 4), np.array(looked_up, np.float64).reshape(-1, 4)
