"""Recorded runs as rows: every policy on every task, replayed and, where it was measured, live."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import current_compression
from draftgauge.judging.evaluate import ALL_TASKS, BOUNDS, HINDSIGHT, HINDSIGHT_BOTH, evaluate_design
from draftgauge.judging.fitting import FITTED
from draftgauge.judging.replay import Replay, can_replay, replay_fixed_all
from draftgauge.judging.splits import Design
from draftgauge.judging.verdict import Verdict, verdict_of
from draftgauge.policies import PolicySpec
from draftgauge.policies.base import Policy
from draftgauge.policies.spec import NO_DRAFT
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import Manifest, Run
from draftgauge.traces.trace import Trace

Row = dict[str, Any]
PLAIN = "plain"
MEASURED = ("policy", "compression", "task", "tokens_per_second", "mismatches")
"""What every live measurement has; rows of a replay have no mismatches, and must not pass for measured ones."""
BESIDE_POLICIES = {
    PLAIN: "plain decoding, one token a step",
    HINDSIGHT: "the exact optimum over all choices of length, knowing what the drafter drafts and the target accepts",
    HINDSIGHT_BOTH: "the same where what two-source looks up in the text may be appended",
    FITTED: "two-source with numbers fitted to this drafter, on other prompts than it is judged on",
    "transformers-generate": "generate() of transformers, no draft",
    "transformers-assisted": "generate(assistant_model=...) of transformers, at its defaults or the values named",
    "transformers-assisted-constant": "generate(assistant_model=...) of transformers at a constant length",
    "transformers-prompt-lookup": "generate(prompt_lookup_num_tokens=...) of transformers",
    "genai-generate": "LLMPipeline of OpenVINO GenAI, no draft",
    "genai-assisted": "LLMPipeline(draft_model=...) of OpenVINO GenAI at a constant length",
    "genai-prompt-lookup": "LLMPipeline(prompt_lookup=True) of OpenVINO GenAI at a constant length",
}


@dataclass(frozen=True)
class JudgedRun:
    """One recorded run, judged on the prompts of a design.

    Attributes:
        trace: the prompts judged on; ``split`` says which.
        rows: by task and policy, as :func:`~draftgauge.judging.evaluate.evaluate` has them, with
            ``live_tokens_per_second``, ``live_ratio_to_plain`` with ``_low`` and ``_high``, ``mismatched_prompts`` and
            ``near_ties`` of what was measured. Ratios are to plain decoding, live ones to that beside it. Every fixed
            length up to ``gamma_max`` is among them; 0 goes by the name "no-draft".
        verdict: the recommendation, of what was measured live where that is known, else by replay; ``other`` is the
            other one, where there are two.
    """

    folder: Path
    manifest: Manifest
    trace: Trace
    split: str
    cost: CostCurve
    rows: Mapping[tuple[str, str], Row]
    verdict: Verdict
    other: Verdict | None = None

    @property
    def name(self) -> str:
        return self.trace.compression

    @property
    def tasks(self) -> list[str]:
        tasks = [task for task in dict.fromkeys(task for task, _ in self.rows) if task != ALL_TASKS]
        return [ALL_TASKS, *(tasks if len(tasks) > 1 else ())]

    def fixed(self, task: str = ALL_TASKS) -> list[Row]:
        return [self.rows[task, PolicySpec.fixed(gamma).text] for gamma in range(self.trace.gamma_max + 1)]


def describe(policy: str) -> str:
    spec = PolicySpec.of(policy)
    if spec.of_file and not Path(policy).exists():  # of a live measurement, made elsewhere
        return "a fitted policy, whose file is not here"
    if spec.fitted is not None:
        return f"{spec.description}, fitted on {len(spec.fitted.trained_on)} prompts"
    return BESIDE_POLICIES.get(policy.partition(":")[0]) or spec.description


def best_length(fixed: Sequence[Row], shortest: int = 0) -> int:
    return max(range(shortest, len(fixed)), key=lambda gamma: fixed[gamma]["tokens_per_second"])


def judge_run(
    run: Run,
    design: Design,
    policies: Mapping[str, Policy | Replay],
    bench: Sequence[Mapping[str, Any]] = (),
) -> JudgedRun:
    """Replay policies, all fixed lengths and the bounds on the prompts of a run.

    Args:
        design: the prompts to judge on, and those that the best fixed length is chosen on.
        policies: new ones, by spec, of which what a trace cannot judge is left out; or finished replays.
        bench: rows of ``draftgauge bench``; those of other compressions, and of runs that failed, are left out.
    """
    trace, folder, manifest, costs = design.trace, run.folder, run.manifest, run.costs
    rated = [
        (live_row(row), row) for row in bench if "error" not in row and row.get("run") in (None, folder.absolute().name)
    ]
    own = [(mine, row) for mine, row in rated if mine["compression"] == trace.compression]
    live = {(mine["task"], mine["policy"]): mine for mine, _ in own}
    pooled = [row for mine, row in own if mine["task"] == ALL_TASKS and "prompts" in row and "recommended" in row]
    pooled = [row for row in pooled if not row["policy"].startswith(("transformers", "genai"))]
    arms: dict[str, Policy | Replay] = {
        PolicySpec.fixed(gamma).text: outcome for gamma, outcome in enumerate(replay_fixed_all(trace, costs))
    }
    arms |= {
        spec: policy
        for spec, policy in policies.items()
        if PolicySpec.of(spec).length is None and (isinstance(policy, Replay) or can_replay(trace, policy))
    }
    for spec in dict.fromkeys(PolicySpec.of(policy) for _, policy in live):
        if spec.text not in arms and spec.entry is not None and not spec.is_fitted and spec.length is None:
            policy = spec.make(trace.gamma_max, costs)
            if can_replay(trace, policy):
                arms[spec.text] = policy
    evaluated = evaluate_design(design, costs, arms)
    rows: dict[tuple[str, str], Row] = {(str(row["task"]), str(row["policy"])): dict(row) for row in evaluated}
    modelled = verdict_of([row for (task, _), row in rows.items() if task == ALL_TASKS], manifest.command)
    measured = verdict_of(pooled, live=True) if any(row["recommended"] for row in pooled) else None
    for task in dict.fromkeys(task for task, _ in rows):
        none = rows[task, NO_DRAFT]
        speed = none["tokens_per_second"] / none["ratio_to_plain"]
        plain = {"tokens_per_step": 1.0, "tokens_per_second": speed, "ratio_to_plain": 1.0}
        rows[task, PLAIN] = {"task": task, "policy": PLAIN, **plain}
    for (task, policy), row in live.items():
        if (task, PLAIN) in rows:
            rows[task, policy] = row | rows.get((task, policy), {})
    if measured is None or measured.unknown:
        return JudgedRun(folder, manifest, trace, design.split, costs, rows, modelled, measured)
    return JudgedRun(folder, manifest, trace, design.split, costs, rows, measured, modelled)


def policy_rows(run: JudgedRun, task: str, lengths: Sequence[int]) -> list[Row]:
    """The rows of a task's table: plain decoding, fixed lengths, other policies, baselines, bounds.

    Of fixed lengths those that were measured, the task's best and some others to show.
    """
    own = {policy: row for (of, policy), row in run.rows.items() if of == task}
    wanted = {*lengths, best_length(run.fixed(task), 1), 0}
    names = [policy for policy in own if policy not in (PLAIN, *BOUNDS)]
    lengths_of = {policy: PolicySpec.of(policy).length for policy in names}
    fixed = sorted(
        (gamma, policy)
        for policy, gamma in lengths_of.items()
        if gamma is not None and (gamma in wanted or "live_ratio_to_plain" in own[policy])
    )
    others = [policy for policy in names if lengths_of[policy] is None]
    ordered = [PLAIN, *(policy for _, policy in fixed), *others, *(bound for bound in BOUNDS if bound in own)]
    kinds = dict.fromkeys(BOUNDS, "bound") | {run.verdict.setting: "best"}
    return [own[policy] | {"kind": kinds.get(policy, "")} for policy in ordered]


def live_row(row: Mapping[str, Any]) -> Row:
    missing = [key for key in MEASURED if key not in row]
    if missing:
        raise DraftgaugeError(
            f"a row of the live measurements lacks {', '.join(missing)}; use the JSON of `draftgauge bench`"
        )
    names = {
        "tokens_per_step": "tokens_per_step",
        "live_tokens_per_second": "tokens_per_second",
        "live_ratio_to_plain": "ratio_to_plain",
        "live_ratio_to_plain_low": "ratio_to_plain_low",
        "live_ratio_to_plain_high": "ratio_to_plain_high",
        "mismatched_prompts": "mismatched_prompts",
        "near_ties": "near_ties",
    }
    figures = {key: row.get(name) for key, name in names.items()}
    wrong = [names[key] for key, value in figures.items() if not isinstance(value, int | float | None)]
    wrong += [key for key in ("policy", "compression", "task") if not isinstance(row[key], str)]
    if wrong:
        raise DraftgaugeError(
            f"{wrong[0]} of a row of the live measurements cannot be {row[wrong[0]]!r}; "
            "use the JSON of `draftgauge bench`"
        )
    spec = PolicySpec.of(row["policy"])
    return {
        "policy": (spec if spec.length is None else PolicySpec.fixed(spec.length)).text,
        "compression": current_compression(row["compression"]),
        "task": row["task"],
        **{key: value for key, value in figures.items() if value is not None and math.isfinite(value)},
    }
