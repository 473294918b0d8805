"""Profiling at a temperature above 0: recorded, resumed and replayed by the same verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.api.advise import advise
from draftgauge.api.bench import bench
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.report import write_report
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.traces.run import Manifest, read_trace
from small_profiles import SMALL, save_models

SETTINGS: dict[str, Any] = SMALL | {"temperature": 1.2, "top_k": 40}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return save_models(tmp_path_factory.mktemp("models"), [""] * 5)


@pytest.fixture(scope="module")
def run(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = profile(**models, out=tmp_path_factory.mktemp("run"), **SETTINGS)
    return Path(rows[0]["run"])


def test_a_sampled_run_says_how_it_was_drawn(run: Path) -> None:
    manifest, trace = Manifest.load(run), read_trace(run)
    assert (manifest.temperature, manifest.top_k, manifest.top_p, manifest.complete) == (1.2, 40, 1.0, True)
    assert trace.sampled is not None
    assert 0.05 < np.nanmean(trace.sampled.acceptance) < 1
    assert len({tuple(trace.token[a:b]) for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)}) == 5


def test_an_interrupted_run_goes_on_with_the_same_draws(models: dict[str, Any], run: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("record") and done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(**models, out=tmp_path, progress=stop, **SETTINGS)
    profile(**models, out=tmp_path, **SETTINGS)
    whole, resumed = read_trace(run), read_trace(tmp_path)
    np.testing.assert_array_equal(resumed.token, whole.token)
    np.testing.assert_array_equal(resumed.sampled.draft_token, whole.sampled.draft_token)
    np.testing.assert_array_equal(resumed.sampled.survival, whole.sampled.survival)
    with pytest.raises(TraceError, match="seed: 0, not 1"):
        profile(**models, out=tmp_path, seed=1, **SETTINGS)
    with pytest.raises(TraceError, match=r"temperature: 1.2, not 0.0"):
        profile(**models, out=tmp_path, **SETTINGS | {"temperature": 0.0, "top_k": 0})


def test_sampled_runs_replay_to_the_same_rows(run: Path) -> None:
    found = replay(run, ["no-draft", "fixed", "hf-heuristic", "cumulative-confidence"])
    rows = {row["policy"]: row for row in found if row["task"] == "all"}
    assert rows["no-draft"]["tokens_per_step"] == 1
    assert 1 < rows["fixed:1"]["tokens_per_step"] < rows["fixed:3"]["tokens_per_step"]
    assert rows["fixed:2"]["steps"] != int(rows["fixed:2"]["steps"]), "a mean over walks"
    assert all(row["tokens"] == rows["no-draft"]["tokens"] for row in rows.values())
    assert rows["hindsight"]["tokens_per_second"] >= rows["no-draft"]["tokens_per_second"] * (1 - 1e-9)


def test_policies_that_look_tokens_up_are_left_out_unless_they_are_asked_for(run: Path, tmp_path: Path) -> None:
    assert {"stopping", "two-source"} & {row["policy"] for row in replay(run)} == {"stopping"}
    assert {"stopping", "two-source"} & {row["policy"] for row in advise(run)} == {"stopping"}
    live = {"compression": "uncompressed", "task": "all", "tokens_per_second": 9.0, "ratio_to_plain": 1.5}
    live |= {"policy": "two-source", "mismatches": 0}
    page = write_report(run, tmp_path / "report.html", [live]).read_text()
    assert "two-source" in page  # as measured
    for verb in (replay, advise):
        with pytest.raises(TraceError, match="of sampled decoding does not hold"):
            verb(run, policies=["two-source"])


def test_what_sampling_cannot_do_is_refused(models: dict[str, Any], run: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftgaugeError, match="drafter language_model, not prompt_lookup"):
        profile(**models | {"drafter": "prompt_lookup"}, out=tmp_path / "a", **SETTINGS)
    with pytest.raises(DraftgaugeError, match="top_p"):
        profile(**models, out=tmp_path / "a", **SETTINGS, top_p=1.5)
    assert not (tmp_path / "a").exists()
    with pytest.raises(DraftgaugeError, match="sampled decoding"):
        bench(run)
