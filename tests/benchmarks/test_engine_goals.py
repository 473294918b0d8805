"""The goals of the engines' benchmark follow from its rows."""

from __future__ import annotations

from typing import Any

import pytest


def row(part: str, policy: str, ratio: float = 1.0, **changes: Any) -> dict[str, Any]:
    bounds = {"ratio_to_plain": ratio, "ratio_to_plain_low": ratio - 0.1, "ratio_to_plain_high": ratio + 0.1}
    return {"part": part, "policy": policy, "engine": part, "of_best": 0.5, "advised": None} | bounds | changes


def goals(*rows: dict[str, Any]) -> list[tuple[float, float, bool]]:
    from engine_goals import goal_rows

    return [(goal["measured"], goal["wanted"], goal["reached"]) for goal in goal_rows(rows)]


def test_plain_decoding_is_turned_over() -> None:
    from engine_goals import goal_rows

    server, lean = goal_rows([row("plain", "llama-server", 1.25), row("plain", "lean", 0.5)])
    assert (server["measured"], server["wanted"], server["reached"]) == (pytest.approx(0.8), 0.9, False)
    assert (lean["measured"], lean["wanted"], lean["reached"]) == (2.0, 1.8, True)
    assert server["low"] < server["measured"] < server["high"]


def test_the_advised_setting_is_compared_with_the_best() -> None:
    best = row("gguf", "fixed:2", of_best=1.0, advised=False)
    assert goals(best, row("gguf", "plain", of_best=0.96, advised=True)) == [(0.96, 0.95, True)]
    assert goals(best, row("gguf", "plain", of_best=0.94, advised=True)) == [(0.94, 0.95, False)]


def test_vllm_is_compared_at_its_own_best_length_and_counts_are_equal_or_not() -> None:
    gains = {"gain_low": -0.3, "gain_high": 0.1}
    own = [row("vllm", f"draft_model:{n}", gain=gain, **gains) for n, gain in ((1, -0.5), (2, -0.2), (4, -0.4))]
    counts = {"drafted": 30, "accepted": 20, "drafted_here": 30, "accepted_here": 20}
    assert goals(*own, row("vllm", "stopping", **counts)) == [(pytest.approx(1.25), 1.0, True), (1.0, 1.0, True)]
    assert goals(row("vllm", "stopping", **counts | {"accepted_here": 21})) == [(0.0, 1.0, False)]


def test_generate_is_compared_with_the_best_of_assisted_generation() -> None:
    outside = {"best_transformers": "transformers-assisted", "ratio_to_best_transformers": 1.4}
    assert goals(row("generate", "speculative:stopping", **outside)) == [(1.4, 1.5, False)]


def test_goals_of_an_earlier_run_are_not_judged() -> None:
    from engine_goals import PART

    assert goals(row(PART, "lean", 0.5)) == []
