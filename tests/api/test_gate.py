"""A live bench fit for a gate: percentiles, outliers decoded again, and an exit code for what is asked at least."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import draftgauge, refusal, rows_of
from draftgauge.api import bench as module
from draftgauge.benching.arms import Arm, ArmRun, BenchPrompt, bench_arms
from draftgauge.benching.bench_rows import bench_rows, hold_to
from draftgauge.requests import PLAIN

PROMPTS = [BenchPrompt([n], "task") for n in range(10)]


def arms_of(seconds: Callable[[int, int], float]) -> list[Arm]:
    """Plain decoding, and an arm that takes ``seconds(prompt, visit)`` for 4 tokens behind a first one."""
    visits: dict[tuple[str, int], int] = {}

    def arm(name: str) -> Arm:
        def decode(prompt: list[int]) -> ArmRun:
            visit = visits[name, prompt[0]] = visits.get((name, prompt[0]), -1) + 1
            taken = 4.0 if name == PLAIN else seconds(prompt[0], visit)
            return ArmRun([1, 2, 3, 4, 5], 5, 4, taken, 0.1 * (1 + prompt[0]))

        return Arm(name, decode)

    return [arm(PLAIN), arm("fixed:2")]


@pytest.mark.parametrize(("rounds", "runs"), [(None, 4), (3, 3)])
def test_rounds_that_differ_are_decoded_again_by_all_unless_their_number_was_asked_for(
    rounds: int | None, runs: int
) -> None:
    arms = arms_of(lambda prompt, visit: 20.0 if (prompt, visit) == (7, 2) else 2.0)
    bench_arms(arms, PROMPTS, rounds, np.random.default_rng(0), lambda done, total: None)
    for arm in arms:
        assert [len(of) for of in arm.runs] == [3] * 7 + [runs] + [3] * 2


def test_rows_have_percentiles_over_prompts_and_say_what_was_reached() -> None:
    arms = arms_of(lambda prompt, visit: 1.0 + 0.2 * prompt)
    bench_arms(arms, PROMPTS, 1, np.random.default_rng(0), lambda done, total: None)
    rows = hold_to(bench_rows(arms, PROMPTS, ""), 2.0)
    row = next(row for row in rows if (row["task"], row["policy"]) == ("all", "fixed:2"))
    each = 1e3 * (1.0 + 0.2 * np.arange(10)) / 4
    assert [row[f"tpot_p{p}_ms"] for p in (50, 90, 99)] == pytest.approx(np.percentile(each, (50, 90, 99)))
    assert [row[f"ttft_p{p}_ms"] for p in (50, 90)] == pytest.approx(np.percentile(100.0 * np.arange(1, 11), (50, 90)))
    assert row["ratio_to_plain"] == pytest.approx(40 / 19)
    assert [row["reached"] for row in rows if "verdict" in row] == [row["ratio_to_plain"] >= 2.0] == [True]
    assert not any("reached" in row for row in hold_to(bench_rows(arms, PROMPTS, ""), None))


def test_less_than_asked_for_is_exit_code_1_and_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = arms_of(lambda prompt, visit: 2.0)
    bench_arms(arms, PROMPTS, 1, np.random.default_rng(0), lambda done, total: None)

    def measured(request: Any, progress: Any) -> list[dict[str, Any]]:
        return hold_to(bench_rows(arms, PROMPTS, "bf16"), request.at_least)

    monkeypatch.setattr(module, "bench", measured)
    file = tmp_path / "bench.json"
    shown = draftgauge(["bench", "--at-least", "2.5", "--json", str(file)])
    assert shown.exit_code == 1
    assert "below --at-least 2.5: fixed:2 at 2.00x (bf16)" in shown.message
    assert any(row.get("reached") is False for row in rows_of(file))  # kept all the same
    passed = draftgauge(["bench", "--at-least", "1.9"])
    assert (passed.exit_code, "below" in passed.message) == (0, False)
    for verb in (["bench"], ["bench-servers", "plain=http://127.0.0.1:9"]):
        assert "--at-least must be" in refusal(*verb, "--at-least", "0")
