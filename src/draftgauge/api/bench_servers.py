"""Running servers against each other, each at a setting of its own, prompt by prompt; and how far advice was off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgauge.api.arms import PLAIN, Arm, ArmRun, BenchPrompt, bench_arms
from draftgauge.api.bench_rows import bench_rows
from draftgauge.api.profile_plan import choose_prompts
from draftgauge.api.requests import BenchRequest
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress
from draftgauge.core.prompts import Prompt
from draftgauge.core.provenance import read_measurement
from draftgauge.core.seeds import generator
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.prompts_text import encode_with
from draftgauge.models.reference import REFERENCE
from draftgauge.serving.client import CLIENTS, complete
from draftgauge.serving.counters import served_models


def bench_servers(request: BenchRequest, progress: Progress) -> list[dict[str, Any]]:
    """Rows of :func:`~draftgauge.api.bench_rows.bench_rows`, one arm a server, with ``engine``; where advice is given
    also ``advised``, ``expected`` (its speed-up) and ``off`` (measured over expected, minus 1).

    Raises:
        DraftgaugeError: if no server is named ``plain``, names are doubled, or a server does not answer.
    """
    urls = _named(request.urls)
    if request.folder is not None:
        raise DraftgaugeError("--url asks running servers, which have models of their own: leave out the recorded run")
    engine = request.server_engine
    if engine not in CLIENTS:
        raise DraftgaugeError(f"a server of {engine} is not asked: choose --server-engine {' or '.join(CLIENTS)}")
    expected = {} if request.advice is None else _advice(read_measurement(request.advice).rows, engine)
    for url in urls.values():
        served_models(engine, url)
    _, chosen = choose_prompts(request.prompts)
    prompts = _encoded(request, chosen)
    arms = [_arm(name, engine, url, request.output.max_new_tokens) for name, url in urls.items()]
    rng = generator(request.randomness.seed, "bench", engine)
    label = f"bench {engine}"
    decoded = bench_arms(arms, prompts, request.rounds, rng, lambda done, total: progress(label, done, total))
    return [_with_advice(row | {"engine": engine}, expected) for row in bench_rows(arms, prompts[:decoded], "none")]


def _named(urls: Sequence[str]) -> dict[str, str]:
    pairs = [url.partition("=") for url in urls]
    names = [name for name, _, _ in pairs]
    if not all(equals and name and "://" not in name for name, equals, _ in pairs) or len(set(names)) < len(names):
        raise DraftgaugeError(
            "give each server as SETTING=URL, and each setting once, e.g. --url plain=http://127.0.0.1:8000 --url "
            "fixed:4=http://127.0.0.1:8001"
        )
    if PLAIN not in names:
        raise DraftgaugeError(f"speeds are over plain decoding: name the server without speculation {PLAIN}=URL")
    return {name: url for name, _, url in pairs}


def _encoded(request: BenchRequest, prompts: Sequence[Prompt]) -> list[BenchPrompt]:
    source = request.pair.loading.tokenizer or request.pair.target or REFERENCE
    tokenizer = load_tokenizer(source, request.pair.loading.trust_remote_code)
    return [BenchPrompt(encode_with(tokenizer, prompt), prompt.task) for prompt in prompts]


def _arm(name: str, engine: str, url: str, max_new_tokens: int) -> Arm:
    def decode(prompt: list[int]) -> ArmRun:
        answer = complete(engine, url, prompt, max_new_tokens)
        return ArmRun(
            answer.tokens, answer.steps or 0, len(answer.tokens), answer.decode_seconds, answer.prefill_seconds
        )

    return Arm(name, decode)


def _advice(rows: Sequence[Mapping[str, Any]], engine: str) -> dict[str, Mapping[str, Any]]:
    found = {str(row["setting"]): row for row in rows if row.get("engine") == engine and "speedup" in row}
    if not found:
        raise DraftgaugeError(f"--advice holds no rows of `draftgauge advise --engine {engine} --json FILE`")
    return found


def _with_advice(row: dict[str, Any], expected: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if not expected:
        return row
    advice = expected.get(row["policy"], {})
    speedup = advice.get("speedup")
    off = None if speedup is None else row["ratio_to_plain"] / speedup - 1
    return row | {"advised": advice.get("advised"), "expected": speedup, "off": off}
