"""Equal tuning: the same budget for every design, the best trial chosen, kept, and used by every seed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.errors import DivergenceError, DraftgaugeError
from draftgauge.studies.kvshot import tuning
from draftgauge.studies.kvshot.cells import Evaluation, Study, Tuning
from draftgauge.studies.kvshot.presets import HIDDEN
from draftgauge.studies.kvshot.run import run_study
from draftgauge.studies.kvshot.tuning import TRIALS, Trial, Tuned, read_tuned, save_tuned, search
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.tracking import TrainResult
from draftgauge.training.reuse.train import train_drafter
from small_trainings import small_training


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
