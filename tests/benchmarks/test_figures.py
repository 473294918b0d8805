"""The tables of the pages are those of the published rows, and these are those of the published run."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.api.replay import replay
from draftgauge.core.provenance import read_measurement

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/drafters.md")


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_the_published_rows(page: str) -> None:
    from figures import PLACE, with_tables

    text = (ROOT / page).read_text(encoding="utf-8")
    assert PLACE.search(text)
    assert with_tables(text) == text
    assert with_tables(text.replace(" | +", " | -")) == text


def test_the_published_run_gives_the_published_rows() -> None:
    """For the fixed lengths; ``python benchmarks/bundled_pair.py`` computes all."""
    from bundled_pair import ROWS, RUN

    rows = [row for row in read_measurement(ROOT / "docs" / "results" / ROWS).rows if row["policy"].startswith("fixed")]
    again = {
        (row["policy"], row["task"], row["cost_ratio"]): row for row in replay(RUN, policies=("fixed",), split="sealed")
    }
    found = [(row, again[key]) for row in rows if (key := (row["policy"], row["task"], row["cost_ratio"])) in again]
    assert len(found) == 16 * 5
    for row, new in found:
        assert {name: new[name] for name in row if name != "tuned"} == pytest.approx(
            {name: row[name] for name in row if name != "tuned"}
        )
