"""One completion of a running server, with what it says of its time, its drafts and its choices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from draftgauge.core.errors import DraftgaugeError, misread
from draftgauge.serving.counters import served_models
from draftgauge.serving.endpoint import COMPLETION_SECONDS, ServerError, fetch_json
from draftgauge.serving.exchange import count


@dataclass(frozen=True)
class How:
    """How tokens are chosen, and of how many the log-probabilities are asked for at each position.

    ``to_the_end``: no end token ends it. ``kept``: llama-server may keep the prompt for the next request.
    """

    temperature: float = 0.0
    likeliest: int = 0
    to_the_end: bool = False
    kept: bool = False


GREEDY = How()


@dataclass(frozen=True)
class Completion:
    """What a server answered."""

    tokens: list[int]  # ids of the output
    prefill_seconds: float  # as the server timed them; where vLLM does not, all is decoding
    decode_seconds: float
    timed: int  # tokens that came in ``decode_seconds``: all but the first where the server times the prefill apart
    drafted: int  # tokens; 0 without speculation
    accepted: int
    steps: int | None  # passes of the target at least: accepted may be more than was kept; None where not known
    likeliest: Sequence[Mapping[int, float]] = ()  # by position: log-probabilities by token, where asked for


def complete(engine: str, url: str, prompt: list[int], max_new_tokens: int, how: How = GREEDY) -> Completion:
    """Ask a server of an engine (one of :data:`CLIENTS`) for a completion of token ids."""
    if engine not in CLIENTS:
        raise DraftgaugeError(f"servers of {engine} cannot be queried: choose one of {', '.join(CLIENTS)}")
    with _as_words(engine, url):
        answer = CLIENTS[engine](url, prompt, max_new_tokens, how)
    if answer.accepted > answer.drafted or (answer.timed and answer.decode_seconds == 0):
        raise ServerError(
            f"the server at {url} says that it accepted {answer.accepted} of {answer.drafted} drafted tokens, and "
            f"decoded {answer.timed} tokens in {answer.decode_seconds:g} s, which cannot be"
        )
    return answer


@contextmanager
def _as_words(engine: str, url: str) -> Iterator[None]:
    try:
        yield
    except DraftgaugeError:  # a ValueError too, and said already
        raise
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerError(f"the server at {url} does not answer as {engine} does ({misread(error)})") from error


def prompt_tokens(engine: str, url: str, request: Mapping[str, Any]) -> list[int]:
    """The token ids of a request as the server reads it: ``messages`` through its own template, or a ``prompt``."""
    with _as_words(engine, url):
        if engine == "vllm":
            model, *_ = served_models(engine, url)
            asked = fetch_json(url, "/tokenize", {"model": model, **request})
        else:
            text = request.get("prompt")
            text = fetch_json(url, "/apply-template", dict(request))["prompt"] if text is None else text
            asked = fetch_json(url, "/tokenize", {"content": text, "add_special": True, "parse_special": True})
        return [count(token) for token in asked["tokens"]]


def _llama(url: str, prompt: list[int], max_new_tokens: int, how: How) -> Completion:
    body = {"prompt": prompt, "n_predict": max_new_tokens, "temperature": how.temperature, "cache_prompt": how.kept}
    if how.temperature:  # the server cuts to the 40 likeliest of 95% by itself
        body |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    body |= ({"n_probs": how.likeliest} if how.likeliest else {}) | ({"ignore_eos": True} if how.to_the_end else {})
    answer = fetch_json(url, "/completion", body | {"return_tokens": True}, COMPLETION_SECONDS)
    timings = answer["timings"]
    predicted, accepted = count(timings["predicted_n"]), count(timings.get("draft_n_accepted", 0))
    drafted = count(timings.get("draft_n", 0))
    return Completion(
        tokens=[count(token) for token in answer["tokens"]],
        prefill_seconds=_number(timings["prompt_ms"]) / 1000,
        decode_seconds=_number(timings["predicted_ms"]) / 1000,
        timed=max(predicted - 1, 0),
        drafted=drafted,
        accepted=accepted,
        # Accepted tokens behind the end of the answer count too, so this is the least.
        steps=max(predicted - accepted, 1 + count(timings.get("draft_rounds", min(1, drafted)))),
        likeliest=[
            {count(token["id"]): float(token["logprob"]) for token in at["top_logprobs"]}
            for at in answer.get("completion_probabilities", ())
        ],
    )


def _vllm(url: str, prompt: list[int], max_new_tokens: int, how: How) -> Completion:
    model, *_ = served_models("vllm", url)
    asked = {"model": model, "prompt": prompt, "max_tokens": max_new_tokens}
    body: dict[str, Any] = asked | {"temperature": how.temperature, "return_token_ids": True}
    if how.temperature:  # else the model's own generation_config.json may cut
        body |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    body |= {"logprobs": how.likeliest, "return_tokens_as_token_ids": True} if how.likeliest else {}
    body |= {"ignore_eos": True} if how.to_the_end else {}
    started = time.perf_counter()
    answer = fetch_json(url, "/v1/completions", body, COMPLETION_SECONDS)
    passed = time.perf_counter() - started
    metrics: dict[str, Any] = answer.get("metrics") or {}
    counted: dict[str, Any] = metrics.get("speculative_decoding") or {}
    decode = metrics.get("generation_time_ms")
    tokens = [count(token) for token in answer["choices"][0]["token_ids"]]
    accepted, drafted = (count(counted.get(f"num_{name}_tokens", 0)) for name in ("accepted_draft", "draft"))
    rounds = count(counted.get("num_spec_steps", min(1, drafted)))
    shown = (answer["choices"][0].get("logprobs") or {}).get("top_logprobs") or ()
    return Completion(
        tokens=tokens,
        prefill_seconds=_number(metrics.get("time_to_first_token_ms") or 0) / 1000,
        decode_seconds=passed if decode is None else _number(decode) / 1000,
        timed=len(tokens) if decode is None else max(len(tokens) - 1, 0),
        drafted=drafted,
        accepted=accepted,
        steps=max(len(tokens) - accepted, 1 + rounds) if counted else None,
        likeliest=[{int(name.removeprefix("token_id:")): float(at[name]) for name in at} for at in shown],
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} in place of a number from 0")
    return float(value)


CLIENTS: dict[str, Callable[[str, list[int], int, How], Completion]] = {"vllm": _vllm, "llama-server": _llama}
