"""Equal tuning: the same budget for every design, the best trial chosen, kept, and used by every seed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.errors import DivergenceError, DraftgaugeError
from draftgauge.studies.kvshot import tuning
from draftgauge.studies.kvshot.cells import Evaluation, Study, Tuning, Variant
from draftgauge.studies.kvshot.presets import HIDDEN, remedied
from draftgauge.studies.kvshot.run import run_study
from draftgauge.studies.kvshot.tuning import TRIALS, Trial, Tuned, read_tuned, save_tuned, search
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.result import TrainResult
from draftgauge.training.reuse.train import train_drafter
from tiny import save_tiny


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


def test_what_was_found_is_kept_with_what_it_is_of(tmp_path: Path) -> None:
    tuned = Tuned((Trial(1e-3, 0.05), Trial(2e-3, 0.05)), (2.0, 1.5))
    path = tmp_path / "tuning" / "kv.json"
    assert read_tuned(path, {"steps": 3}) is None
    save_tuned(path, tuned, {"steps": 3})
    assert read_tuned(path, {"steps": 3}) == tuned
    with pytest.raises(DraftgaugeError, match="other settings"):
        read_tuned(path, {"steps": 4})
    assert [row["chosen"] for row in tuned.rows({"design": "kv"})] == [False, True]


def tuned_study(folder: Path, variants: tuple[Variant, ...], seeds: tuple[int, ...]) -> tuple[Study, Path]:
    """A study of a tiny target, and its prompts."""
    target = save_tiny(folder / "target", num_hidden_layers=3)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text, "task": "a"}) for text in ("one two", "three", "six")))
    request = TrainingSpec(
        target=str(target), prompts=prompts, new_tokens=12, length=60, depths=2, steps=2, batch=2, checkpoint_every=2
    )
    evaluation = Evaluation(str(prompts), 1, max_new_tokens=8, tree_prompts=1, latency_prompts=0, bottleneck_prompts=1)
    return Study("test", variants, seeds, request, evaluation, Tuning(1, per_task=2)), prompts


def test_a_study_tunes_before_its_seeds_run(tmp_path: Path) -> None:
    study, prompts = tuned_study(tmp_path, (HIDDEN, remedied(HIDDEN, "depths-12")), (0, 1))
    seen: list[str] = []
    found = run_study(study, tmp_path / "study", prompts, prompts, progress=lambda what, done, total: seen.append(what))
    assert found.failures == {}
    trials = [row for row in found.rows if "trial" in row]
    assert len(trials) == TRIALS
    (chosen,) = {row["learning_rate"] for row in trials if row["chosen"]}
    assert min(trials, key=lambda row: row["validation_kl"])["chosen"]
    runs = [row for row in found.rows if "seed" in row]
    assert {row["learning_rate"] for row in runs} == {chosen}
    assert {row.get("remedy") for row in runs} == {None, "depths-12"}
    assert {row["depth"] for row in found.rows if "alpha" in row} == {0, 1}  # measured alike
    assert sum(what.startswith("tuning-") for what in seen) == TRIALS
    assert not (tmp_path / "study" / "tuning" / "hidden").exists()
    seen.clear()
    again = run_study(study, tmp_path / "study", prompts, prompts, progress=lambda what, done, total: seen.append(what))
    assert not any(what.startswith("tuning-") for what in seen)
    assert [row for row in again.rows if "trial" in row] == trials


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


def test_a_trial_whose_loss_is_no_number_does_not_end_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, prompts = tuned_study(tmp_path, (HIDDEN,), (0,))
    tried: list[float] = []

    def diverging(request: TrainingSpec, *further: Any) -> TrainResult:
        assert request.learning_rate is not None
        tried.append(request.learning_rate)
        if len(tried) == 4:
            raise DivergenceError("the loss is nan at step 1")
        return train_drafter(request, *further)

    monkeypatch.setattr(tuning, "train_drafter", diverging)
    found = run_study(study, tmp_path / "study", prompts, prompts)
    assert found.failures == {}
    (fourth,) = [row for row in found.rows if row.get("trial") == 3]
    assert (fourth["validation_kl"], fourth["chosen"]) == (None, False)
