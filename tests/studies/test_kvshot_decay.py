"""Acceptance by depth of several drafters along the same outputs, and which of them loses most."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import refusal, rows_of, succeeds
from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.acceptance import acceptance_by_depth
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.studies.kvshot.decay import decay_rows, decay_said
from row_keys import check_keys
from small_profiles import save_models
from synthetic import synthetic_trace


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
