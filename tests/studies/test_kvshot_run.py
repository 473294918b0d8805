"""A whole study on a tiny target: run, stopped, gone on with, partly failed, refused."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import WorkersSpec
from draftgauge.studies.kvshot import jobs, run
from draftgauge.studies.kvshot.cells import CURVE_FOLDER, ERROR_NAME, RESULT_NAME, Evaluation, Study, Variant
from draftgauge.studies.kvshot.page import render_kvshot
from draftgauge.studies.kvshot.presets import CONTROL, HIDDEN, HYBRID, KV, at_equal_width, warm
from draftgauge.studies.kvshot.run import run_study, study_so_far
from draftgauge.training.reuse.request import TrainingSpec
from launching import LONG, ray_cluster
from small_trainings import small_training

pytestmark = pytest.mark.slow
WIDE_HIDDEN = at_equal_width(HIDDEN)
WARM = warm(Variant("hybrid", injection="project-rope"))


def small(folder: Path, variants: tuple[Variant, ...] = (HIDDEN, KV)) -> tuple[Study, Path]:
    """A study of a tiny target, and its prompts."""
    request = small_training(folder, answers=None, length=40, checkpoint_every=1)
    evaluation = Evaluation(
        str(request.prompts), 1, max_new_tokens=10, tree_prompts=1, latency_prompts=1, curve_prompts=1
    )
    return Study("test", variants, (0,), request, evaluation), request.prompts


def test_a_study_from_training_to_rows(tmp_path: Path) -> None:
    study, prompts = small(tmp_path, (HIDDEN, KV, CONTROL, WIDE_HIDDEN, WARM))
    with pytest.warns(UserWarning, match="trained on prompts of .* that they are judged on"):
        found = run_study(study, tmp_path / "study", prompts)
    assert found.failures == {}
    runs = [row for row in found.rows if "seed" in row]
    assert [row["design"] for row in runs] == ["hidden", "kv", "control", "hidden", "hybrid"]
    assert [row["init"] for row in runs] == ["random"] * 4 + ["warm"]
    matched = [row["parameters"] for row in runs if row["capacity"] == "equal parameters"]
    assert max(matched) <= 1.02 * min(matched)
    for row in runs:
        assert row["live_mismatched_prompts"] == 0
    verdicts = [row["prediction"] for row in found.rows if "prediction" in row]
    assert verdicts == ["P1", "P2", "P2 at equal parameters", "P3"]
    page = render_kvshot(found.rows, found.failures, {})
    for part in ("accepted", "agreement", "Query estimation error"):
        assert part in page


def test_both_recipes_have_the_same_rows_of_what_limits_them(tmp_path: Path) -> None:
    block, headed = replace(KV, remedy="block-wise"), replace(KV, remedy="block-wise-markov")
    variants = (KV, block, headed, replace(HYBRID, remedy="block-wise"))
    study, prompts = small(tmp_path, variants)
    found = run_study(replace(study, request=replace(study.request, depths=4)), tmp_path / "study", prompts)
    assert found.failures == {}
    for measure in ("query_kl", "control", "draft_share", "effective_rank"):
        having = {(row["design"], row.get("remedy", "")) for row in found.rows if measure in row}
        assert having == {(one.design, one.remedy) for one in variants}
    counts = [row["parameters"] for row in found.rows if "parameters" in row]
    assert max(counts) <= 1.02 * min(counts), "a head is to be paid for by the MLP"
    assert {row["recipe"] for row in found.rows if "recipe" in row} == {"block", "block-wise-markov", "ttt"}
    page = render_kvshot(found.rows, {}, {})
    assert "Effective rank" in page
    assert "kv, block wise markov" in page


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    (study, prompts), folder = small(tmp_path), tmp_path / "study"
    stopped: list[str] = []

    def stop(what: str, done: int, total: int) -> None:
        """As the second cell has done one of its two steps."""
        if what == "kv-project-rope-seed0: train" and done == 1:
            stopped.append(what)
            raise KeyboardInterrupt

    study = replace(study, request=replace(study.request, log_every=1))
    with pytest.raises(KeyboardInterrupt):
        run_study(study, folder, prompts, progress=stop)
    first = folder / "cells" / "hidden-seed0" / RESULT_NAME
    assert stopped
    assert first.exists()
    assert not (folder / "cells" / "kv-project-rope-seed0" / RESULT_NAME).exists()
    files = sorted(folder.rglob("*"))
    begun = study_so_far(study, folder)
    assert ([row["design"] for row in begun.rows if "seed" in row], begun.left) == (["hidden"], 1)
    assert sorted(folder.rglob("*")) == files
    before = first.read_bytes(), first.stat().st_mtime_ns
    seen: list[str] = []
    found = run_study(study, folder, prompts, progress=lambda what, done, total: seen.append(what))
    assert found.failures == {}
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    assert not any(what.startswith("hidden") for what in seen)
    ended = study_so_far(study, folder)
    assert (str(ended.rows), ended.left) == (str(found.rows), 0)
    whole = run_study(study, tmp_path / "uninterrupted", prompts)
    for key in ("mat", "tokens_seen", "agreement"):  # the learning curve too
        assert [row[key] for row in found.rows if key in row] == [row[key] for row in whole.rows if key in row]
    assert [(row["design"], row["tokens_seen"]) for row in found.rows if "curve" in row]
    assert not list(folder.rglob(CURVE_FOLDER)), "drafters kept for the learning curve go with the result"


def test_no_second_target_is_held_while_cells_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, prompts = small(tmp_path)
    study = replace(study, request=replace(study.request, cache=Path("features")))
    load, train, held = run.load_target, jobs.train_drafter, []
    loaded: weakref.WeakSet[Any] = weakref.WeakSet()

    def loading(request: TrainingSpec) -> Any:
        loaded.add(target := load(request))
        return target

    def training(*given: Any, **options: Any) -> object:
        gc.collect()
        held.append(len(loaded))
        return train(*given, **options)

    monkeypatch.setattr(run, "load_target", loading)
    monkeypatch.setattr(jobs, "train_drafter", training)
    assert run_study(study, tmp_path / "study", prompts).failures == {}
    assert held == [0, 0]


def test_a_failed_cell_is_named_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study, prompts), folder = small(tmp_path), tmp_path / "study"
    train = jobs.train_drafter

    def failing(request: TrainingSpec, *rest: object, **options: object) -> object:
        if request.reuse == "hidden":
            raise RuntimeError("out of memory")
        return train(request, *rest, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train_drafter", failing)
        found = run_study(study, folder, prompts)
    assert found.failures == {"hidden-seed0": "RuntimeError: out of memory"}
    assert [row["design"] for row in found.rows if "seed" in row] == ["kv"]
    assert "Traceback" in (folder / "cells" / "hidden-seed0" / ERROR_NAME).read_text()
    again = run_study(study, folder, prompts)
    assert again.failures == {}
    assert not (folder / "cells" / "hidden-seed0" / ERROR_NAME).exists()


def test_nothing_finished_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study, prompts), folder = small(tmp_path), tmp_path / "study"
    with pytest.raises(DraftgaugeError, match="none of the 2 cells of the study"):
        study_so_far(study, folder)
    assert not folder.exists()
    monkeypatch.setattr(jobs, "train_drafter", Mock(side_effect=RuntimeError("out of memory")))
    with pytest.raises(DraftgaugeError, match="hidden-seed0: RuntimeError: out of memory"):
        run_study(study, folder, prompts)


def test_another_study_in_the_folder_is_refused(tmp_path: Path) -> None:
    (study, prompts), folder = small(tmp_path, (HIDDEN,)), tmp_path / "study"
    run_study(study, folder, prompts)
    with pytest.raises(DraftgaugeError, match="other settings"):
        run_study(replace(study, request=replace(study.request, steps=3)), folder, prompts)
    with pytest.raises(DraftgaugeError, match="folder of its own"):
        run_study(replace(study, evaluation=replace(study.evaluation, max_new_tokens=9)), folder, prompts)


@LONG
def test_ray_gives_what_local_gives(tmp_path: Path) -> None:
    study, prompts = small(tmp_path, (CONTROL, WIDE_HIDDEN, WARM))
    with ray_cluster(cpus=1):
        spread = run_study(study, tmp_path / "ray", prompts, workers=WorkersSpec(executor="ray"))
    local = run_study(study, tmp_path / "local", prompts)
    assert spread.failures == {}
    keys = ("design", "init", "mat", "retention", "parameters", "live_mat")
    runs = [[tuple(row[key] for key in keys) for row in found.rows if "seed" in row] for found in (spread, local)]
    assert str(runs[0]) == str(runs[1])  # NaN, where nothing was accepted, equals no NaN


def test_what_cannot_be_is_refused_before_any_work(tmp_path: Path) -> None:
    study, prompts = small(tmp_path, (HIDDEN,))
    with pytest.raises(DraftgaugeError, match="unknown executor"):
        run_study(study, tmp_path / "study", prompts, workers=WorkersSpec(executor="slurm"))
    with pytest.raises(DraftgaugeError, match="give a prompt file"):
        run_study(replace(study, request=replace(study.request, prompts=None)), tmp_path / "study", prompts)
    assert not (tmp_path / "study").exists()
