"""A whole study on a tiny target: run, stopped, gone on with, partly failed, refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import WorkersSpec
from draftgauge.core.provenance import read_measurement, write_measurement
from draftgauge.studies.kvshot.cells import CURVE_FOLDER, ERROR_NAME, RESULT_NAME, Evaluation, Study, Variant
from draftgauge.studies.kvshot.page import render_kvshot
from draftgauge.studies.kvshot.presets import CONTROL, HIDDEN, HYBRID, KV, at_equal_width, make_study, remedied, warm
from draftgauge.studies.kvshot.run import run_study, study_so_far
from draftgauge.training.reuse.request import TrainingSpec
from launching import ray_cluster
from tiny import save_tiny

WIDE_HIDDEN = at_equal_width(HIDDEN)
WARM = warm(Variant("hybrid", injection="project-rope"))


@pytest.fixture(scope="module")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("target"), num_hidden_layers=3)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": text, "task": task}
        for task, text in [("a", "one two"), ("b", "three"), ("a", "four and five"), ("b", "six")]
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def small(
    target: Path, prompts: Path, variants: tuple[Variant, ...] = (HIDDEN, KV), seeds: tuple[int, ...] = (0,)
) -> Study:
    request = TrainingSpec(
        target=str(target), prompts=prompts, new_tokens=12, length=40, depths=3, steps=2, batch=2, checkpoint_every=1
    )
    return Study(
        "test",
        variants,
        seeds,
        request,
        Evaluation(str(prompts), 1, max_new_tokens=10, tree_prompts=1, latency_prompts=1, curve_prompts=1),
    )


def test_a_study_from_training_to_rows(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    study = small(tiny_target, prompts, (HIDDEN, KV, CONTROL, WIDE_HIDDEN, WARM))
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
    assert [row["prediction"] for row in found.rows if "prediction" in row] == [
        "P1",
        "P2",
        "P2 at equal parameters",
        "P3",
    ]


def test_both_recipes_have_the_same_rows_of_what_limits_them(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    block, headed = remedied(KV, "block-wise"), remedied(KV, "block-wise-markov")
    variants = (KV, block, headed, remedied(HYBRID, "block-wise"))
    study = small(tiny_target, prompts, variants)
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


RUN = {
    "design",
    "seed",
    "layers",
    "injection",
    "init",
    "mat",
    "retention",
    "parameters",
    "learning_rate",
}
DEPTH = {"design", "depth", "alpha", "low", "high", "agreement", "agreement_low", "survival", "survival_low", "seeds"}
QUERY = {"design", "depth", "layer", "query_kl", "uniform_kl", "low", "high"}
GRADIENT = {"design", "group", "depth", "gradient_norm", "gradient_share"}
GATE = {"design", "gate_mean", "gate_open"}
TRIED = {"design", "trial", "learning_rate", "warmup", "gate_start", "validation_kl", "chosen"}
VERDICT = {"prediction", "verdict", "statement", "p_value", "reason"}


@pytest.mark.slow
def test_quick_leaves_every_row_and_a_page(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    """The preset itself, its sizes made tiny, through its JSON file to its page."""
    study = make_study("quick", TrainingSpec(target=str(tiny_target), prompts=prompts))
    assert [variant.design for variant in study.variants] == ["hidden", "kv", "hybrid", "control"]
    assert (len(study.seeds), study.evaluation.per_task) == (5, 24)
    assert study.tuning is not None
    tiny = {"questions": None, "new_tokens": 12, "length": 40, "depths": 3, "steps": 2, "batch": 2}
    study = replace(
        study,
        seeds=(0, 1),
        request=replace(study.request, **tiny),
        evaluation=replace(study.evaluation, max_new_tokens=10, per_task=2, tree_prompts=1, latency_prompts=1),
        tuning=replace(study.tuning, steps=1, per_task=1),
    )
    folder = tmp_path / "study"
    found = run_study(study, folder, prompts, prompts)
    assert found.failures == {}
    write_measurement(tmp_path / "quick.json", "draftgauge study kvshot", found.rows)
    rows = [dict(row) for row in read_measurement(tmp_path / "quick.json").rows]

    def having(columns: set[str], *others: str) -> list[dict]:
        return [row for row in rows if columns <= row.keys() and not any(other in row for other in others)]

    assert len(having(RUN)) == 8
    assert len(having(DEPTH)) == 4 * study.request.depths
    assert {row["design"] for row in having(QUERY)} == {"kv", "hybrid"}
    assert {row["design"] for row in having(GRADIENT)} == {"hidden", "kv", "hybrid", "control"}
    assert {row["design"] for row in having(GATE)} == {"hybrid"}
    assert len(having(TRIED)) == 8 * 4
    assert sum(row["chosen"] for row in having(TRIED)) == 4
    assert [row["prediction"] for row in having(VERDICT)] == ["P1", "P2", "P2 at equal parameters", "P3"]
    rates = {row["design"]: row["learning_rate"] for row in having(TRIED) if row["chosen"]}
    assert all(row["learning_rate"] == rates[row["design"]] for row in having(RUN))
    page = render_kvshot(rows, found.failures, {})
    for part in ("accepted", "agreement", "Query estimation error", "The gate over training"):
        assert part in page
    assert "Tuning on validation prompts" in page


def test_it_goes_on_where_it_was_stopped(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    study, folder = small(tiny_target, prompts), tmp_path / "study"
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


def test_a_failed_cell_is_named_and_tried_again(
    tiny_target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftgauge.studies.kvshot import jobs

    study, folder = small(tiny_target, prompts), tmp_path / "study"
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


def test_nothing_finished_is_an_error(
    tiny_target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftgauge.studies.kvshot import jobs

    def failing(*arguments: object, **options: object) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(jobs, "train_drafter", failing)
    with pytest.raises(DraftgaugeError, match="hidden-seed0: RuntimeError: out of memory"):
        run_study(small(tiny_target, prompts), tmp_path / "study", prompts)


def test_nothing_finished_so_far_is_an_error(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftgaugeError, match="none of the 2 cells of the study"):
        study_so_far(small(tiny_target, prompts), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_another_study_in_the_folder_is_refused(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    study, folder = small(tiny_target, prompts, (HIDDEN,)), tmp_path / "study"
    run_study(study, folder, prompts)
    with pytest.raises(DraftgaugeError, match="other settings"):
        run_study(replace(study, request=replace(study.request, steps=3)), folder, prompts)
    with pytest.raises(DraftgaugeError, match="folder of its own"):
        run_study(replace(study, evaluation=replace(study.evaluation, max_new_tokens=9)), folder, prompts)


@pytest.mark.slow
def test_ray_gives_what_local_gives(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    study = small(tiny_target, prompts, (CONTROL, WIDE_HIDDEN, WARM))
    with ray_cluster(cpus=1):
        spread = run_study(study, tmp_path / "ray", prompts, workers=WorkersSpec(executor="ray"))
    local = run_study(study, tmp_path / "local", prompts)
    assert spread.failures == {}
    keys = ("design", "init", "mat", "retention", "parameters", "live_mat")
    runs = [[tuple(row[key] for key in keys) for row in found.rows if "seed" in row] for found in (spread, local)]
    assert str(runs[0]) == str(runs[1])  # NaN, where nothing was accepted, equals no NaN


def test_what_cannot_be_is_refused_before_any_work(tiny_target: Path, prompts: Path, tmp_path: Path) -> None:
    study = small(tiny_target, prompts, (HIDDEN,))
    with pytest.raises(DraftgaugeError, match="unknown executor"):
        run_study(study, tmp_path / "study", prompts, workers=WorkersSpec(executor="slurm"))
    with pytest.raises(DraftgaugeError, match="give a prompt file"):
        run_study(replace(study, request=replace(study.request, prompts=None)), tmp_path / "study", prompts)
    assert not (tmp_path / "study").exists()
