"""What the parts of ``engines.py`` must reach, one row a goal: measured, wanted, reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common import console

PART = "goals"
OWN = "draft_model:"
SPECULATIVE = "speculative:stopping"
Row = Mapping[str, Any]


def goal_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The goals of those parts that have rows: ``goal``, ``measured`` with ``low`` and ``high`` where there is an
    interval, ``wanted``, ``reached``.
    """
    by_part: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["part"] != PART:
            by_part.setdefault(row["part"], {})[row["policy"]] = row
    goals = [*_plain(by_part.get("plain", {})), *_advice(by_part), *_vllm(by_part.get("vllm", {}))]
    goals += _generate(by_part.get("generate", {}))
    for goal in goals:
        sign = "reached" if goal["reached"] else "MISSED"
        console.print(f"{goal['goal']}: {goal['measured']:.3f}, wanted {goal['wanted']}: {sign}", highlight=False)
    return goals


def _goal(
    text: str, measured: float, wanted: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """A figure that must be at least what is wanted."""
    row = {"part": PART, "policy": None, "goal": text, "measured": measured, "low": low, "high": high}
    return row | {"wanted": wanted, "reached": measured >= wanted}


def _plain(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Ratios there are over the gguf engine, so they are turned over."""
    for other, wanted in (("llama-server", 0.9), ("lean", 1.8)):
        if other in rows:
            ratio, low, high = (rows[other][f"ratio_to_plain{end}"] for end in ("", "_low", "_high"))
            yield _goal(f"plain decoding of gguf over that of {other}", 1 / ratio, wanted, 1 / high, 1 / low)


def _advice(by_part: Mapping[str, Mapping[str, Row]]) -> Iterator[dict[str, Any]]:
    for rows in by_part.values():
        for row in rows.values():
            if row.get("advised"):
                best = next(name for name, other in rows.items() if other["of_best"] == 1)
                text = f"{row['engine']}: speed of the advised setting ({row['policy']}) over the best tried ({best})"
                yield _goal(text, row["of_best"], 0.95)


def _vllm(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    own = [row for name, row in rows.items() if name.startswith(OWN)]
    if own:
        best = max(own, key=lambda row: row["gain"])
        speeds = (1 / (1 + best[f"gain{end}"]) for end in ("", "_high", "_low"))
        measured, low, high = speeds
        text = f"vLLM: stopping over vLLM's own draft model at its best length ({best['policy']})"
        yield _goal(text, measured, 1.0, low, high)
    for name, row in rows.items():
        if row.get("accepted") is not None:
            equal = (row["drafted"], row["accepted"]) == (row["drafted_here"], row["accepted_here"])
            text = f"vLLM: drafted and accepted tokens of {name} ({row['drafted']}, {row['accepted']}) are draftgauge's"
            yield _goal(text, float(equal), 1.0)


def _generate(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    if SPECULATIVE in rows:
        row = rows[SPECULATIVE]
        text = f"generate: {SPECULATIVE} over the best of assisted generation ({row['best_transformers']})"
        yield _goal(text, row["ratio_to_best_transformers"], 1.5)
