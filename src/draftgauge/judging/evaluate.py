"""Policies on a trace as rows: modelled speed with intervals, beside plain decoding, best fixed and hindsight."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import TRAIN
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import Replay, _best_of, best_fixed_gamma, plain_replay, replay, replay_fixed_all
from draftgauge.judging.speed import LEVEL
from draftgauge.judging.splits import EVERYTHING, Design
from draftgauge.judging.statistics.bootstrap import TEST_RESAMPLES, columns, holm
from draftgauge.judging.verdict import recommend
from draftgauge.policies.base import Extends, Policy
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.ngrams import StoredTexts
from draftgauge.policies.spec import NO_DRAFT, PolicySpec
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, conversations, distinct_ratio, prompt_gram_counts

ALL_TASKS = "all"
SAME_PROMPTS = "same prompts"
HINDSIGHT = "hindsight"
HINDSIGHT_BOTH = "hindsight-two-sources"
BOUNDS = {HINDSIGHT: False, HINDSIGHT_BOTH: True}
"""The optimum with all outcomes known, by name -> whether tokens of the text may be appended."""

Row = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Rivals:
    """New policies by name whose parameters were chosen on training prompts, and the fastest of them there."""

    arms: Mapping[str, Policy]
    best: str


@dataclass(frozen=True)
class Compared:
    """What policies are compared with.

    Attributes:
        best_fixed: the fixed length, chosen on training prompts; if None, the best one on the prompts evaluated on,
            which favours the fixed length.
        best_rival: name of the fastest tuned policy, one of those evaluated; chosen on training prompts.
        tuned: names of policies whose parameters were chosen on training prompts for this cost curve.
        references: names of policies that are only compared with: fixed lengths and bounds.
    """

    best_fixed: int | None = None
    best_rival: str | None = None
    tuned: Collection[str] = ()
    references: Collection[str] = ()


def evaluate(
    trace: Trace,
    costs: CostCurve,
    policies: Mapping[str, Policy | Replay],
    *,
    compared: Compared | None = None,
    split: str = EVERYTHING,
    resamples: int = TEST_RESAMPLES,
) -> list[Row]:
    """One flat row for every policy on every task of a trace, and on all prompts together (task "all").

    Seconds are modelled from the cost curve; intervals are 95%, resampled by prompt, the turns of a conversation
    together. Keys of a row:

    * ``policy``, ``compression``, ``task``, ``split``, ``prompts``, ``steps``, ``tokens``;
    * ``tuned``: whether its parameters were chosen for this cost curve, on the prompts of ``best_fixed_from``;
    * ``tokens_per_step``, ``drafted_per_step``, ``appended_per_step`` (looked up in the text), ``acceptance_rate`` of
      both together (None if nothing was proposed);
    * ``source_model``, ``source_text``: accepted tokens per step that were drafted, and that were looked up;
    * ``distinct_4grams``: distinct 4-grams of each output over all of them, the outputs' share that does not repeat;
    * ``tokens_per_second`` with ``tokens_per_second_low`` and ``_high``;
    * ``ratio_to_plain`` with ``_low`` and ``_high``: over plain decoding as measured in the cost curve;
    * ``cost_ratio``: of the cost curve, a drafted token over a verification;
    * ``cost_doubt``: why the cost curve is not to be trusted, or None;
    * ``gain`` with ``gain_low`` and ``gain_high``: over the one fixed length ``best_fixed_gamma``, the same for all
      tasks, minus 1. It may be 0, drafting nothing; ``best_fixed_from`` says on which prompts it was chosen;
    * ``p_value``: of no gain, two-sided, paired by prompt; ``p_holm``: adjusted for all policies compared on this task,
      ``references`` aside, for which it is None;
    * ``best_rival``: the fastest of the tuned policies on those prompts, with ``gain_over_rival``,
      ``gain_over_rival_low`` and ``_high`` over it; None without tuned policies;
    * ``captured``: share of the speed-up from that length to the drafter's hindsight optimum; None where that is
      below 1%;
    * ``recommended``: whether it is the simplest policy that is level with the fastest, see
      :func:`~draftgauge.judging.verdict.recommended`; of fixed lengths only the best one is a candidate.

    Args:
        trace: dense; the prompts to evaluate on.
        policies: by the name in their rows; new ones, as some learn across prompts, or finished replays of this trace.
    """
    against = compared or Compared()
    best_fixed = against.best_fixed
    if best_fixed is not None and not 0 <= best_fixed <= trace.gamma_max:
        raise DraftgaugeError(
            f"the fixed length to compare with must be 0 to {trace.gamma_max}, the trace's gamma_max, not {best_fixed}"
        )
    outcomes = {
        name: policy if isinstance(policy, Replay) else replay(trace, policy, costs)
        for name, policy in policies.items()
    }
    all_fixed = replay_fixed_all(trace, costs)
    best_gamma = _best_of(all_fixed) if best_fixed is None else best_fixed
    fixed, bound = all_fixed[best_gamma], outcomes.get(HINDSIGHT) or hindsight_optimum(trace, costs)
    grams, conversation = prompt_gram_counts(trace), conversations(trace)
    bases = {"plain": plain_replay(trace, costs), "fixed": fixed}
    bases |= {} if against.best_rival is None else {"rival": outcomes[against.best_rival]}
    groups = [
        (task, mask, {name: of.speed(conversation, mask) for name, of in bases.items()})
        for task, mask in task_masks(trace)
    ]
    ratio = costs.cost_ratio()
    rows: list[Row] = []
    for name, outcome in outcomes.items():
        for task, mask, base in groups:
            speed = outcome.speed(conversation, mask)
            steps, drafted = outcome.steps[mask].sum().item(), outcome.drafted[mask].sum().item()  # or means over walks
            accepted, text = float(outcome.accepted[mask].sum()), float(outcome.accepted_text[mask].sum())
            proposed = drafted + (outcome.appended - outcome.dropped)[mask].sum().item()
            gain = speed.over(base["fixed"], resamples).gain
            over_rival: Row = dict.fromkeys(("gain_over_rival", "gain_over_rival_low", "gain_over_rival_high"))
            if "rival" in base:
                over_rival |= columns("gain_over_rival", speed.over(base["rival"], resamples).gain)
            pace, slow, top = (1 / float(each.seconds[mask].sum()) for each in (outcome, fixed, bound))
            row: Row = {
                "policy": name,
                "compression": trace.compression,
                "task": task,
                "split": split,
                "cost_ratio": ratio,
                "cost_doubt": costs.doubt() or None,
                "tuned": name in against.tuned,
                "prompts": int(mask.sum()),
                "steps": steps,
                "tokens": int(outcome.committed[mask].sum()),
                "tokens_per_step": float(outcome.committed[mask].sum() / steps),
                "drafted_per_step": drafted / steps,
                "appended_per_step": float(outcome.appended[mask].sum() / steps),
                "acceptance_rate": accepted / proposed if proposed else None,
                "source_model": (accepted - text) / steps,
                "source_text": text / steps,
                "distinct_4grams": distinct_ratio(grams[mask]),
                **columns("tokens_per_second", speed.interval(resamples)),
                **columns("ratio_to_plain", speed.over(base["plain"], resamples)),
                "best_fixed_gamma": best_gamma,
                "best_fixed_from": SAME_PROMPTS if best_fixed is None else TRAIN,
                **columns("gain", gain),
                "p_value": gain.p_value,
                "p_holm": None,
                "best_rival": against.best_rival,
                **over_rival,
                "captured": None if top < slow * (1 + LEVEL) else (pace - slow) / (top - slow),
            }
            rows.append(row)
    for task, *_ in groups:
        tested = [row for row in rows if row["task"] == task and row["policy"] not in against.references]
        for row, adjusted in zip(tested, holm([cast(float, row["p_value"]) for row in tested]), strict=True):
            row["p_holm"] = adjusted
    candidates = {name: of.speed(conversation) for name, of in outcomes.items() if name not in BOUNDS}
    recommend(rows, candidates, PolicySpec.fixed(best_gamma).text, resamples)
    return rows


def evaluate_design(
    design: Design,
    costs: CostCurve,
    policies: Mapping[str, Policy | Replay],
    rivals: Rivals | None = None,
    stored: StoredTexts | None = None,
) -> list[Row]:
    """Policies beside drafting nothing, the best fixed length and the hindsight optimum, on the prompts of a design.

    Args:
        design: which prompts; the best fixed length is chosen on its training prompts where it has any.
        rivals: tuned on ``design.training``, to compare with.
        stored: earlier texts in which policies look tokens up too, for the bounds.

    Returns:
        Rows as :func:`evaluate` describes: "no-draft", the best fixed length, the policies, the tuned ones,
        "hindsight". There is "hindsight-two-sources" where a policy looks tokens up in the text. What they are compared
        with, all fixed lengths and the optimum, has no ``p_holm``.
    """
    best = best_fixed_gamma(design.training, costs)
    fixed = PolicySpec.fixed(best).text
    arms: dict[str, Policy | Replay] = {NO_DRAFT: FixedLength(0), fixed: FixedLength(best), **policies}
    arms |= {} if rivals is None else rivals.arms
    looks_up = any(isinstance(policy, Extends) for policy in arms.values())
    bounds = BOUNDS if looks_up else [HINDSIGHT]
    arms |= {name: hindsight_optimum(design.trace, costs, BOUNDS[name], stored) for name in bounds}
    return evaluate(
        design.trace,
        costs,
        arms,
        compared=Compared(
            best_fixed=None if design.train is None else best,
            best_rival=None if rivals is None else rivals.best,
            tuned={fixed, *(() if rivals is None else rivals.arms)},
            references={*bounds, NO_DRAFT, *(name for name in arms if name.startswith("fixed:"))},
        ),
        split=design.split,
    )


def task_masks(trace: Trace) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Every task in order of first appearance with its prompts ``[prompts]``, then all of them as "all". A task of that
    very name, as of a file ``all.jsonl``, has no figures of its own.
    """
    tasks = np.array([prompt.task for prompt in trace.prompts])
    for task in dict.fromkeys(tasks.tolist()):
        if task != ALL_TASKS:
            yield task, tasks == task
    yield ALL_TASKS, np.ones(len(tasks), np.bool_)
