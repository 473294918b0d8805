"""The acceptance ratios of plain decoding: from medians of turns, and None where a setup could not run."""

from __future__ import annotations

import pytest


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
