"""Named sizes of the study; each is a function that returns a whole configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.models.folder import PAIR_FOLDER, REFERENCE
from draftgauge.studies.kvshot.cells import BLOCK, EQUAL_WIDTH, FEATURES_NAME, HEADS, Evaluation, Study, Tuning, Variant
from draftgauge.training.reuse.request import SELF, TrainingSpec

ROPE = "project-rope"
LAPTOP: dict[str, Any] = {"questions": 800, "new_tokens": 96, "steps": 200, "batch": 4, "cache": Path(FEATURES_NAME)}
SHORT = LAPTOP | {"questions": 400, "steps": 100, "checkpoint_every": 25, "log_every": 25}
GPU: dict[str, Any] = {"questions": 12000, "steps": 3000, "batch": 16}
PER_TASK = 24  # of four tasks: 96 prompts
HIDDEN, CONTROL = Variant("hidden"), Variant("control")
KV = Variant("kv", injection=ROPE)
KV_TWO, KV_DEEP = replace(KV, layers=2), replace(KV, layers=4)
HYBRID = Variant("hybrid", injection=ROPE)
CROSS = Variant("cross", injection=ROPE)


def at_equal_width(variant: Variant) -> Variant:
    return replace(variant, capacity=EQUAL_WIDTH)


def warm(variant: Variant) -> Variant:
    """Started from the trained ``hidden`` drafter, at the target's own width: all shapes must agree."""
    return replace(at_equal_width(variant), init="warm")


MAIN = (HIDDEN, KV, HYBRID, CONTROL)
BOTH_RECIPES = (*MAIN, *(replace(one, remedy=BLOCK) for one in MAIN))
# Every remedy on the drafters whose bottleneck it aims at.
REMEDIED = (replace(KV, remedy="kv-gradient-50"), *(replace(one, remedy="depths-12") for one in (HIDDEN, KV, HYBRID)))


def smoke(request: TrainingSpec) -> Study:
    """The main designs for two steps, untuned, in a minute or two: whether a study works. Trained on the first bundled
    training prompts, as generated questions take a while to make."""
    bundled = PAIR_FOLDER / "prompts" / "train.jsonl" if request.target == REFERENCE else None
    request = replace(request, prompts=request.prompts or bundled, questions=8, new_tokens=16, length=256)
    return Study(
        "smoke",
        MAIN,
        (0, 1),
        # One thread: on a busy machine the threads of such small passes mostly wait for each other.
        replace(request, steps=2, batch=2, checkpoint_every=2, log_every=1, attention_start=SELF, threads=1),
        Evaluation(
            per_task=1,
            max_new_tokens=12,
            live_prompts=1,
            tree_prompts=1,
            latency_prompts=1,
            bottleneck_prompts=1,
            curve_prompts=1,
        ),
    )


def quick(request: TrainingSpec) -> Study:
    """The designs on 96 prompts: five seeds for the two that predictions are about, three for the others.

    The target's features are computed once for all cells and kept on disk (1 GB for the bundled target).
    """
    return Study(
        "quick",
        MAIN,
        (0, 1, 2, 3, 4),
        replace(request, **LAPTOP),
        Evaluation(per_task=PER_TASK, live_prompts=12, tree_prompts=4, latency_prompts=2, bottleneck_prompts=12),
        Tuning(steps=100, per_task=4),
        other_seeds=3,
        decisive=(HIDDEN, KV),
    )


def depth(request: TrainingSpec) -> Study:
    """Quick, with KV drafters of two and four layers at equal parameters, and of one and four at the target's width. In
    the folder of a quick study only the added ones are left to do."""
    base, wide = quick(request), (at_equal_width(KV), at_equal_width(KV_DEEP))
    variants = (*base.variants, KV_TWO, KV_DEEP, *wide)
    return replace(base, preset="depth", variants=variants, decisive=(*base.decisive, KV_DEEP, *wide))


def width(request: TrainingSpec) -> Study:
    """The designs that predictions are about, at equal width as in the paper, and the control."""
    wide = at_equal_width(HIDDEN), at_equal_width(KV)
    return replace(quick(request), preset="width", variants=(*wide, CONTROL), decisive=wide)


def remedies(request: TrainingSpec) -> Study:
    """Quick, with every remedy against a bottleneck beside the same drafter without it. In the folder of a quick study
    only the added ones are left to do."""
    base = quick(request)
    variants = (*base.variants, at_equal_width(HIDDEN), warm(HYBRID), *REMEDIED)
    return replace(base, preset="remedies", variants=variants)


def block(request: TrainingSpec) -> Study:
    """The designs trained token by token and block-wise, on as many positions each: two million answer tokens; three
    with a Markov head too. Learning rates are tuned, the best of four, in a quarter of the steps. After 100 of 1,152 a
    rate won that cost ``hidden`` 0.4 tokens a step. On a GPU batches are four times as large."""
    base, questions = quick(request), GPU["questions"]
    if request.target != REFERENCE:
        # Else a head of 50,000 tokens or more takes most of the time; the bundled target has 4,096.
        base, questions = quick(replace(request, draft_vocabulary=8192)), None
    steps: dict[str, Any] = {"steps": 4500, "checkpoint_every": 1125, "log_every": 50}
    if _on_gpu(request):
        steps = {"steps": 1152, "checkpoint_every": 288, "log_every": 48, "batch": 16, "cache": None}
    return replace(
        base,
        preset="block",
        variants=(*BOTH_RECIPES, *(replace(one, remedy=head) for one in (HIDDEN, KV, CONTROL) for head in HEADS)),
        seeds=(0, 1),
        decisive=(),
        request=replace(base.request, questions=questions, new_tokens=128, **steps),
        evaluation=replace(base.evaluation, curve_prompts=24),
        tuning=Tuning(steps=steps["checkpoint_every"], per_task=4, trials=4),
    )


def short_block(request: TrainingSpec) -> Study:
    """Block on some 29,000 positions, untuned, with 48 prompts: some hours on a laptop. What needs long training it
    cannot show."""
    study = block(request)
    return replace(
        study,
        preset="short-block",
        request=replace(study.request, **SHORT),
        evaluation=replace(study.evaluation, per_task=12, live_prompts=8, tree_prompts=0, bottleneck_prompts=8),
        tuning=None,
    )


def full(request: TrainingSpec) -> Study:
    """Every row of the paper's step-wise table on 96 prompts, at equal parameters and at equal width, and the remedies.
    Five seeds for the rows that verdicts are about and the other plain designs, three for the rest.

    Without a GPU its trainings are those of quick, so that it continues a folder of quick or depth.
    """
    injections = tuple(replace(KV, injection=injection) for injection in ("concat", "project"))
    depths = tuple(replace(KV, layers=layers) for layers in (1, 2, 3, 4))
    matched = (HIDDEN, *injections, *depths, HYBRID, CROSS, CONTROL)
    wide = tuple(at_equal_width(variant) for variant in (HIDDEN, *depths, HYBRID, CROSS))
    study = replace(
        quick(request),
        preset="full",
        variants=(*matched, *wide, warm(HYBRID), warm(CROSS), *REMEDIED),
        decisive=(HIDDEN, KV, KV_DEEP, HYBRID, CONTROL, *(at_equal_width(one) for one in (HIDDEN, KV, KV_DEEP))),
    )
    if not _on_gpu(request):
        return study
    return replace(
        study,
        request=replace(request, **GPU),
        evaluation=Evaluation(per_task=PER_TASK, max_new_tokens=128, tree_prompts=48, latency_prompts=8),
        tuning=Tuning(steps=GPU["steps"] // 4),
    )


def _on_gpu(request: TrainingSpec) -> bool:
    from draftgauge.models.device import choose_device  # with torch, which pages do without

    return choose_device(request.device).type != "cpu"


PRESETS: dict[str, Callable[[TrainingSpec], Study]] = {
    preset.__name__.replace("_", "-"): preset
    for preset in (smoke, quick, depth, width, remedies, short_block, block, full)
}


def make_study(preset: str, request: TrainingSpec, held_out: str | Path | None = None) -> Study:
    """The study of a preset on a target.

    Args:
        preset: one of :data:`PRESETS`.
        request: target, prompts and device; the preset fills in the rest.
        held_out: prompt file to measure on, if not the preset's.

    Raises:
        DraftgaugeError: for an unknown preset.
    """
    if preset not in PRESETS:
        raise DraftgaugeError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}")
    study = PRESETS[preset](request)
    assert all(variant.starts_from in (None, *study.variants) for variant in study.variants)
    return study if held_out is None else replace(study, evaluation=replace(study.evaluation, prompts=str(held_out)))
