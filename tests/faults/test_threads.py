"""Many calls in one process, in several threads and from inside each other: each has its own text, nothing piles up."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import draftgauge
from faults.test_campaign import WHOLE
from generating import draft_of, prompt, target_of
from small_profiles import save_models

THREADS, CALLS, IN_A_ROW = (4, 50, 300) if WHOLE else (4, 2, 12)


@pytest.mark.parametrize("used", ["one speculation", "a pair", *["two of one model"] * WHOLE])
def test_calls_have_their_own_text_and_leave_nothing_behind(used: str, tmp_path: Path) -> None:
    models = save_models(tmp_path)
    pair = draftgauge.load_pair(target=str(models["target"]), drafter=str(models["drafter"]), device="cpu")
    both = [draftgauge.speculative(draft_of("gpt2"), "fixed:3", engine="modules") for _ in range(2)]

    def decode(seed: int, then: Callable[..., object] = lambda *told: False) -> list[int]:
        if used == "a pair":
            ids = prompt(seed=seed)[0].tolist()
            return draftgauge.generate(pair, ids, "fixed:3", max_new_tokens=12, on_text=then).tokens
        asked = {"custom_generate": both[seed % 2 if used.startswith("two") else 0], "max_new_tokens": 12}
        criteria = [lambda ids, scores: ids[:, 0] < int(bool(then()))]
        return target_of("gpt2").generate(prompt(seed=seed), stopping_criteria=criteria, **asked)[0].tolist()

    alone, seeds = [decode(seed) for seed in range(THREADS)], list(range(THREADS)) * CALLS
    assert len(set(map(tuple, alone))) == THREADS
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(decode, seeds)) == alone * CALLS
        with pytest.raises(draftgauge.DraftgaugeError, match="begin it when the other one has ended"):
            decode(0, lambda *told: decode(0))
        assert pool.submit(decode, 0).result(timeout=60) == alone[0]
    counts = []
    for _ in range(3):
        assert [decode(seed % THREADS) for seed in range(IN_A_ROW // 3)] == (alone * IN_A_ROW)[: IN_A_ROW // 3]
        counts.append(gc.collect() * 0 + len(gc.get_objects()))
    assert counts[2] - counts[1] < IN_A_ROW / 3
