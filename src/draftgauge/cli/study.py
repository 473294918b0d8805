"""``draftgauge study``: the papers' comparisons as runnable studies."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import IncompleteError, console, errors, escaped, named, progress, say, show_table
from draftgauge.core.verb import busy_note, machine_load
from draftgauge.requests import StudyKvshotRequest, StudySpeckvRequest

POOLED = named("drafter", "alpha_1", "alpha_4", "alpha_7", "retention", "agreement_1", "agreement_7") | {
    "mat": "MAT, all positions [95%]",
    "live_mat": "MAT, live",
    "tree_mat": "MAT, trees",
}
DECAY = named("drafter", *(f"alpha_{depth}" for depth in range(1, 8))) | {
    "compared_depth": "compared at depth",
    "loss": "lost there [95%]",
    "retention": "retention [95%]",
}
PLAN = named("stage", "runs", "left") | {"steps": "steps a run"} | named("hours", "hours_left")
VERDICTS = {
    "prediction": "",
    "verdict": "verdict",
    "difference": "difference [95%]",
    "seeds": "seeds",
    "p_value": "p",
    "p_seeds": "p of seeds",
    "statement": "what was asked",
    "reason": "why not",
}
POLICIES = named("policy") | {"compression": "target", "expected_tokens": "expected tokens/step"} | named("published")
PREDICTORS = named("model", "test_correlation") | {
    "published_correlation": "published",
    "test_mse": "test MSE",
    "decision_ms": "ms a decision",
}
SPLIT = {
    "basis": "measured by",
    "compression": "target",
    "longer_percent": "drafting 8, %",
    "choosing_percent": "choosing, %",
}
SPEED = {"compression": "target", "gamma": "gamma", "tokens_per_second": "measured tokens/s [95%]"}


def kvshot(request: StudyKvshotRequest) -> list[dict[str, Any]]:
    from draftgauge.api.report import REPORT_NAME
    from draftgauge.api.study import study_kvshot
    from draftgauge.studies.kvshot.decay import decay_said
    from draftgauge.studies.kvshot.results import summary

    with progress() as advance:
        outcome = study_kvshot(request, progress=advance)
    if request.decay:
        show_table("Acceptance by depth, the drafter that loses most first", outcome.rows, DECAY)
        console.print(decay_said(outcome.rows), highlight=False)
        return outcome.rows
    if request.plan:
        show_table("Before anything starts", outcome.rows, PLAN)
        if said := busy_note(machine_load()):
            console.print(said, highlight=False)
        console.print(
            "Hours are of one job after the other. Answers and held-out texts, made once, come on top. Stop at any "
            "time: the folder keeps what is done."
        )
        return outcome.rows
    show_table("Pooled over seeds", summary(outcome.rows), POOLED)
    show_table("Predictions", (row for row in outcome.rows if "prediction" in row), VERDICTS)
    errors.print(f"wrote {request.out / REPORT_NAME}", highlight=False, markup=False, soft_wrap=True)
    if outcome.left and request.so_far:
        errors.print(f"{outcome.left} cells are left; without --so-far the study goes on.")
    for name, message in outcome.failures.items():
        errors.print(f"[bold red]cell {escaped(name)} failed:[/] {escaped(message)}", soft_wrap=True, highlight=False)
    if outcome.failures:
        errors.print("The same command tries the failed cells again.")
        raise IncompleteError(outcome.rows)
    return outcome.rows


def speckv(request: StudySpeckvRequest) -> list[dict[str, Any]]:
    from draftgauge.api.report import REPORT_NAME
    from draftgauge.api.study import study_speckv
    from draftgauge.studies.speckv.study import improvement

    with progress() as advance:
        rows = study_speckv(request, progress=advance)

    def table(name: str, finding: str | None = None) -> list[dict[str, Any]]:
        return [row for row in rows if row["table"] == name and finding in (None, row.get("finding"))]

    show_table("As published: expected tokens a step, predicted by the fitted model", table("policies"), POLICIES)
    show_table("As published: predictors of acceptance, on 20% of the steps", table("predictors"), PREDICTORS)
    console.print(f"SpecKV-fast over fixed-4: {improvement(rows)}\n", highlight=False)
    show_table("What the records say: where the gain over 4 comes from", table("honest", "gain_split"), SPLIT)
    show_table("What the records say: speed", table("honest", "tokens_per_second"), SPEED)
    if request.out is not None:
        say(f"wrote {request.out / REPORT_NAME}")
    return rows
