"""Rivals tuned on training prompts for a cost curve, and the gain over the best of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.api.replay import replay as replay_verb
from draftgauge.judging.evaluate import evaluate_design
from draftgauge.judging.fitting import tuning
from draftgauge.judging.fitting.tuning import tune, tune_rivals
from draftgauge.judging.replay import replay
from draftgauge.judging.splits import Design
from draftgauge.policies import POLICIES, make_policy
from draftgauge.policies.spec import grid_specs, tunable_policies
from linear_costs import LinearCosts, curve
from synthetic import synthetic_trace
from written_runs import write_run

GAMMA_MAX = 6
FEW = ("cumulative-confidence", "svip")


@pytest.fixture(scope="module")
def design() -> Design:
    train, test = (synthetic_trace(seed, prompts=12, length=80, gamma_max=GAMMA_MAX) for seed in (0, 1))
    return Design("test", test, train)


@pytest.mark.parametrize("name", tunable_policies())
def test_every_point_of_every_grid_can_be_made_and_the_defaults_are_near_one(name: str) -> None:
    specs = list(grid_specs(name))
    assert len(set(specs)) == len(specs) > 5
    for spec in specs:
        make_policy(spec, 20, LinearCosts())


def test_all_rules_of_the_field_have_a_grid() -> None:
    assert set(POLICIES) - set(tunable_policies()) == {"no-draft", "fixed", "stopping", "two-source"}


def test_rules_without_a_point_for_short_drafts_are_left_out() -> None:
    trace = synthetic_trace(0, prompts=4, length=20, gamma_max=1)
    rivals = tune_rivals(trace, curve(0.1, gamma_max=1))
    assert not any(spec.startswith("hf-heuristic") for spec in rivals.arms)
    assert rivals.best in rivals.arms


@pytest.mark.parametrize("name", FEW)
def test_no_point_of_the_grid_is_faster_on_the_training_prompts(name: str, design: Design) -> None:
    assert design.train is not None
    costs = curve(0.1, 0.0)
    _, speed = tune(name, design.train, costs)
    speeds = [
        replay(design.train, make_policy(spec, GAMMA_MAX, costs), costs).tokens_per_second for spec in grid_specs(name)
    ]
    assert speed == max(speeds)
    assert speed >= replay(design.train, make_policy(name, GAMMA_MAX), costs).tokens_per_second


def test_an_expensive_drafter_tunes_to_shorter_drafts(design: Design) -> None:
    assert design.train is not None
    drafted = []
    for drafting in (0.02, 0.4):
        costs = curve(drafting, 0.0)
        policy = make_policy(tune("cumulative-confidence", design.train, costs)[0], GAMMA_MAX)
        drafted.append(replay(design.train, policy, costs).record.drafted.mean())
    assert drafted[0] > drafted[1]


def test_rows_say_what_was_tuned_and_what_is_gained_over_the_best_of_it(design: Design) -> None:
    costs = curve(0.1, 0.0)
    policies = {"hf-confidence": make_policy("hf-confidence", GAMMA_MAX)}
    rows = evaluate_design(design, costs, policies, tune_rivals(design.training, costs, FEW))
    everywhere = {row["policy"]: row for row in rows if row["task"] == "all"}
    speeds = dict(tune(name, design.training, costs) for name in FEW)
    fixed = f"fixed:{everywhere['no-draft']['best_fixed_gamma']}"
    assert {policy for policy, row in everywhere.items() if row["tuned"]} == {*speeds, fixed}
    best = everywhere["hf-confidence"]["best_rival"]
    assert best == max(speeds, key=speeds.__getitem__)
    for row in everywhere.values():
        assert row["gain_over_rival"] == pytest.approx(
            row["tokens_per_second"] / everywhere[best]["tokens_per_second"] - 1
        )
        assert row["gain_over_rival_low"] <= row["gain_over_rival"] <= row["gain_over_rival_high"]
    assert everywhere[best]["gain_over_rival"] == 0.0


def test_without_tuning_there_is_no_rival(design: Design) -> None:
    rows = evaluate_design(design, curve(0.1, 0.0), {})
    assert {row["best_rival"] for row in rows} == {row["gain_over_rival"] for row in rows} == {None}


def test_the_verb_tunes_all_rules_of_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "grid_specs", lambda name: list(grid_specs(name))[:2])
    rows = replay_verb(write_run(tmp_path / "run", 24), policies=("hf-confidence",), tune=True)
    names = {row["policy"].partition(":")[0] for row in rows if row["tuned"]}
    assert names - {"no-draft", "fixed"} == set(tunable_policies())
