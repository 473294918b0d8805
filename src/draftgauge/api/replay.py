"""Any policy on recorded runs, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgauge.api.datastore import read_stored
from draftgauge.api.runs import Run, fitted_here
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.verb import verb
from draftgauge.judging.acceptance import acceptance_by_context
from draftgauge.judging.batch_rows import batch_rows
from draftgauge.judging.evaluate import ALL_TASKS, evaluate_design
from draftgauge.judging.ranking import tune_rivals
from draftgauge.judging.replay import can_replay
from draftgauge.judging.verdict import say_verdict
from draftgauge.policies.base import Policy
from draftgauge.policies.ngrams import with_stored
from draftgauge.policies.spec import NO_DRAFT, WHOLE_BATCH, PolicySpec, read_policies, with_objects
from draftgauge.requests import ReplayRequest


@verb(ReplayRequest)
def replay(request: ReplayRequest, *, objects: Mapping[str, Policy] | None = None) -> list[dict[str, Any]]:
    """Replay policies on recorded runs, beside plain decoding, the best fixed length and the hindsight optimum.

    Without a choice of split, test prompts are judged where prompts name training and test ones, or a fitted policy saw
    some; else all.

    Args:
        request: what to replay; by default the policies of every comparison, fitted ones in the run's folder, and
            ``two-source`` fitted by :func:`~draftgauge.judging.fitting.replay_fitted`, without a datastore.
        objects: policies of your own by name, beside the named ones, or alone where none is named. Every run gets a
            fresh copy.

    Returns:
        Rows as :func:`draftgauge.judging.evaluate.evaluate` describes; the recommended policy's row over all tasks
        also has ``verdict``, in words. Where texts differ in length, those rows have ``acceptance_by_context``, the
        acceptance at depth 1, 2, ... by range of context. With a datastore, rows have ``datastore_tokens``; where
        there are several runs, ``run``. Of batches, as :func:`draftgauge.judging.batch_rows.batch_rows` describes.

    Raises:
        DraftgaugeError: for an unknown policy, or one fitted for other draft lengths or signals.
        TraceError: if the folder holds no complete trace, or lacks what was asked for.
    """
    objects = objects or {}
    if request.batches and objects:
        raise DraftgaugeError("in batches every request has a policy of its own: name policies, give no objects")
    default = not (request.policies or objects or request.batches)
    whole = WHOLE_BATCH if request.batches else ()  # run in any case
    asked = tuple(policy for policy in request.policies if policy not in whole)
    read_policies(asked)  # refused before any run is read
    rows: list[dict[str, Any]] = []
    runs = Run.find(request.folder)
    for run in runs:
        texts = (NO_DRAFT, "fixed", *run.usual_policies()) if default else asked
        policies = read_policies(texts, run.manifest.gamma_max)
        trace, costs = run.read(request.judged.tasks)
        design = run.design(policies, trace, request.judged.split)
        if request.batches:
            # Plain decoding and every fixed length are compared anyway.
            named = [PolicySpec.of(policy).text for policy in request.policies]
            others = tuple(policy for policy in named if policy not in ("fixed", NO_DRAFT))
            rows += batch_rows(design.trace, costs, request.batches, (*others, *WHOLE_BATCH))
            continue
        judged = [prompt.prompt_token for prompt in design.trace.prompts]
        stored = None if request.datastore is None else read_stored(request.datastore, costs.vocabulary, judged)
        made = with_objects({p.text: p.make(trace.gamma_max, costs) for p in policies}, objects)
        if default:
            made = {name: policy for name, policy in made.items() if can_replay(trace, policy)}
        rivals = tune_rivals(design.training, costs) if request.tune else None
        if stored is not None:
            for arms in (made, *(() if rivals is None else (rivals.arms,))):
                with_stored(list(arms.values()), stored)
        fitted = fitted_here(policies, design, costs) if default and stored is None else {}
        evaluated = evaluate_design(design, costs, {**made, **fitted}, rivals, stored)
        kept: dict[str, Any] = {} if stored is None else {"datastore_tokens": sum(map(len, stored.texts))}
        kept |= {"run": run.name} if len(runs) > 1 else {}
        own = [dict(row) | kept for row in evaluated]
        by_context = acceptance_by_context(design.trace)
        for row in own if len(by_context) > 1 else ():
            row |= {"acceptance_by_context": by_context} if row["task"] == ALL_TASKS else {}
        say_verdict([row for row in own if row["task"] == ALL_TASKS], run.manifest.command)
        rows += own
    return rows
