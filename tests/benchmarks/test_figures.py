"""The tables of the pages are those of the published rows, and these are those of the published run."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.api.replay import replay
from draftgauge.core.provenance import read_measurement

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if "<!-- figures" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name + page.stem)
def test_pages_show_the_published_rows(page: Path) -> None:
    from figures import PLACE, with_tables

    text = page.read_text(encoding="utf-8")
    assert PLACE.search(text)
    assert with_tables(text) == text
    end = "<!-- end of figures -->"
    assert with_tables(text.replace(end, f"| stale |\n{end}")) == text


@pytest.mark.parametrize("run", ["bf16", "nf4"])
def test_the_published_runs_give_the_published_rows(run: str) -> None:
    """For the fixed lengths; ``python benchmarks/real_pair.py judge`` computes all."""
    from real_pair import RUNS

    rows = read_measurement(ROOT / "docs" / "results" / "real-replayed.json").rows
    rows = [r for r in rows if (r["run"], r["design"]) == (run, "all tasks") and r["policy"].startswith("fixed")]
    again = {(row["policy"], row["task"]): row for row in replay(RUNS / run, policies=("fixed",), split="test")}
    assert len(rows) == 5
    for row in rows:
        new = again[row["policy"], row["task"]]
        for name in ("tokens_per_step", "tokens_per_second", "ratio_to_plain", "prompts", "distinct_4grams"):
            assert new[name] == pytest.approx(row[name])
