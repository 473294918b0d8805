"""Presets are whole, and cells come in an order that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse import count_parameters
from draftgauge.models.loading import load_model
from draftgauge.studies.kvshot.cells import EQUAL_PARAMETERS, check_study
from draftgauge.studies.kvshot.presets import HIDDEN, KV, KV_DEEP, PRESETS, make_study
from draftgauge.studies.kvshot.run import choose_configs
from draftgauge.training.reuse.request import TrainingSpec
from kvshot_results import cells


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_answers_the_predictions_it_has_cells_for(preset: str, tmp_path: Path) -> None:
    study = make_study(preset, TrainingSpec())
    check_study(study.variants)
    assert {HIDDEN, KV} <= set(study.variants)  # P1 and P3
    assert (KV_DEEP in study.variants) == (preset != "quick")  # P2
    assert study.request.depths == 7
    made = cells(tmp_path, study)
    assert len(made) == len(study.variants) * len(study.seeds) == len({cell.name for cell in made})
    before: set[str] = set()
    for cell in made:
        assert cell.after is None or cell.after in before
        assert (cell.request.warm_start is not None) == (cell.variant.init == "warm")
        before.add(cell.name)


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_agree_within_two_percent_on_the_bundled_target(preset: str) -> None:
    study = make_study(preset, TrainingSpec())
    configs = choose_configs(study, load_model("reference").module.config)
    assert set(configs) == set(study.variants)
    counts = [count_parameters(config) for variant, config in configs.items() if variant.capacity == EQUAL_PARAMETERS]
    assert max(counts) <= 1.02 * min(counts)
    for variant, config in configs.items():
        if variant.starts_from is not None:
            assert config.intermediate_size == configs[variant.starts_from].intermediate_size


def test_full_has_every_row_of_the_paper() -> None:
    names = {variant.name for variant in make_study("full", TrainingSpec()).variants}
    paper = {
        "hidden",
        "kv-concat",
        "kv-project",
        "kv-project-rope",
        "hybrid",
        "hybrid-warm-equal-width",
        "cross",
        "cross-warm-equal-width",
    }
    paper |= {f"kv-project-rope-{layers}-layers{width}" for layers in (2, 3, 4) for width in ("", "-equal-width")}
    assert paper | {"none", "kv-project-rope-equal-width"} <= names


def test_cells_differ_in_nothing_but_variant_and_seed(tmp_path: Path) -> None:
    made = cells(tmp_path, make_study("quick", TrainingSpec()))
    own = {"reuse", "layers", "injection", "intermediate_size", "seed", "warm_start"}
    common = [{key: value for key, value in cell.request.identity().items() if key not in own} for cell in made]
    assert all(settings == common[0] for settings in common)
    assert len({cell.digest() for cell in made}) == len(made)


def test_depth_goes_on_where_quick_ended(tmp_path: Path) -> None:
    done = {cell.name: cell.digest() for cell in cells(tmp_path, make_study("quick", TrainingSpec()))}
    wanted = {cell.name: cell.digest() for cell in cells(tmp_path, make_study("depth", TrainingSpec()))}
    assert done.items() < wanted.items()
    assert {name.split("-seed")[0] for name in wanted.keys() - done.keys()} == {
        "kv-project-rope-2-layers",
        "kv-project-rope-4-layers",
    }
    config = load_model("reference").module.config
    quick, depth = (choose_configs(make_study(preset, TrainingSpec()), config) for preset in ("quick", "depth"))
    assert quick.items() <= depth.items()  # the same widths


def test_unknown_preset() -> None:
    with pytest.raises(DraftgaugeError, match="smoke, quick, depth, full"):
        make_study("huge", TrainingSpec())


def test_own_held_out_prompts(tmp_path: Path) -> None:
    assert make_study("smoke", TrainingSpec(), tmp_path / "own.jsonl").evaluation.prompts == str(tmp_path / "own.jsonl")
