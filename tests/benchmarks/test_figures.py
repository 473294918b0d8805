"""The README's tables are those of the published results, and these are those of the published runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.provenance import read_measurement
from draftgauge.fitting import tuning
from draftgauge.policies.registry import compared_policies, grid_specs, tunable_policies

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
FINAL = RESULTS / "final"
COMPRESSIONS = {"none", "int8", "nf4"}
FITTED = {"stopping", "two-source"}
TASKS = {"code", "math", "chat", "summarization", "all"}


@pytest.fixture(scope="module")
def published() -> Sequence[dict[str, Any]]:
    return [dict(row) for row in read_measurement(RESULTS / "speckv.json").rows]


def of(rows: Sequence[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["table"] == table]


def test_the_readme_shows_the_published_rows(published: Sequence[dict[str, Any]]) -> None:
    from figures import OTHERS, with_tables

    others = [read_measurement(RESULTS / name).rows for name in OTHERS]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_tables(text, published, *others) == text
    changed = [row | {"gain": row["gain"] + 0.001} if row["table"] == "spread" else row for row in published]
    assert with_tables(text, changed, *others) != text


def test_the_page_on_drafters_shows_the_published_rows() -> None:
    from figures import drafter_rows, with_drafter_tables

    text = (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8")
    rows = drafter_rows(RESULTS)
    assert with_drafter_tables(text, rows) == text
    for table, measured in rows.items():
        changed = [row | {name: row[name] + 0.01 for name in row if isinstance(row[name], float)} for row in measured]
        assert with_drafter_tables(text, rows | {table: changed}) != text


def test_the_page_on_two_sources_shows_the_published_rows() -> None:
    from figures import SOURCES, with_source_tables

    text = (ROOT / "docs" / "two-sources.md").read_text(encoding="utf-8")
    rows = [dict(row) for row in read_measurement(RESULTS / SOURCES).rows]
    assert with_source_tables(text, rows) == text
    for table in ("live", "replay"):
        changed = [row | {"gain": row["gain"] + 0.01} if row["table"] == table else row for row in rows]
        assert with_source_tables(text, changed) != text


def test_every_policy_stands_there_on_sealed_prompts_at_its_defaults_and_tuned(
    published: Sequence[dict[str, Any]],
) -> None:
    assert {row["split"] for row in published} == {"sealed"}
    replayed = of(published, "replay")
    assert all(isinstance(row["tuned"], bool) for row in replayed)
    for compression in COMPRESSIONS:
        for task in TASKS:
            rows = [row for row in replayed if (row["compression"], row["task"]) == (compression, task)]
            names = [(row["policy"], row["tuned"]) for row in rows]
            assert len(set(names)) == len(names)
            assert {name for name, tuned in names if not tuned} >= {*compared_policies(), *tunable_policies()}
            assert {name.partition(":")[0] for name, tuned in names if tuned} >= {*tunable_policies(), *FITTED}
            (rival,) = {row["best_rival"] for row in rows}
            assert (rival, True) in names
            for row in rows:
                assert row["gain_over_rival_low"] <= row["gain_over_rival"] <= row["gain_over_rival_high"]
            (own,) = [row for row in rows if row["policy"] == rival and row["tuned"]]
            assert own["gain_over_rival"] == 0.0


def test_gains_over_fits_and_curves_are_there_for_every_task(published: Sequence[dict[str, Any]]) -> None:
    rows = of(published, "spread")
    keys = [(row["compression"], row["policy"], row["task"], row["over"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert set(keys) == set(product(COMPRESSIONS, FITTED, TASKS, ("best fixed", "best tuned rival")))
    assert all(row["repetitions"] >= 2 and row["tuned"] for row in rows)
    assert all(row["gain_low"] <= row["gain"] <= row["gain_high"] for row in rows)


def test_what_is_quick_to_recompute_is_what_is_published(published: Sequence[dict[str, Any]]) -> None:
    from figures import differences, live, repetition
    from figures import published as shown

    assert not list(differences(repetition(FINAL), of(published, "repetition")))
    assert not list(differences(shown(live(FINAL)), of(published, "live")))


@pytest.mark.slow
def test_replayed_again_the_published_runs_give_the_published_rows(
    published: Sequence[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one target, its rivals tuned over what was chosen and every eighth point of the grids.

    ``python benchmarks/figures.py --check`` does so for all targets and points, and fits again.
    """
    from figures import differences, judged
    from figures import published as shown

    rows = [row for row in of(published, "replay") if row["compression"] == "nf4"]
    chosen = {row["policy"] for row in rows if row["tuned"]}

    def few(name: str) -> list[str]:
        return [spec for n, spec in enumerate(grid_specs(name)) if n % 8 == 0 or spec in chosen]

    monkeypatch.setattr(tuning, "grid_specs", few)
    assert not list(differences(shown(judged(FINAL, ("nf4",))), rows))


def test_any_digit_that_differs_is_named() -> None:
    from figures import differences

    row = {"table": "replay", "policy": "svip", "compression": "none", "task": "all", "gain": 0.1, "steps": 3}
    assert not list(differences([row], [row]))
    assert list(differences([row | {"gain": 0.1001}], [row])) == ["replay svip none all, gain: 0.1001 instead of 0.1"]
    assert list(differences([row | {"steps": 4}], [row])) == ["replay svip none all, steps: 4 instead of 3"]
    assert list(differences([], [row])) == ["0 rows instead of 1"]
