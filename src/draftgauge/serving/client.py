"""One greedy completion of a running server, with what it says of its time and its drafts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving.endpoint import COMPLETION_SECONDS, ServerError, fetch_json


@dataclass(frozen=True)
class Completion:
    """What a server answered.

    Attributes:
        tokens: ids of the output.
        prefill_seconds, decode_seconds: as the server timed them; of vLLM, where it does not, all is decoding.
        timed: tokens that came in ``decode_seconds``: all but the first, which the prompt's pass gives, where the
            server tells the two apart.
        drafted, accepted: tokens; 0 without speculation.
        steps: passes of the target; None where they are not known.
    """

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float
    timed: int
    drafted: int
    accepted: int
    steps: int | None


def complete(engine: str, url: str, prompt: list[int], max_new_tokens: int) -> Completion:
    """Ask a server for a greedy completion of token ids.

    Args:
        engine: "vllm" or "llama-server".
        url: of the server.
        prompt: token ids.
        max_new_tokens: of the output, at most.

    Raises:
        DraftgaugeError: for another engine.
        ServerError: if the server does not answer, or not as this engine does.
    """
    if engine not in CLIENTS:
        raise DraftgaugeError(f"servers of {engine} cannot be asked: choose one of {', '.join(CLIENTS)}")
    try:
        return CLIENTS[engine](url, prompt, max_new_tokens)
    except (KeyError, IndexError, TypeError) as error:
        raise ServerError(f"the server at {url} does not answer as {engine} does ({error!r})") from error


def _llama(url: str, prompt: list[int], max_new_tokens: int) -> Completion:
    body = {"prompt": prompt, "n_predict": max_new_tokens, "temperature": 0.0, "cache_prompt": False}
    answer = fetch_json(url, "/completion", body | {"return_tokens": True}, COMPLETION_SECONDS)
    timings = answer["timings"]
    accepted = int(timings.get("draft_n_accepted", 0))
    return Completion(
        tokens=[int(token) for token in answer["tokens"]],
        prefill_seconds=timings["prompt_ms"] / 1000,
        decode_seconds=timings["predicted_ms"] / 1000,
        timed=max(int(timings["predicted_n"]) - 1, 0),
        drafted=int(timings.get("draft_n", 0)),
        accepted=accepted,
        steps=int(timings["predicted_n"]) - accepted,
    )


def _vllm(url: str, prompt: list[int], max_new_tokens: int) -> Completion:
    body = {
        "model": fetch_json(url, "/v1/models")["data"][0]["id"],
        "prompt": prompt,
        "max_tokens": max_new_tokens,
        "temperature": 0.0,
        "return_token_ids": True,
    }
    started = time.perf_counter()
    answer = fetch_json(url, "/v1/completions", body, COMPLETION_SECONDS)
    passed = time.perf_counter() - started
    metrics: dict[str, Any] = answer.get("metrics") or {}
    counted: dict[str, Any] = metrics.get("speculative_decoding") or {}
    prefill = (metrics.get("time_to_first_token_ms") or 0.0) / 1000
    decode = metrics.get("generation_time_ms")
    tokens = [int(token) for token in answer["choices"][0]["token_ids"]]
    accepted = int(counted.get("num_accepted_draft_tokens", 0))
    return Completion(
        tokens=tokens,
        prefill_seconds=prefill,
        decode_seconds=passed if decode is None else decode / 1000,
        timed=len(tokens) if decode is None else max(len(tokens) - 1, 0),
        drafted=int(counted.get("num_draft_tokens", 0)),
        accepted=accepted,
        steps=len(tokens) - accepted if counted else None,
    )


CLIENTS: dict[str, Callable[[str, list[int], int], Completion]] = {"vllm": _vllm, "llama-server": _llama}
"""How each engine is asked."""
