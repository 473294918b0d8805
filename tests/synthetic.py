"""Random traces for tests: consistent in every respect, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from draftgauge.core.errors import TraceError
from draftgauge.judging.replay import Replay, Walk, walked
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import Manifest, ModelEntry, PromptsEntry
from draftgauge.traces.sampled import drawn
from draftgauge.traces.trace import COLUMNS, PromptInfo, PromptRecord, Trace, accepted_lengths
from draftgauge.traces.writer import make_trace

TASKS = ("code", "math", "chat", "summarization")
SPLITS = ("train", "validation", "test")


def synthetic_record(
    rng: np.random.Generator, index: int, length: int, gamma_max: int, max_new_tokens: int, vocabulary: int = 50
) -> PromptRecord:
    """One prompt whose drafts agree with the output with a probability that wanders along the text.

    Some drafts are short or empty, as where a drafter ends the text or has no more to propose.
    """
    token = rng.integers(0, vocabulary, length).astype(np.int32)
    easy = 1 / (1 + np.exp(-np.cumsum(rng.normal(0, 0.5, length)) - 1.0))  # [N] chance that a drafted token is right
    continuation = np.concatenate([token, rng.integers(0, vocabulary, gamma_max)])
    ahead = np.lib.stride_tricks.sliding_window_view(continuation, gamma_max)[:length]  # [N, G]
    right = rng.random((length, gamma_max)) < easy[:, None]
    draft_token = np.where(right, ahead, rng.integers(0, vocabulary, (length, gamma_max))).astype(np.int32)
    drafted = np.where(rng.random(length) < 0.2, rng.integers(0, gamma_max + 1, length), gamma_max)
    present = np.arange(gamma_max) < drafted[:, None]
    draft_token[~present] = -1
    confidence = np.clip(easy[:, None] + rng.normal(0, 0.2, (length, gamma_max)), 0.05, 0.999)
    margin = confidence * rng.random((length, gamma_max))
    signals = [
        np.where(present, values, np.nan).astype(np.float32) for values in (confidence, -np.log2(confidence), margin)
    ]
    prompt_tokens = int(rng.integers(1, 400))
    info = PromptInfo(
        index=index,
        identifier=f"p{index}",
        task=TASKS[index % len(TASKS)],
        split=SPLITS[index // len(TASKS) % len(SPLITS)],
        prompt_tokens=prompt_tokens,
        output_tokens=length,
        finish="length" if length == max_new_tokens else "stop",
        prompt_token=tuple(np.random.default_rng(index).integers(0, vocabulary, prompt_tokens).tolist()),
    )
    return PromptRecord(
        info=info,
        token=token,
        target_entropy=rng.exponential(1.0, length).astype(np.float32),
        draft_token=draft_token,
        confidence=signals[0],
        entropy=signals[1],
        margin=signals[2],
        accepted=accepted_lengths(token, draft_token),
    )


def synthetic_records(seed: int, prompts: int, length: int, gamma_max: int) -> list[PromptRecord]:
    """Prompts of 1 to ``length`` output tokens; the first has exactly ``length``."""
    if min(prompts, length, gamma_max) < 1:
        raise TraceError("prompts, length and gamma_max must be at least 1")
    rng = np.random.default_rng(seed)
    lengths = [length, *(int(n) for n in rng.integers(1, length + 1, prompts - 1))]
    return [synthetic_record(rng, index, n, gamma_max, max_new_tokens=length) for index, n in enumerate(lengths)]


def synthetic_trace(seed: int, prompts: int, length: int, gamma_max: int, compression: str = "uncompressed") -> Trace:
    """A whole trace of :func:`synthetic_records`, with ``max_new_tokens`` = ``length``."""
    return make_trace(
        synthetic_records(seed, prompts, length, gamma_max), max_new_tokens=length, compression=compression
    )


def repeating_trace(seed: int, prompts: int, length: int, gamma_max: int, vocabulary: int = 6) -> Trace:
    """As :func:`synthetic_trace`, of few different tokens and outputs that copy from prompt and output now and then, so
    that the text foretells much.
    """
    rng = np.random.default_rng([seed, 2])
    records = []
    for index in range(prompts):
        count = length if index == 0 else int(rng.integers(1, length + 1))
        record = synthetic_record(rng, index, count, gamma_max, length, vocabulary)
        prompt = rng.integers(0, vocabulary, int(rng.integers(1, 20))).tolist()
        text = list(prompt)
        while len(text) < len(prompt) + count:
            start = int(rng.integers(0, len(text)))
            copied = text[start : start + int(rng.integers(1, 9))]
            text += copied if rng.random() < 0.6 else [int(rng.integers(0, vocabulary))]
        token = np.array(text[len(prompt) : len(prompt) + count], np.int32)
        right = np.arange(gamma_max) < rng.integers(0, gamma_max + 1, count)[:, None]
        following = np.concatenate([token, rng.integers(0, vocabulary, gamma_max).astype(np.int32)])
        ahead = np.lib.stride_tricks.sliding_window_view(following, gamma_max)[:count]
        draft_token = np.where((record.draft_token >= 0) & right, ahead, record.draft_token).astype(np.int32)
        info = replace(record.info, prompt_tokens=len(prompt), prompt_token=tuple(prompt))
        accepted = accepted_lengths(token, draft_token)
        records.append(replace(record, info=info, token=token, draft_token=draft_token, accepted=accepted))
    return make_trace(records, max_new_tokens=length)


def overconfident(trace: Trace) -> Trace:
    """As drafted by a drafter that is always sure, and seven times of eight wrong at its first token."""
    wrong = (np.arange(trace.positions) % 8 > 0) & (trace.draft_token[:, 0] >= 0)
    drafted = trace.draft_token.copy()
    drafted[wrong, 0] = (trace.token[wrong] + 1) % 12
    sure = np.where(np.isnan(trace.confidence), trace.confidence, np.float32(0.9))
    return replace(trace, draft_token=drafted, accepted=np.where(wrong, 0, trace.accepted), confidence=sure)


def sampled_record(rng: np.random.Generator, record: PromptRecord, vocabulary: int = 50) -> PromptRecord:
    """The record as if of sampled decoding: its drafts are refused ones, and the chances are any."""
    drafted = record.drafted > 0
    draft_token = record.draft_token.copy()
    draft_token[drafted, 0] = (record.token[drafted] + 1) % vocabulary  # what was refused is not what the output has
    survival = np.minimum(1, rng.exponential(0.8, len(record.token)))
    chances = [np.where(drafted, values, np.nan).astype(np.float32) for values in (rng.random(len(drafted)), survival)]
    return replace(
        record,
        draft_token=draft_token,
        accepted=accepted_lengths(record.token, draft_token),
        acceptance=chances[0],
        survival=chances[1],
    )


def sampled_records(seed: int, prompts: int, length: int, gamma_max: int) -> list[PromptRecord]:
    """As :func:`synthetic_records`, of sampled decoding."""
    rng = np.random.default_rng([seed, 1])
    return [sampled_record(rng, record) for record in synthetic_records(seed, prompts, length, gamma_max)]


def sampled_trace(seed: int, prompts: int, length: int, gamma_max: int) -> Trace:
    """A whole trace of :func:`sampled_records`."""
    return make_trace(sampled_records(seed, prompts, length, gamma_max), max_new_tokens=length)


def coin_walks(trace: Trace) -> Iterator[tuple[float, Trace]]:
    """Every trace that could be drawn from a trace of few positions, with its chance: first all refused, last none."""
    assert trace.sampled is not None
    survival = np.nan_to_num(trace.sampled.survival.astype(np.float64))
    for coins in product((0, 1), repeat=trace.positions):
        sure = replace(trace.sampled, survival=np.array(coins, np.float32))
        yield float(np.where(coins, survival, 1 - survival).prod()), drawn(replace(trace, sampled=sure))


def synthetic_manifest(count: int, gamma_max: int, max_new_tokens: int, **changes: Any) -> Manifest:
    """The manifest of a run that would record ``count`` such prompts; ``changes`` replace its fields."""
    manifest = Manifest(
        draftgauge="0.1.0",
        command="draftgauge profile --out here",
        created="2026-01-02T03:04:05+00:00",
        environment={"python": "3.11.7"},
        target=ModelEntry("target", "t" * 8, "uncompressed", "qwen3", "lean", "float32"),
        draft=ModelEntry("draft", "d" * 8, "uncompressed", "qwen3", "lean", "float32"),
        drafter="language_model",
        device="cpu",
        gamma_max=gamma_max,
        max_new_tokens=max_new_tokens,
        seed=0,
        prompts=PromptsEntry("prompts.jsonl", "a" * 64, count, TASKS),
    )
    return replace(manifest, **changes)


def replay_steps(trace: Trace, rows: np.ndarray, drafted: np.ndarray, costs: CostCurve) -> Replay:
    """The outcome of the steps that start at some rows, in order, and draft so many tokens."""
    none = np.zeros_like(drafted)
    walk = Walk(rows, drafted, none, np.minimum(drafted, trace.accepted[rows]), none)
    return walked(trace, walk, costs)


def same_rows(one: Trace, other: Trace) -> bool:
    """Whether two traces hold the same prompts and, byte for byte, the same rows."""
    arrays = ("offsets", *COLUMNS)
    return one.prompts == other.prompts and all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in arrays
    )
