"""Presets are whole, cells come in an order that can be run, and every design is tuned with the same budget."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from draftgauge.api.study import study_kvshot
from draftgauge.core.errors import DivergenceError, DraftgaugeError
from draftgauge.drafters.reuse.building import count_parameters
from draftgauge.models.folder import reference_path
from draftgauge.studies.kvshot import presets, tuning
from draftgauge.studies.kvshot.cells import EQUAL_PARAMETERS, REMEDIES, Evaluation, Study, Tuning
from draftgauge.studies.kvshot.presets import HIDDEN, KV, KV_DEEP, PRESETS, at_equal_width, make_study
from draftgauge.studies.kvshot.run import choose_configs, plan_study, run_study
from draftgauge.studies.kvshot.tuning import TRIALS, Trial, Tuned, read_tuned, save_tuned, search
from draftgauge.studies.kvshot.verdicts import PREDICTIONS, WIDE_PREDICTIONS
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.tracking import TrainResult
from draftgauge.training.reuse.train import train_drafter
from kvshot_results import cells, write_result
from small_trainings import small_training
from tiny import save_tiny

TARGET = AutoConfig.from_pretrained(reference_path())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_answers_the_predictions_it_has_cells_for(preset: str, tmp_path: Path) -> None:
    study = make_study(preset, TrainingSpec())
    assert ({HIDDEN, KV} <= set(study.variants)) == (preset != "width")  # P1 and P3
    assert ({*map(at_equal_width, (HIDDEN, KV))} <= set(study.variants)) == (preset in ("width", "full"))
    assert (KV_DEEP in study.variants) == (preset in ("depth", "full"))  # P2
    assert study.request.depths == 7
    assert study.request.questions or study.request.prompts, "a plan needs to know how many answers there are"
    made = cells(tmp_path, study)
    assert len(made) == sum(len(study.seeds_of(v)) for v in study.variants) == len({cell.name for cell in made})
    wide = WIDE_PREDICTIONS if preset in ("width", "full") else ()
    for prediction in (*PREDICTIONS, *wide):
        for variant in {prediction.better, prediction.worse} & set(study.variants):
            assert len(study.seeds_of(variant)) == (2 if preset in ("smoke", "block", "short-block") else 5)
    before: set[str] = set()
    for cell in made:
        assert cell.after is None or cell.after in before
        assert (cell.request.warm_start is not None) == (cell.variant.init == "warm")
        before.add(cell.name)


@pytest.mark.parametrize("gpu", [False, True])
def test_rates_are_tried_in_a_quarter_of_the_steps_or_more(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In trials of 100 steps for 1,152 a rate won that cost ``hidden`` 0.4 tokens a step."""
    monkeypatch.setattr(presets, "_on_gpu", lambda request: gpu)
    tuned = [study for study in (make_study(preset, TrainingSpec()) for preset in PRESETS) if study.tuning]
    assert len(tuned) >= 5
    for study in tuned:
        assert 4 * study.tuning.steps >= study.request.steps


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_agree_within_two_percent_on_the_bundled_target(preset: str) -> None:
    study = make_study(preset, TrainingSpec())
    configs = choose_configs(study, TARGET)
    assert set(configs) == set(study.variants)
    counts = [count_parameters(config) for variant, config in configs.items() if variant.capacity == EQUAL_PARAMETERS]
    assert max(counts) <= 1.02 * min(counts)
    for variant, config in configs.items():
        if variant.starts_from is not None:
            assert config.intermediate_size == configs[variant.starts_from].intermediate_size


@pytest.mark.parametrize(
    ("small", "large", "fewer_seeds"),
    [
        ("quick", "depth", ()),
        ("quick", "remedies", ()),
        ("remedies", "full", ()),
        ("depth", "full", ("kv-project-rope-2-layers",)),
    ],
)
def test_a_folder_of_one_preset_is_continued_by_a_larger_one(
    small: str, large: str, fewer_seeds: tuple[str, ...], tmp_path: Path
) -> None:
    """Cells that both have are the same to the last setting; without a GPU, whose trainings are larger."""
    begun, whole = (make_study(preset, TrainingSpec(device="cpu")) for preset in (small, large))
    assert begun.tuning == whole.tuning
    widths = [choose_configs(study, TARGET) for study in (begun, whole)]
    assert widths[0].items() <= widths[1].items()
    done, wanted = (
        {cell.name: cell.digest() for cell in cells(tmp_path, study, fixed=100)} for study in (begun, whole)
    )
    missing = {name for name in done if done[name] != wanted.get(name)}
    assert {name.split("-seed")[0] for name in missing} <= set(fewer_seeds)


def test_the_plan_counts_what_is_left_and_goes_by_what_cells_took(tmp_path: Path) -> None:
    study, folder = make_study("quick", TrainingSpec(device="cpu")), tmp_path / "study"
    rows = {row["stage"]: row for row in plan_study(study, folder)}
    assert list(rows) == ["tuning", "cells", "all"]
    assert rows["tuning"]["runs"] == rows["tuning"]["left"] == 8 * 4
    assert rows["cells"]["runs"] == rows["cells"]["left"] == 16
    assert rows["all"]["hours"] == pytest.approx(rows["tuning"]["hours"] + rows["cells"]["hours"])
    assert not folder.exists()
    for cell in cells(folder, study)[:3]:
        write_result(cell, [0.5] * 7, seconds=3600.0)
    later = {row["stage"]: row for row in plan_study(study, folder)}
    assert (later["cells"]["runs"], later["cells"]["left"]) == (16, 13)
    assert 13 / 4 < later["cells"]["hours_left"] < 13 * 4  # about an hour each, by their own sizes
    pace = [later[stage]["hours"] / rows[stage]["hours"] for stage in ("tuning", "cells")]
    assert pace[0] == pytest.approx(pace[1])


def test_the_plan_of_all_prompts_of_another_target(tmp_path: Path) -> None:
    prompts = small_training(tmp_path).prompts
    target = save_tiny(tmp_path / "wide", num_hidden_layers=4, vocab_size=9000, intermediate_size=8192)
    outcome = study_kvshot(
        preset="block", target=str(target), prompts=prompts, device="cpu", plan=True, out=tmp_path / "study"
    )
    assert [row["runs"] for row in outcome.rows] == [8 * 4, 11 * 2, 54]


@pytest.mark.parametrize(("name", "settings"), REMEDIES.items())
def test_a_change_sets_what_it_names_and_nothing_else(name: str, settings: dict) -> None:
    base = TrainingSpec()
    plain, changed = (vars(replace(KV, remedy=remedy).request(base)) for remedy in ("", name))
    assert {key for key in plain if plain[key] != changed[key]} == set(settings)


def test_one_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftgaugeError, match="seeds must be at least 2"):
        study_kvshot(out=tmp_path, seeds=1)


def test_unknown_preset() -> None:
    with pytest.raises(DraftgaugeError, match="smoke, quick, depth, width, remedies, short-block, block, full"):
        make_study("huge", TrainingSpec())


@pytest.mark.parametrize("gated", [True, False])
def test_the_budget_is_the_same_and_the_best_is_found(gated: bool) -> None:
    tried: list[Trial] = []

    def loss(trial: Trial) -> float:
        """Least at twice the rate, a short warm-up and an open gate."""
        tried.append(trial)
        return abs(trial.learning_rate - 2e-3) + abs(trial.warmup - 0.02) / 100 + abs(trial.gate_start - 2) / 1e6

    found = search(1e-3, 0.05, gated, loss)
    assert len(tried) == len(set(tried)) == TRIALS == 8
    assert tried[0].learning_rate == 0.5e-3
    assert {trial.learning_rate for trial in tried[:4]} == {0.5e-3, 1e-3, 2e-3, 4e-3}
    assert found.chosen == Trial(2e-3, 0.02, 2.0 if gated else 0.0)
    assert gated or {trial.gate_start for trial in tried} == {0.0}
    assert search(1e-3, 0.05, gated, loss, 4).trials == found.trials[:4]


def test_what_was_found_is_kept_with_what_it_is_of(tmp_path: Path) -> None:
    tuned = Tuned((Trial(1e-3, 0.05), Trial(2e-3, 0.05)), (2.0, 1.5))
    path = tmp_path / "tuning" / "kv.json"
    assert read_tuned(path, {"steps": 3}) is None
    save_tuned(path, tuned, {"steps": 3})
    assert read_tuned(path, {"steps": 3}) == tuned
    with pytest.raises(DraftgaugeError, match="other settings"):
        read_tuned(path, {"steps": 4})
    assert [row["chosen"] for row in tuned.rows({"design": "kv"})] == [False, True]


def test_a_study_tunes_before_its_seeds_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on where a trial diverges."""
    tried: list[float | None] = []

    def diverging(request: TrainingSpec, *further: Any) -> TrainResult:
        tried.append(request.learning_rate)
        if len(tried) == 4:
            raise DivergenceError("the loss is nan at step 1")
        return train_drafter(request, *further)

    monkeypatch.setattr(tuning, "train_drafter", diverging)
    words = ("a one", "a two", "a three")
    request = small_training(tmp_path, words, answers=None, depths=2, checkpoint_every=2)
    prompts = request.prompts
    evaluation = Evaluation(str(prompts), 1, max_new_tokens=8, tree_prompts=1, latency_prompts=0, bottleneck_prompts=1)
    variants = (HIDDEN, replace(HIDDEN, remedy="depths-12"))
    study = Study("test", variants, (0, 1), request, evaluation, Tuning(1, per_task=2))
    found = run_study(study, tmp_path / "study", prompts, prompts)
    assert found.failures == {}
    trials = [row for row in found.rows if "trial" in row]
    assert len(trials) == len(tried) == TRIALS
    measured = [row for row in trials if row["validation_kl"] is not None]
    assert [row["trial"] for row in trials if row not in measured] == [3]
    (chosen,) = {row["learning_rate"] for row in trials if row["chosen"]}
    assert min(measured, key=lambda row: row["validation_kl"])["chosen"]
    runs = [row for row in found.rows if "seed" in row]
    assert {row["learning_rate"] for row in runs} == {chosen}
    assert {row.get("remedy") for row in runs} == {None, "depths-12"}
    assert {row["depth"] for row in found.rows if "alpha" in row} == {1, 2}  # measured alike
    assert not (tmp_path / "study" / "tuning" / "hidden").exists()
    again = run_study(study, tmp_path / "study", prompts, prompts)
    assert len(tried) == TRIALS
    assert [row for row in again.rows if "trial" in row] == trials
    with pytest.raises(DraftgaugeError, match="tuning"):
        run_study(replace(study, tuning=replace(study.tuning, trials=4)), tmp_path / "study", prompts, prompts)


def test_trials_that_diverge_come_last(tmp_path: Path) -> None:
    found = search(1e-3, 0.05, False, lambda trial: math.nan if trial.learning_rate < 2e-3 else trial.learning_rate)
    assert found.chosen.learning_rate == 2e-3
    save_tuned(tmp_path / "kv.json", found, {})
    assert "NaN" not in (tmp_path / "kv.json").read_text()
    assert "Infinity" not in (tmp_path / "kv.json").read_text()
    assert read_tuned(tmp_path / "kv.json", {}) == found
    assert [row["validation_kl"] for row in found.rows({})][:2] == [None, None]
    with pytest.raises(DivergenceError, match="every trial of the tuning diverged"):
        search(1e-3, 0.05, False, lambda trial: math.inf)
