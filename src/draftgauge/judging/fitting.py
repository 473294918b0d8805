"""Policies fitted to traces, numbers in and numbers out: ``stopping``, ``two-source`` and SpecKV's network.

:mod:`draftgauge.policies` says what is fitted. The first two are logistic regressions of acceptance.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import TraceError
from draftgauge.judging.evaluate import task_masks
from draftgauge.judging.replay import Replay, replay, replay_each, replay_lengths
from draftgauge.judging.splits import MIN_PROMPTS, Design, keys_of
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FITTED_HERE, FittedPolicy, fitted_policy
from draftgauge.policies.ngrams import MOST_MATCHED, NgramIndex
from draftgauge.policies.speckv import CANDIDATES, FEATURES, NAME, code_of
from draftgauge.policies.stopping import SIGNALS, STOPPING, StoppingNumbers, logit
from draftgauge.policies.two_source import SIGNALS as OF_TWO_SOURCES
from draftgauge.policies.two_source import TWO_SOURCE, LookupNumbers, TwoSource, TwoSourceNumbers, lookup_terms
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, check_prompt_tokens, conversations, draft_caps, select

Floats = NDArray[np.float64]

DIGITS = 4  # of what is kept
SMALLEST_SCALE = 1e-9  # of a term: below, it is constant but for rounding
UNITS, ITERATIONS = 16, 500  # of SpecKV's network
GRADIENT_TOLERANCE = 1e-8  # a mean over examples: sums in another order then lead to the same digits
FITTED = TWO_SOURCE + FITTED_HERE
"""The setting whose numbers were fitted to the drafter, as ``draftgauge fit`` does."""
TAIL_WEIGHTS = (0.0, 0.3, 1.0)


def fit_logistic(terms: Floats, outcomes: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Weights ``[K]`` and the constant of a logistic regression.

    Args:
        terms: ``[n, K]``; brought to unit scale for the fit, and the weights back to that of the terms.
        outcomes: ``[n]``.
    """
    from sklearn.linear_model import LogisticRegression  # a second to import, where most verbs fit nothing

    if outcomes.all() or not outcomes.any():
        raise TraceError("the traces hold no accepted and rejected tokens to fit on: record more prompts")
    mean, scale = terms.mean(axis=0), terms.std(axis=0)
    scale[scale < SMALLEST_SCALE] = 1.0
    model = LogisticRegression(solver="newton-cholesky", tol=GRADIENT_TOLERANCE)
    model.fit((terms - mean) / scale, outcomes)
    weights: Floats = model.coef_[0] / scale
    return weights, float(model.intercept_[0] - weights @ mean)


def judged_tokens(trace: Trace) -> NDArray[np.bool_]:
    """``[P, G]`` the drafted tokens that a verification judges: the accepted ones and the first rejected one."""
    return np.arange(1, trace.gamma_max + 1) <= np.minimum(trace.accepted + 1, draft_caps(trace))[:, None]


def accepted_by_depth(traces: Sequence[Trace]) -> tuple[float, ...]:
    """``[gamma_max]`` how often the token at each depth was accepted where those before it were, smoothed by one of
    each outcome. It is next to never at depths that no draft reached, as past the end of a block."""
    judged = sum(judged_tokens(trace).sum(axis=0) for trace in traces)
    depth = np.arange(1, traces[0].gamma_max + 1)
    accepted = sum((judged_tokens(trace) & (depth <= trace.accepted[:, None])).sum(axis=0) for trace in traces)
    rates = np.where(judged > 0, (accepted + 1) / (judged + 2), 0)
    return tuple(np.round(rates, DIGITS).clip(10.0**-DIGITS).tolist())


def common_gamma_max(traces: Sequence[Trace]) -> int:
    widths = {trace.gamma_max for trace in traces}
    if len(widths) != 1:
        raise TraceError(f"fit on traces of one gamma_max, not of {sorted(widths) or 'none'}")
    return widths.pop()


def fit_stopping(traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int = 0) -> FittedPolicy:
    """Calibrate the drafter's confidence on some traces.

    Every drafted token that was judged, that is, all up to the first rejected one of each position, is an example.

    Args:
        traces: dense, of the prompts to fit on, one for each pair or compression; of one ``gamma_max``.
        costs: not needed, as the numbers hold at any; every fit is given them.
    """
    gamma_max = common_gamma_max(traces)
    logits, accepted = [], []
    for trace in traces:
        judged = judged_tokens(trace)
        logits.append(logit(trace.confidence[judged].astype(np.float64)))
        accepted.append((np.arange(1, gamma_max + 1) <= trace.accepted[:, None])[judged])
    weights, constant = fit_logistic(np.concatenate(logits)[:, None], np.concatenate(accepted))
    numbers = StoppingNumbers(round(constant, DIGITS), round(float(weights[0]), DIGITS), accepted_by_depth(traces))
    return FittedPolicy(STOPPING, gamma_max, SIGNALS, to_mapping(numbers), trained_on=keys_of(traces))


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
    return FittedPolicy(TWO_SOURCE, gamma_max, OF_TWO_SOURCES, to_mapping(best), trained_on=keys_of(traces))


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


def fit_speckv(traces: Sequence[Trace], costs: Sequence[CostCurve] = (), seed: int = 0) -> FittedPolicy:
    """Fit the network: one hidden layer of 16 ReLU units, squared error on the acceptance rate, features as they are.

    As published, every text is walked with each fixed candidate length. The steps of these walks are the samples, with
    the signals of the step before. A trace also knows what other candidates would have got, so each step gives a row
    for every candidate.
    """
    from sklearn.neural_network import MLPRegressor

    gamma_max = common_gamma_max(traces)
    if gamma_max < CANDIDATES[1]:
        raise TraceError(
            f"{NAME} chooses among {CANDIDATES}: it needs a trace of gamma_max {CANDIDATES[1]} or more, not {gamma_max}"
        )
    candidates = tuple(gamma for gamma in CANDIDATES if gamma <= gamma_max)
    features, rates = (np.concatenate(part) for part in zip(*(_samples(t, candidates) for t in traces), strict=True))
    if len(rates) == 0:
        raise TraceError(f"{NAME} learns from steps that follow each other; the texts of this trace are too short")
    model = MLPRegressor(hidden_layer_sizes=(UNITS,), max_iter=ITERATIONS, random_state=seed % 2**32)
    model.fit(features, rates)
    (hidden, output), (hidden_bias, output_bias) = model.coefs_, model.intercepts_
    network = {
        "hidden": hidden.tolist(),
        "hidden_bias": hidden_bias.tolist(),
        "output": output[:, 0].tolist(),
        "output_bias": float(output_bias[0]),
    }
    error = float(np.mean((model.predict(features) - rates) ** 2))
    scores = {"rows": len(rates), "mean_squared_error": error, "variance": float(rates.var())}
    compressions = [trace.compression for trace in traces]
    return FittedPolicy(
        policy=NAME,
        gamma_max=gamma_max,
        signals=FEATURES,
        parameters={"network": network, "compression": compressions[0], "fitted_on": compressions},
        provenance={"compressions": compressions, "seed": seed, "training": scores},
        trained_on=keys_of(traces),
    )


def _samples(trace: Trace, candidates: Sequence[int]) -> tuple[Floats, Floats]:
    """Features ``[rows, 6]`` and acceptance rates ``[rows]``."""
    code = float(code_of(trace.compression))
    summaries, targets = [], []
    for gamma in candidates:
        record = replay_lengths(trace, np.full(trace.positions, gamma)).record
        rows = record.rows(trace)
        follows = (record.prompt[1:] == record.prompt[:-1]) & (record.drafted[:-1] > 0)
        source, drafted = rows[:-1][follows], record.drafted[:-1][follows]
        within = np.arange(trace.gamma_max) < drafted[:, None]
        entropy, confidence = trace.entropy[source].astype(np.float64), trace.confidence[source].astype(np.float64)
        figures = (
            np.where(within, entropy, 0.0).sum(1) / drafted,
            np.where(within, confidence, 0.0).sum(1) / drafted,
            np.where(within, entropy, -np.inf).max(1),
            np.where(within, confidence, np.inf).min(1),
        )
        summaries.append(np.stack(figures, axis=1))
        targets.append(rows[1:][follows])
    signals, target = np.concatenate(summaries), np.concatenate(targets)
    most = draft_caps(trace)[target]
    features, rates = [], []
    for gamma in candidates:
        drafted = np.minimum(gamma, most)
        some = drafted > 0
        given = np.broadcast_to([code, float(gamma)], (int(some.sum()), 2))
        features.append(np.concatenate([signals[some], given], axis=1))
        rates.append(np.minimum(drafted, trace.accepted[target])[some] / drafted[some])
    return np.concatenate(features), np.concatenate(rates)
