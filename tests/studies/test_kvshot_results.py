"""Rows, verdicts, decay and page of the study, from results with known acceptance."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import refusal, rows_of, succeeds
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import read_measurement, write_measurement
from draftgauge.judging.acceptance import acceptance_by_depth
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.studies.kvshot.cells import BLOCK, EQUAL_PARAMETERS, EQUAL_WIDTH
from draftgauge.studies.kvshot.curve import at_equal_seconds, gradient_rows
from draftgauge.studies.kvshot.decay import decay_rows, decay_said
from draftgauge.studies.kvshot.page import render_kvshot
from draftgauge.studies.kvshot.presets import CONTROL, HIDDEN, HYBRID, KV, KV_DEEP, at_equal_width, warm
from draftgauge.studies.kvshot.results import read_result, study_rows, summary, tuned_rows
from draftgauge.studies.kvshot.tuning import Trial, Tuned
from draftgauge.studies.kvshot.verdicts import EQUAL_P2, WIDE_P1, WIDE_P3
from kvshot_results import ALPHAS, cells, results, study, write_result
from row_keys import check_keys
from small_profiles import save_models
from synthetic import synthetic_trace


def by_prediction(rows: list[dict]) -> dict[str, dict]:
    return {row["prediction"]: row for row in rows if "prediction" in row}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Rows of a study of every design."""
    return study_rows(results(tmp_path_factory.mktemp("study")))


def test_runs(rows: list[dict], tmp_path: Path) -> None:
    runs = [row for row in rows if "seed" in row]
    assert len(runs) == 30
    assert {"design", "seed", "layers", "injection", "init", "mat", "retention", "parameters"} <= runs[0].keys()
    hidden = next(row for row in runs if row["design"] == "hidden")
    assert hidden["mat"] == pytest.approx(1 + float(np.cumprod(ALPHAS[HIDDEN]).sum()), abs=0.05)
    assert hidden["mat_low"] < hidden["mat"] < hidden["mat_high"]
    assert hidden["injection"] is None
    write_measurement(tmp_path / "rows.json", "test", rows)  # flat, and ready for JSON


def test_depths_are_pooled_over_seeds(rows: list[dict]) -> None:
    by_depth = [row for row in rows if "alpha" in row]
    assert len(by_depth) == 6 * 7
    kv = [row for row in by_depth if row["design"] == "kv" and row["layers"] == 1]
    assert [row["depth"] for row in kv] == list(range(1, 8))
    assert all(row["alpha_low"] < row["alpha"] < row["alpha_high"] for row in kv)
    assert [row["alpha"] for row in kv] == pytest.approx(ALPHAS[KV], abs=0.05)
    assert [row["agreement"] for row in kv] == pytest.approx(ALPHAS[KV], abs=0.05)
    assert [row["survival"] for row in kv] == pytest.approx(np.cumprod(ALPHAS[KV]), abs=0.05)
    assert all(row["agreement_low"] < row["agreement"] < row["agreement_high"] for row in kv)


def test_what_limits_a_drafter_is_among_the_rows(rows: list[dict]) -> None:
    query = [row for row in rows if "query_kl" in row]
    assert {row["design"] for row in query} == {"kv", "hybrid", "cross"}
    assert [row["query_kl"] for row in query[:7]] == pytest.approx([0.1 * depth for depth in range(1, 8)])
    control = next(row for row in rows if row.get("control") == "true query")
    assert control["difference"] == pytest.approx(0.1)
    assert {row["design"] for row in rows if "gate_mean" in row} == {"hybrid"}
    probed = [row for row in rows if "gradient_share" in row]
    assert {row["group"] for row in probed} == {"head", "blocks.0.chain_attention.keys"}
    assert {row["gradient_share"] for row in probed} == {0.25}
    assert {row["step"] for row in rows if "step" in row} == {1, 5, 10}


def test_what_a_remedy_adds_is_measured_against_the_same_drafter_without_it(tmp_path: Path) -> None:
    better, alone = replace(KV, remedy="kv-gradient-50"), replace(HIDDEN, remedy="depths-12")
    measured = study_rows(results(tmp_path, {KV: ALPHAS[KV], better: ALPHAS[KV_DEEP], alone: ALPHAS[HIDDEN]}))
    (row,) = [row for row in measured if row.get("measure") == "mat_minus_plain"]  # of hidden there is nothing without
    assert (row["design"], row["remedy"], row["seeds"], row["p_seeds"]) == ("kv", "kv-gradient-50", 5, 0.0625)
    mats = {row.get("remedy"): row["estimate"] for row in measured if row.get("measure") == "mat" and "task" not in row}
    assert row["estimate"] == pytest.approx(mats["kv-gradient-50"] - mats[None], abs=0.01)
    assert 0 < row["low"] < row["estimate"] < row["high"]
    assert 0 < row["p_value"] < 0.05


def test_two_recipes_stand_side_by_side_and_each_is_paired(tmp_path: Path) -> None:
    blockwise, headed = replace(KV, remedy=BLOCK), replace(KV, remedy="block-wise-markov")
    alphas = {KV: ALPHAS[KV], blockwise: ALPHAS[KV_DEEP], headed: ALPHAS[KV_DEEP]}
    measured = study_rows(results(tmp_path, alphas, seeds=(0, 1)))
    runs = [row for row in measured if "recipe" in row]
    assert [(row["recipe"], row["design"], row["seed"]) for row in runs] == [
        (recipe, "kv", seed) for seed in (0, 1) for recipe in ("ttt", "block", "block-wise-markov")
    ]  # fmt: skip
    keys = ("tokens_seen", "tokens_per_step_live", "agreement", "seconds_draft", "ratio_to_plain")
    assert all(row["tokens_seen"] == 1000 and row["seconds_draft"] == 7 * 2.0 / 1e3 for row in runs)
    assert all(isinstance(row[key], (int, float)) for row in runs for key in keys)
    assert runs[1]["tokens_per_step_live"] > runs[0]["tokens_per_step_live"]
    paired, head = [row for row in measured if row.get("measure") == "mat_minus_plain"]
    assert (paired["remedy"], paired["seeds"]) == (BLOCK, 2)
    assert head["estimate"] == pytest.approx(0, abs=0.02), "a head is compared with the block-wise drafter without it"
    assert [line["drafter"] for line in summary(measured)] == [variant.name for variant in alphas]


def test_the_learning_curve_is_pooled_and_read_at_equal_seconds(tmp_path: Path) -> None:
    blockwise = replace(KV, remedy=BLOCK)
    measured = study_rows(results(tmp_path, {KV: ALPHAS[KV], blockwise: ALPHAS[KV_DEEP]}, seeds=(0, 1)))
    curve = [row for row in measured if "curve" in row]
    assert [(row["curve"], row["tokens_seen"], row["seeds"]) for row in curve] == [
        ("ttt", 500, 2), ("ttt", 1000, 2), ("block", 500, 2), ("block", 1000, 2)
    ]  # fmt: skip
    half, whole = curve[:2]
    assert whole["agreement"] == half["agreement"] == pytest.approx(np.mean(ALPHAS[KV]), abs=0.02)
    assert whole["agreement_low"] < whole["agreement"] < whole["agreement_high"]
    assert whole["tokens_per_step"] == pytest.approx(1 + np.cumprod(ALPHAS[KV]).sum(), abs=0.05)
    assert half["tokens_per_step"] < whole["tokens_per_step"]
    both = {"block": curve[3]["tokens_per_step"], "ttt": whole["tokens_per_step"]}
    assert [row for row in measured if "equal_seconds" in row] == [{"equal_seconds": 2.0, "design": "kv"} | both]
    fast = [row | {"train_seconds": row["train_seconds"] / (9 if row["curve"] == "block" else 1)} for row in curve]
    assert list(at_equal_seconds(fast, "block", "ttt")) == [], "no checkpoint of the other by then"


def test_a_run_without_a_curve_leaves_that_of_the_other_seeds(tmp_path: Path) -> None:
    first, *others = results(tmp_path, {KV: ALPHAS[KV]}, seeds=(0, 1))
    curve = [row for row in study_rows([replace(first, curve=[]), *others]) if "curve" in row]
    assert [(row["tokens_seen"], row["seeds"]) for row in curve] == [(500, 1), (1000, 1)]


def test_gradients_of_keys_and_values_over_those_of_queries() -> None:
    own, injected = "gradient_rms/blocks.0.chain_attention.", "gradient_rms/blocks.0.injection."
    steps = [(9.0, 9.0, 9.0), (4.0, 1.0, 2.0), (2.0, 1.0, 4.0)]  # the first step is of untrained weights
    history = [
        {"step": n, f"{own}queries": q, f"{own}keys": k, f"{own}values": v, f"{injected}keys": 7.0}
        for n, (q, k, v) in enumerate(steps)
    ]
    found = {row["trained"]: row["over_queries"] for row in gradient_rows("ttt", "kv", 0, history)}
    assert found == {"keys": (1 / 4 + 1 / 2) / 2, "values": (2 / 4 + 4 / 2) / 2}
    second = {f"gradient_rms/blocks.0.self_attention.{kind}": 0.0 for kind in ("queries", "keys", "values")}
    other = [row | second for row in history]  # a second attention, which no gradient reached
    assert [row["over_queries"] for row in gradient_rows("ttt", "hybrid", 0, other)] == list(found.values())
    assert not list(gradient_rows("ttt", "kv", 0, []))


def test_a_recipe_that_needs_less_time_is_compared_with_the_others_curve_at_that_time() -> None:
    points = {"block": [(0.5, 1.4), (1.0, 1.5)], "ttt": [(0.5, 1.1), (1.5, 1.3)]}
    curve = [
        {"curve": recipe, "design": "kv", "train_seconds": seconds, "tokens_per_step": value}
        for recipe, of in points.items()
        for seconds, value in of
    ]
    (row,) = at_equal_seconds(curve, "block", "ttt")
    assert (row["equal_seconds"], row["block"], row["ttt"]) == (1.0, 1.5, pytest.approx(1.2))
    (row,) = at_equal_seconds(curve[:-1], "block", "ttt")  # whichever is the shorter one
    assert (row["equal_seconds"], row["block"], row["ttt"]) == (0.5, 1.4, 1.1)


def test_every_drafter_is_paired_with_the_control_and_a_warm_start_with_its_random_one(tmp_path: Path) -> None:
    wide, better = ALPHAS[KV], ALPHAS[KV_DEEP]
    alphas = {HYBRID: wide, at_equal_width(HYBRID): wide, warm(HYBRID): better, CONTROL: ALPHAS[CONTROL]}
    tested = [row for row in study_rows(results(tmp_path, alphas)) if {"measure", "p_seeds"} <= row.keys()]
    paired = {(row["init"], row["capacity"], row["measure"]): row for row in tested}
    assert set(paired) == {
        ("random", EQUAL_PARAMETERS, "mat_minus_control"),
        ("random", EQUAL_WIDTH, "mat_minus_control"),
        ("warm", EQUAL_WIDTH, "mat_minus_control"),
        ("warm", EQUAL_WIDTH, "mat_minus_random"),
    }
    estimate = {key: row["estimate"] for key, row in paired.items()}
    gained = estimate["warm", EQUAL_WIDTH, "mat_minus_control"] - estimate["random", EQUAL_WIDTH, "mat_minus_control"]
    assert estimate["warm", EQUAL_WIDTH, "mat_minus_random"] == pytest.approx(gained)
    assert gained > 0


def test_verdicts_on_known_differences(rows: list[dict]) -> None:
    found = by_prediction(rows)
    assert found["P1"]["verdict"] == "contradicted"  # one layer of kv is worse at depth, as in the paper's own table
    assert found.pop("P2")["reason"] == "not run: kv-project-rope-4-layers-equal-width and kv-project-rope-equal-width"
    assert found[EQUAL_P2]["verdict"] == "supported"
    assert found["P3"]["verdict"] == "supported"
    assert found["P1"]["difference"] == pytest.approx(0.36 - 0.48, abs=0.03)
    for row in found.values():
        assert row["difference_low"] < row["difference"] < row["difference_high"]
        assert row["seeds"] == 5
        assert row["p_seeds"] == 0.0625  # the least that five seeds can give
        assert row["uncorrected_p_value"] <= row["p_value"] <= 3 * row["uncorrected_p_value"] + 1e-12


def test_fewer_than_five_seeds_decide_nothing_however_alike_they_are(tmp_path: Path) -> None:
    alphas = {HIDDEN: ALPHAS[HIDDEN], KV: ALPHAS[KV]}
    few, enough = (
        by_prediction(study_rows(results(tmp_path / str(seeds), alphas, tuple(range(seeds)))))["P3"] for seeds in (4, 5)
    )
    assert few["p_value"] < 0.001
    assert (few["verdict"], enough["verdict"]) == ("undecided", "supported")
    assert few["reason"] == "4 seeds: how much seeds differ is hardly known from fewer than 5"


def test_a_drafter_level_with_the_control_decides_nothing(tmp_path: Path) -> None:
    level = {HIDDEN: ALPHAS[HIDDEN], KV: ALPHAS[CONTROL], CONTROL: ALPHAS[CONTROL]}
    found = by_prediction(study_rows(results(tmp_path, level)))
    for name in ("P1", "P3"):
        assert found[name]["verdict"] == "undecided"
        assert "not shown to beat control: kv-project-rope" in found[name]["reason"]
    assert found["P3"]["difference_low"] > 0  # hidden is better, but not than a drafter that uses the keys


def test_designs_at_equal_width_are_tested_where_both_were_trained_so(tmp_path: Path) -> None:
    matched = {HIDDEN: ALPHAS[HIDDEN], KV: ALPHAS[HIDDEN]}
    wide = {at_equal_width(HIDDEN): ALPHAS[HIDDEN], at_equal_width(KV): ALPHAS[KV]}
    found = by_prediction(study_rows(results(tmp_path, matched | wide)))
    assert [found[name]["verdict"] for name in ("P1", "P3")] == ["undecided", "undecided"]
    assert (found[WIDE_P1]["verdict"], found[WIDE_P3]["verdict"]) == ("contradicted", "supported")
    assert found[WIDE_P3]["p_value"] > found[WIDE_P3]["uncorrected_p_value"]  # six tests share a study
    assert not {WIDE_P1, WIDE_P3} & set(by_prediction(study_rows(results(tmp_path / "matched", matched))))


@pytest.mark.filterwarnings("error")  # depths that were not drafted are not measured either, beside the control
def test_short_drafts_cannot_answer_p1(tmp_path: Path) -> None:
    short = {variant: ALPHAS[variant][:3] for variant in (HIDDEN, KV, CONTROL)}
    found = by_prediction(study_rows(results(tmp_path, short)))
    assert "too short" in found["P1"]["reason"]
    assert found["P3"]["verdict"] == "supported"


def test_a_result_of_other_settings_is_refused(tmp_path: Path) -> None:
    cell = cells(tmp_path, study((HIDDEN,), (0,)))[0]
    assert read_result(cell) is None
    write_result(cell, ALPHAS[HIDDEN])
    assert read_result(cell) is not None
    longer = replace(cell, request=replace(cell.request, steps=cell.request.steps + 1))
    with pytest.raises(DraftgaugeError, match="other settings"):
        read_result(longer)
    moved = replace(cell, request=replace(cell.request, checkpoint_every=7))  # decides nothing about where it ends
    assert read_result(moved) is not None


@pytest.fixture(scope="module")
def page_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Rows as they come back from a JSON file."""
    folder = tmp_path_factory.mktemp("study")
    wide = {at_equal_width(variant): ALPHAS[variant] for variant in (HIDDEN, KV)}
    tuned = Tuned((Trial(1e-3, 0.05), Trial(2e-3, 0.05)), (2.034, 1.567))
    found = [*study_rows(results(folder, ALPHAS | wide)), *tuned_rows({KV: tuned})]
    write_measurement(folder / "rows.json", "test", found)
    return [dict(row) for row in read_measurement(folder / "rows.json").rows]


def test_the_page_holds_what_was_found(page_rows: list[dict]) -> None:
    page = render_kvshot(page_rows, {"hybrid-seed2": "RuntimeError: <out of memory>"}, {"command": "draftgauge"})
    said = ("supported", "contradicted", "P1", "P2", "P3", "hybrid-seed2", "&lt;out of memory&gt;", "kv, 4 layers")
    said += ("Capacity", "What limits each design", "Query estimation error by depth", "The gate over training")
    for text in (*said, "Tuning on validation prompts", "1.57"):
        assert text in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert not re.search(r'(?:src|href)="(?!#)', page), "the page asks for other files"
    assert "nan" not in re.sub(r"<svg.*?</svg>|<style.*?</style>", "", page, flags=re.DOTALL).lower()


def test_a_study_at_equal_width_shows_its_designs_throughout(tmp_path: Path) -> None:
    wide = {at_equal_width(variant): ALPHAS[variant] for variant in (HIDDEN, KV)}
    page = render_kvshot(study_rows(results(tmp_path, wide | {CONTROL: ALPHAS[CONTROL]})), {}, {})
    assert "Designs, at equal width" in page


def test_a_study_cut_short_still_has_a_page(tmp_path: Path) -> None:
    few = study_rows(results(tmp_path, {HIDDEN: ALPHAS[HIDDEN][:2]}, seeds=(0,)))
    for row in few:
        row.pop("draft_ms", None)
    assert "not run: kv-project-rope" in render_kvshot(few, {}, {})


def test_nothing_to_report() -> None:
    with pytest.raises(DraftgaugeError, match="no run"):
        render_kvshot([], {}, {})


def test_rows_are_of_acceptance_by_depth_and_the_one_that_retains_least_is_first() -> None:
    traces = {"deep": synthetic_trace(1, 8, 40, 7), "short": synthetic_trace(2, 8, 40, 4)}
    rows = decay_rows(traces)
    check_keys(rows, "alpha_1")
    assert [row["compared_depth"] for row in rows] == [4, 4]
    assert rows[0]["retention"] <= rows[1]["retention"]
    for row in rows:
        of = [each for each in acceptance_by_depth(traces[row["drafter"]]) if each["task"] == ALL_TASKS]
        alphas = [row.get(f"alpha_{each['depth']}") for each in of]
        assert alphas == pytest.approx([each["alpha"] for each in of])
        assert row["alpha_1_low"] < row["alpha_1"] < row["alpha_1_high"]
        assert row["loss"] == pytest.approx(row["alpha_1"] - row["alpha_4"])
        assert row["retention"] == pytest.approx(row["alpha_4"] / row["alpha_1"])
    behind = rows[0]["retention_behind"]
    assert behind == pytest.approx(rows[0]["retention"] - rows[1]["retention"])
    assert rows[0]["retention_behind_low"] <= behind <= rows[0]["retention_behind_high"]
    said = decay_said(rows)
    does = "loses most" if rows[0]["retention"] < 1 else "gains least, and none loses"
    assert said.startswith(f"{rows[0]['drafter']} {does}: {rows[0]['alpha_4']:.3f} at depth 4 after ")
    apart = rows[0]["retention_behind_low"] > 0 or rows[0]["retention_behind_high"] < 0
    assert said.endswith("they differ." if apart else "they are not told apart.")
    assert decay_said(decay_rows({"deep": traces["deep"]})).endswith("at depth 1.")
    with pytest.raises(DraftgaugeError, match="no draft of one got beyond its first token"):
        decay_rows({"one": synthetic_trace(1, 2, 8, 1)})


def test_the_command_records_drafters_along_one_output(tmp_path: Path) -> None:
    models, out = save_models(tmp_path), tmp_path / "study"
    asked = ("study", "kvshot", "--target", models["target"], "--held-out", models["prompts"], "--out", out)
    drafters = f"{models['drafter']},lookup"
    result = succeeds(*asked, "--decay", drafters, "--decay-prompts", 3, "--json", tmp_path / "decay.json")
    rows = rows_of(tmp_path / "decay.json")
    assert {row["drafter"] for row in rows} == {str(models["drafter"]), "lookup"}
    assert {row["prompts"] for row in rows} == {3}
    assert " loses most: " in result.stdout.replace("\n", " ")
    assert "leave out --plan" in refusal(*asked, "--decay", "lookup", "--plan")
    assert "unknown drafter 'oracle'" in refusal(*asked, "--decay", "oracle")
