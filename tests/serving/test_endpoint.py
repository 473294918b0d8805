"""Servers that drip, flood, break off or answer nonsense: one error each, in bounded time and memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving import endpoint
from draftgauge.serving.client import complete
from draftgauge.serving.endpoint import ServerError, fetch_json, fetch_text
from engine_server import llama_answer, raw_server, serving, vllm_answer

OK = b"HTTP/1.1 200 OK\r\n"
PAGE = b"vllm:spec_decode_num_drafts_total 100\n" * 100
LENGTH = b"Content-Length: 100000\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def sending(
    start: bytes, repeated: bytes = b"", times: int = 0, pause: float = 0.0, told: Callable[[int], object] = abs
) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        for number in range(times):
            connection.sendall(repeated)
            told(number)
            time.sleep(pause)

    return answer


@pytest.mark.parametrize("start", [OK + LENGTH, OK + b"X: ", b""], ids=["body", "header", "status"])
def test_a_server_that_drips_is_given_up(start: bytes) -> None:
    sent: list[int] = []
    dripping = sending(start, b"a", 100, 0.1, sent.append)
    with raw_server(dripping) as (url, _), pytest.raises(ServerError, match=r"not answered within 0\.5 s"):
        fetch_text(url, "/metrics", seconds=0.5)
    assert 0 < len(sent) < 100


@pytest.mark.parametrize("status", [b"200 OK", b"500 Oh"])
def test_a_server_that_floods_is_given_up(status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BYTES", 2**22)
    flooding = sending(b"HTTP/1.1 " + status + b"\r\n\r\n", b"x" * 2**20, 1000)
    with raw_server(flooding) as (url, _), pytest.raises(ServerError, match="more than 4 MiB"):
        fetch_text(url, "/metrics")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (OK + LENGTH + b"abc", "does not answer as HTTP servers do"),
        (b"HTTP/1.1 500 Oh\r\n" + LENGTH + b"abc", "does not answer as HTTP servers do"),
        (OK + CHUNKED + b"-5\r\nabc", "does not answer as HTTP servers do"),
        (OK + CHUNKED + b"ZZZ\r\nabc", "does not answer as HTTP servers do"),
        (OK + b"Content-Length: -5\r\n\r\nabc", "does not answer as HTTP servers do"),
        (OK + b"X: " + b"a" * 200_000 + b"\r\n\r\n", "does not answer as HTTP servers do"),
        (b"\x00\x01\x02" * 100, "does not answer as HTTP servers do"),
        (b"", "does not answer as HTTP servers do"),
        (b"HTTP/1.1 302 F\r\nLocation: http://[::1\r\n\r\n", "a redirection"),
        (b"HTTP/1.1 500 Oh\r\n\r\n" + b"[" * 100_000, r"answers 500: \[\[\["),
        (OK + b"\r\n" + b"[" * 100_000, "not JSON"),
        (OK + b"\r\nnonsense", "not JSON"),
        (b"HTTP/1.1 401 No\r\n\r\n", "set its key in DRAFTGAUGE_API_KEY"),
        (OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(PAGE)[:-9], "breaks its compressed answer off"),
        (OK + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(PAGE)[:-1], "breaks its compressed answer off"),
        (OK + b"Content-Encoding: gzip\r\n\r\nnonsense", "does not answer as HTTP servers do"),
    ],
)  # fmt: skip
def test_answers_that_are_none_are_refused(answer: bytes, message: str) -> None:
    with raw_server(sending(answer)) as (url, _), pytest.raises(ServerError, match=message):
        fetch_json(url, "/v1/models")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "http://", "http://host:port", "http://h:99999999", "http://[::1", "http://h/\udce9"]
)
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(DraftgaugeError, match="is no address of a server"):
        fetch_text(url, "/metrics")


def test_the_key_is_sent_and_a_query_stays_behind_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGAUGE_API_KEY", "secret")
    with raw_server(sending(OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(PAGE))) as (url, _):
        assert fetch_text(url, "/metrics") == PAGE.decode()
    with raw_server(sending(OK + b"\r\nfine")) as (url, asked):
        assert fetch_text(f"{url}/router/?model=a%20b", "/metrics") == "fine"
        assert fetch_text(f"{url}?model=x", "/metrics") == "fine"
    assert asked[0].startswith(b"GET /router/metrics?model=a%20b HTTP")
    assert asked[1].startswith(b"GET /metrics?model=x HTTP")
    assert b"authorization: bearer secret\r\n" in asked[0].lower()


def test_servers_can_be_asked_within_an_event_loop_as_a_notebook_has_one() -> None:
    async def cell(url: str) -> str:
        return fetch_text(url, "/health")

    with serving({"/health": (200, "fine")}) as url:
        assert asyncio.run(cell(url)) == "fine"


VLLM = vllm_answer(4.0, (1, 2, 3, 4), num_accepted_draft_tokens=1, num_draft_tokens=2)
LLAMA = llama_answer(4.0, (1, 2, 3, 4), drafted=2, accepted=1)


def completed(engine: str, answer: Any) -> Any:
    path = {"vllm": "/v1/completions", "llama-server": "/completion"}[engine]
    with serving({"/v1/models": (200, '{"data": [{"id": "m"}]}'), path: (200, json.dumps(answer))}) as url:
        return complete(engine, url, [1], 4)


@pytest.mark.parametrize(("engine", "answer"), [("vllm", VLLM), ("llama-server", LLAMA)])
def test_completions_are_read_and_nonsense_in_any_place_is_refused(engine: str, answer: dict[str, Any]) -> None:
    good = completed(engine, answer)
    assert (good.tokens, good.timed, good.drafted, good.accepted, good.steps) == ([1, 2, 3, 4], 3, 2, 1, 3)
    assert (good.prefill_seconds, good.decode_seconds) == (0.02, 0.004)
    for nonsense in ([], "x", None, 3):
        with pytest.raises(ServerError, match="does not answer as"):
            completed(engine, nonsense)
    numbers = answer["metrics"] if engine == "vllm" else answer["timings"]
    counts = numbers["speculative_decoding"] if engine == "vllm" else numbers
    accepted = "num_accepted_draft_tokens" if engine == "vllm" else "draft_n_accepted"
    seconds = "generation_time_ms" if engine == "vllm" else "predicted_ms"
    tokens, ids = (answer["choices"][0], "token_ids") if engine == "vllm" else (answer, "tokens")
    places = [(counts, accepted, (-1, 3, 1.5, "1", float("inf"))), (numbers, seconds, (0, -1, "4", float("nan"), [1]))]
    places += [(tokens, ids, (["a"], [-1], [None], [10**30], "abc", None))]
    for holder, key, values in places:
        kept = holder[key]
        for value in values:
            holder[key] = value
            with pytest.raises(ServerError, match=r"does not answer as|cannot be"):
                completed(engine, answer)
        holder[key] = kept
