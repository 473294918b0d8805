"""Many calls in one process, in several threads and from inside each other: each has its own text, nothing piles up."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import draftgauge
from draftgauge.core.errors import DraftgaugeError
from faults.test_campaign import WHOLE
from generating import draft_of, prompt, target_of
from small_profiles import save_models

THREADS, CALLS, IN_A_ROW = (4, 50, 300) if WHOLE else (4, 4, 24)
Decode = Callable[..., list[int]]  # of a seed, and of what is called for every step


@pytest.fixture(params=["speculative", "two of one model", "pair"])
def decode(request: pytest.FixtureRequest, tmp_path: Path) -> Decode:
    if request.param == "pair":
        models = save_models(tmp_path)
        pair = draftgauge.load_pair(target=str(models["target"]), draft=str(models["draft"]), device="cpu")
        return lambda seed, then=None: (
            (
                draftgauge.generate(pair, prompt(seed=seed)[0].tolist(), "fixed:3", max_new_tokens=12, on_text=then)[1]
            ).tokens
        )
    target, draft = target_of("gpt2"), draft_of("gpt2")  # transformers' modules, in whose forward a tap is a hook
    used = [draftgauge.speculative(draft, "fixed:3", engine="modules") for _ in range(2)]
    used = used if request.param == "two of one model" else used[:1]

    def decode(seed: int, then: Callable[..., object] | None = None) -> list[int]:
        criteria = [lambda ids, scores: ids[:, 0] < 0 if then is None else [then()]]
        options = {"max_new_tokens": 12, "custom_generate": used[seed % len(used)], "stopping_criteria": criteria}
        return target.generate(prompt(seed=seed), pad_token_id=0, **options)[0].tolist()

    return decode


def test_threads_that_share_a_model_each_get_their_own_text(decode: Decode) -> None:
    alone = [decode(seed) for seed in range(THREADS)]
    assert len(set(map(tuple, alone))) == THREADS
    with ThreadPoolExecutor(THREADS) as pool:
        seeds = list(range(THREADS)) * CALLS
        assert list(pool.map(decode, seeds)) == [alone[seed] for seed in seeds]


def test_a_call_from_inside_a_call_is_refused_and_leaves_no_lock(decode: Decode) -> None:
    before = decode(0)
    with pytest.raises(DraftgaugeError, match="begin it when the other one has ended"):
        decode(0, lambda *told: decode(0))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(decode, 0).result(timeout=60) == decode(0) == before


def test_calls_leave_nothing_behind(decode: Decode) -> None:
    counts = []
    for _ in range(3):
        for number in range(IN_A_ROW // 3):
            decode(number)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < IN_A_ROW / 3
