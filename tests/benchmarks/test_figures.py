"""Tables of the pages are those of the published rows, and how their ratios and speeds are read."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from draftgauge.api.replay import replay
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import read_measurement
from fake_llama_server import step

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


def test_ratios_are_those_of_medians_and_say_what_was_not_run(tmp_path) -> None:
    from limit import BEFORE, Setup, Worker, ratios

    turns = [{"setup": "draftgauge, bf16", "turn": t, "tokens_per_second": s} for t, s in enumerate((9.0, 20.0, 30.0))]
    row = Worker(Setup("draftgauge, bf16", "ours"), turns, tmp_path, "").row()
    assert (row["tokens_per_second"], row["turns"]) == (20.0, 3)
    row["resident_bytes"] = 110.0
    others = [{"setup": f"draftgauge at {BEFORE}, bf16", "tokens_per_second": 8.0}]
    others += [{"setup": "draftgauge, int4", "four_ms": 48.0, "one_ms": 40.0, "tokens_per_second": 25.0}]
    others += [{"setup": "memory", "bytes_per_second": 2500.0}]
    found = {(each["figure"], each["over"]): each for each in ratios("m", [row, *others], (100.0, 100.0), "bf16")}
    assert found["draftgauge, bf16", f"draftgauge at {BEFORE}"]["ratio"] == pytest.approx(2.5)
    assert found["draftgauge, bf16", "memory"] | {"ratio": 0.8, "reached": True} == found["draftgauge, bf16", "memory"]
    assert found["draftgauge, int4", "four tokens"]["ratio"] == pytest.approx(1.2)
    assert found["draftgauge, bf16", "weights"]["reached"]
    assert found["draftgauge, bf16", "transformers"]["ratio"] is None


def test_no_folder_of_the_machine_is_written() -> None:
    from limit import _short

    assert [_short(word) for word in ("--gguf", "q4=/a/b/m.gguf", "/a/model")] == ["--gguf", "q4=m.gguf", "model"]


FAKE = [sys.executable, str(Path(__file__).parents[1] / "fake_llama_server.py")]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_cell_has_the_servers_speeds_and_lengths_must_take_effect(ignored: bool, tmp_path: Path) -> None:
    import served_lengths

    model = tmp_path / "model.gguf"
    model.write_bytes(b"")
    program = shlex.join([*FAKE, *(["--ignores", "3"] if ignored else [])])
    given = argparse.Namespace(engine="llama-server", target=str(model), program=program, max_new_tokens=9)
    given.longest_prompt = 100
    with ExitStack() as running:
        settings = ("plain", "fixed:2", "fixed:4")
        urls = {each: running.enter_context(served_lengths.served(given, str(model), each)) for each in settings}
        if ignored:
            with pytest.raises(DraftgaugeError, match="so it ignored the length"):
                served_lengths.cell_rows(given, urls, [[1, 2], [3, 4, 5]], 1)
            return
        rows = {row["setting"]: row for row in served_lengths.cell_rows(given, urls, [[1, 2], [3, 4, 5]], 1)}
    for length, setting in ((0, "plain"), (2, "fixed:2"), (4, "fixed:4")):
        assert 1 / rows[setting]["tokens_per_second"] == pytest.approx(step(length, 1, 2), rel=1e-3)
        assert (rows[setting]["drafted"], rows[setting]["accepted"]) == (2 * 8 * length, 0)
