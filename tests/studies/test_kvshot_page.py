"""The page of the study, from rows alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import read_measurement, write_measurement
from draftgauge.studies.kvshot.page import render_kvshot
from draftgauge.studies.kvshot.presets import CONTROL, HIDDEN, KV, at_equal_width
from draftgauge.studies.kvshot.results import study_rows, tuned_rows
from draftgauge.studies.kvshot.tuning import Trial, Tuned
from kvshot_results import ALPHAS, results


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Rows as they come back from a JSON file."""
    folder = tmp_path_factory.mktemp("study")
    wide = {at_equal_width(variant): ALPHAS[variant] for variant in (HIDDEN, KV)}
    tuned = Tuned((Trial(1e-3, 0.05), Trial(2e-3, 0.05)), (2.034, 1.567))
    found = [*study_rows(results(folder, ALPHAS | wide)), *tuned_rows({KV: tuned})]
    write_measurement(folder / "rows.json", "test", found)
    return [dict(row) for row in read_measurement(folder / "rows.json").rows]


def test_the_page_holds_what_was_found(rows: list[dict]) -> None:
    page = render_kvshot(rows, {"hybrid-seed2": "RuntimeError: <out of memory>"}, {"command": "draftgauge"})
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
