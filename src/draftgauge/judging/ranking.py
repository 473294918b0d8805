"""Drafters of one target, recorded over the same outputs, ranked by modelled speed at the best setting of each.

A fitted policy must not be compared with rivals at defaults that their authors chose for other pairs. So the training
prompts are replayed at every point of each policy's grid (:func:`~draftgauge.policies.spec.register_policy`), for
one cost curve. The fastest point is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.acceptance import CONTEXTS, acceptance_by_depth
from draftgauge.judging.evaluate import ALL_TASKS, Rivals, task_masks
from draftgauge.judging.fitting import FITTED, replay_fitted
from draftgauge.judging.replay import Replay, best_fixed_gamma, can_replay, plain_replay, replay
from draftgauge.judging.splits import Design, design_of
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.judging.verdict import LOOKUP, recommended
from draftgauge.policies.spec import NO_DRAFT, PolicySpec, compared_policies, grid_specs, make_policy, tunable_policies
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, conversations, select

LOOKUPS = (LOOKUP, "prompt_lookup")
ENGINE_RULES = ("suffix", "ngram-mod", "vllm-ngram")  # of lookup, ranked as drafters; recorded like prompt lookup
Mask = NDArray[np.bool_]


class Ranked(NamedTuple):
    """A drafter at its best setting on the prompts judged on."""

    setting: str
    trace: Trace
    costs: CostCurve
    of: Replay


def rank_rows(recorded: Mapping[str, tuple[Trace, CostCurve]]) -> list[dict[str, Any]]:
    """Drafters from the fastest to the slowest, plain decoding ("no-draft") among them.

    The setting of each is the simplest that is level with its fastest
    (:func:`~draftgauge.judging.verdict.recommended`). It is a fixed length, a rule with its default numbers, or
    ``two-source`` fitted to this drafter on other prompts. Engines' rules of lookup are settings of themselves alone.

    Returns:
        One row for each drafter and group of prompts (a ``task``, a range of ``context``, all). It has ``drafter``,
        ``rank`` by speed on all prompts, ``policy`` (its best setting), ``prompts``. ``tokens_per_second`` has ``_low``
        and ``_high``; ``ratio_to_plain``; ``tokens_per_step``, the target's own token counted, and ``source_model``,
        the drafter's. ``gain`` over the first with ``_low``, ``_high`` and ``p_value``, and whether it is ``level``
        with it. ``gain_over_lookup`` with ``_low`` and ``_high`` where prompt lookup is one of the drafters.
        ``alpha_1``, ... acceptance by depth; ``cost_ratio`` of drafting a token to verifying; ``cost_doubt``. Intervals
        are 95%, resampled by prompt, the turns of a conversation together.
    """
    rules = [rule for rule in compared_policies() if rule != LOOKUP]  # which is a drafter here
    ranked = {
        name: at_best(design_of(trace), costs, (name,) if name in ENGINE_RULES else rules)
        for name, (trace, costs) in recorded.items()
    }
    first = next(iter(ranked.values()))
    ranked[NO_DRAFT] = first._replace(setting="plain", of=plain_replay(first.trace, first.costs))
    order = sorted(ranked, key=lambda name: -ranked[name].of.tokens_per_second)
    lookups = [ranked[name] for name in LOOKUPS if name in ranked]
    over = {"gain": ranked[order[0]]} | ({"gain_over_lookup": lookups[0]} if lookups else {})
    return [
        _row(name, order.index(name) + 1, of, over, group, mask)
        for name, of in ((name, ranked[name]) for name in order)
        for group, mask in _groups(of.trace)
    ]


def on_one_target(curves: Mapping[str, CostCurve]) -> dict[str, CostCurve]:
    """Costs of several drafters, measured one after the other, as if the target had run equally fast for all of them.

    Its passes are the same whoever drafts. Of those with the longest drafts, the curve of most contexts says how they
    grow with the context. The curve that other work disturbed least, that of the shortest passes, says how fast they
    are. What a drafter takes is scaled by how fast the target ran beside it.
    """
    verified = np.arange(1, min(curve.gamma_max for curve in curves.values()) + 2)

    def of_target(curve: CostCurve, contexts: tuple[int, ...]) -> float:
        return float(curve.verify_seconds(verified, np.array(contexts)[:, None]).sum())

    widest = min(curves.values(), key=lambda c: (-c.gamma_max, -len(c.contexts), of_target(c, c.contexts)))
    paces = {name: of_target(c, c.contexts) / of_target(widest, c.contexts) for name, c in curves.items()}
    pace, places = min(paces.values()), np.array(widest.contexts)[:, None]
    scaled = {}
    for name, curve in curves.items():
        factor = pace / paces[name]
        draft = factor * curve.draft_seconds(np.arange(curve.gamma_max + 1), places)
        scaled[name] = replace(
            curve,
            contexts=widest.contexts,
            verify=tuple(tuple(pace * seconds for seconds in row[: curve.gamma_max + 1]) for row in widest.verify),
            plain=tuple(pace * seconds for seconds in widest.plain),
            draft=tuple(map(tuple, draft.tolist())),
            catch_up=tuple(factor * seconds for seconds in curve.catch_up),
            rollback=tuple(factor * seconds for seconds in curve.rollback),
            signals=factor * curve.signals,
        )
    return scaled


def at_best(design: Design, costs: CostCurve, rules: Sequence[str]) -> Ranked:
    """The simplest setting that is level with the fastest, of plain decoding, the best fixed length, ``rules`` and
    ``two-source`` fitted to the drafter. One of ``ENGINE_RULES`` stands against plain decoding alone.
    """
    trace, best = design.trace, PolicySpec.fixed(best_fixed_gamma(design.training, costs)).text
    alone = set(rules) <= set(ENGINE_RULES)
    names = (NO_DRAFT, *rules) if alone else (NO_DRAFT, best, *rules)
    policies = {each: make_policy(each, trace.gamma_max, costs) for each in names}
    tried = {name: replay(trace, of, costs) for name, of in policies.items() if can_replay(trace, of)}
    tried[NO_DRAFT] = plain_replay(trace, costs)
    with suppress(DraftgaugeError):  # too few prompts, or texts in which nothing is looked up
        tried |= {} if alone else {FITTED: replay_fitted(design, costs)}
    numbers = conversations(trace)
    setting = recommended({name: of.speed(numbers) for name, of in tried.items()}, best)
    return Ranked(setting, trace, costs, tried[setting])


def _groups(trace: Trace) -> Iterator[tuple[dict[str, str | None], Mask]]:
    """All prompts, then those of each task and of each range of lengths, where there are several."""
    tasks = [(task, mask) for task, mask in task_masks(trace) if task != ALL_TASKS]
    yield {"task": ALL_TASKS, "context": None}, np.ones(len(trace.prompts), np.bool_)
    if len(tasks) > 1:
        for task, mask in tasks:
            yield {"task": task, "context": None}, mask
    lengths = np.array([prompt.prompt_tokens for prompt in trace.prompts])
    ranges = [(name, (lengths >= least) & (lengths < most)) for least, most, name in CONTEXTS]
    ranges = [(name, mask) for name, mask in ranges if mask.any()]
    if len(ranges) > 1:
        for name, mask in ranges:
            yield {"task": ALL_TASKS, "context": name}, mask


def _row(
    name: str, rank: int, of: Ranked, over: Mapping[str, Ranked], group: Mapping[str, str | None], mask: Mask
) -> dict[str, Any]:
    numbers, outcome = conversations(of.trace), of.of
    speed = outcome.speed(numbers, mask)
    ratios = {key: speed.over(than.of.speed(numbers, mask)) for key, than in over.items()}
    compared = {column: value for key, ratio in ratios.items() for column, value in columns(key, ratio.gain).items()}
    depths = [] if name == NO_DRAFT else acceptance_by_depth(select(of.trace, mask), resamples=1)
    alphas = {f"alpha_{row['depth']}": row["alpha"] for row in depths if row["task"] == ALL_TASKS}
    return {
        "drafter": name,
        "rank": rank,
        **group,
        "policy": of.setting,
        "prompts": int(mask.sum()),
        **columns("tokens_per_second", speed.interval()),
        "ratio_to_plain": speed.estimate / plain_replay(of.trace, of.costs).speed(numbers, mask).estimate,
        "tokens_per_step": float(outcome.committed[mask].sum() / outcome.steps[mask].sum()),
        "source_model": float((outcome.accepted - outcome.accepted_text)[mask].sum() / outcome.steps[mask].sum()),
        **compared,
        "p_value": ratios["gain"].p_value,
        "level": ratios["gain"].level,
        "cost_ratio": None if name == NO_DRAFT else of.costs.cost_ratio(),
        "cost_doubt": None if name == NO_DRAFT else of.costs.doubt() or None,
        **alphas,
    }


def tune(name: str, trace: Trace, costs: CostCurve) -> tuple[str, float]:
    """The spec of a policy with the parameters that were fastest, and its tokens a second; the first of equals."""
    specs = _points(name, trace)
    speeds = {spec: replay(trace, make_policy(spec, trace.gamma_max, costs), costs).tokens_per_second for spec in specs}
    return max(speeds.items(), key=lambda each: each[1])


def tune_rivals(trace: Trace, costs: CostCurve, names: Sequence[str] | None = None) -> Rivals:
    if names is None:
        names = [name for name in tunable_policies() if _points(name, trace)]
        names = [name for name in names if can_replay(trace, make_policy(name, trace.gamma_max, costs))]
    tuned = dict(tune(name, trace, costs) for name in names)
    best = max(tuned, key=tuned.__getitem__)
    return Rivals({spec: make_policy(spec, trace.gamma_max, costs) for spec in tuned}, best)


def _points(name: str, trace: Trace) -> list[str]:
    longest = trace.gamma_max
    return [s for s in grid_specs(name) if int(PolicySpec.of(s).arguments.get("gamma_max", longest)) <= longest]
