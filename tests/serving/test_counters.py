"""Counters and answers of servers: read in the engines' formats, nonsense refused in bounded time and memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving import endpoint
from draftgauge.serving.client import complete
from draftgauge.serving.counters import (
    Sample,
    SpeculationCounts,
    constant_chance,
    parse_metrics,
    read_counts,
    served_models,
    standard_errors,
)
from draftgauge.serving.endpoint import ServerError, fetch_json, fetch_text
from engine_server import (
    error_page,
    llama_answer,
    llama_metrics,
    models_page,
    raw_server,
    serving,
    sglang_metrics,
    vllm_answer,
    vllm_metrics,
)


def test_both_servers_count_alike() -> None:
    expected = SpeculationCounts(259, 1025, 357, (170, 100, 60, 27))
    for engine, page in (
        ("vllm", vllm_metrics(259, 1025, 357, (170, 100, 60, 27))),
        ("llama-server", llama_metrics(259, 1025, 357, (170, 100, 60, 27))),
    ):
        with serving({"/metrics": (200, page)}) as url:
            assert read_counts(engine, url) == expected
    with serving({"/metrics": (200, llama_metrics(259, 1025, 357))}) as url:  # earlier servers count no positions
        assert read_counts("llama-server", url) == SpeculationCounts(259, 1025, 357)
    with serving({"/metrics": (200, sglang_metrics(259, 1025, 357))}) as url:  # of its means
        assert read_counts("sglang", url) == SpeculationCounts(259, 1025, 357)
    page = vllm_metrics(10, 20, 8, (6, 2)) + vllm_metrics(30, 60, 12, (9, 3)).replace('engine="0"', 'engine="1"')
    with serving({"/metrics": (200, page)}) as url:  # engines of one server are added
        assert read_counts("vllm", url) == SpeculationCounts(40, 80, 20, (15, 5))


def test_errors_are_those_of_the_accepted_tokens() -> None:
    accepted = np.repeat([0, 1, 2, 3], [40, 25, 20, 15])
    survival = [float((accepted >= depth).mean()) for depth in (1, 2, 3)]
    expected = [np.minimum(accepted, length).std() / math.sqrt(100) for length in range(4)]
    assert standard_errors(survival, 100) == pytest.approx(expected)


def test_without_positions_acceptance_is_taken_to_be_constant() -> None:
    chance = 0.7
    accepted = sum(chance**depth for depth in range(1, 5))
    assert constant_chance(accepted, 4) == pytest.approx(chance)
    counts = SpeculationCounts(100_000, 400_000, round(100_000 * accepted))
    assert counts.survival() == pytest.approx([chance**depth for depth in range(1, 5)], abs=1e-4)


@pytest.mark.parametrize("by_position", [(800, 320, 256, 205, 164, 131, 105, 84), ()])
def test_drafts_of_many_lengths_have_no_survival(by_position: tuple[int, ...]) -> None:
    """Half of them one token and half eight: that few are accepted to depth two is not the target's doing."""
    counts = SpeculationCounts(1000, 4500, 2065, by_position)
    assert not counts.alike
    with pytest.raises(DraftgaugeError, match=r"differ in length \(4\.5 tokens on average"):
        counts.survival()
    assert SpeculationCounts(259, 1025, 357, by_position[:4] and (170, 100, 60, 27)).alike  # some cut short at the end


def test_metrics_are_read_as_prometheus_writes_them() -> None:
    text = '# a comment\nup 1\nname{a="x\\"y",b="2"} 1.5e+03 1395066363000\n\nnothing NaN\n'
    up, name, nothing = parse_metrics(text)
    assert (up, name) == (Sample("up", 1.0), Sample("name", 1500.0, {"a": 'x\\"y', "b": "2"}))
    assert math.isnan(nothing.value)
    with pytest.raises(DraftgaugeError, match="no page of metrics"):
        parse_metrics("<html>hello</html>")


@pytest.mark.parametrize(
    ("engine", "status", "page", "message"),
    [
        ("vllm", 200, vllm_metrics(0, 0, 0, (0, 0)), "drafted nothing yet"),
        ("vllm", 200, "vllm:num_requests_running 0.0\n", "counts no speculation; start it with --speculative-config"),
        ("vllm", 200, llama_metrics(5, 20, 9), "is one of llama-server"),
        ("vllm", 200, "<html></html>", "no page of metrics"),
        ("llama-server", 501, error_page("This server does not support metrics endpoint. Start it with `--metrics`", 501), "501: This server does not support metrics"),  # noqa: E501
        ("gguf", 200, "", "counters of gguf cannot be read"),
    ],
)  # fmt: skip
def test_servers_that_say_nothing_of_speculation(engine: str, status: int, page: str, message: str) -> None:
    with serving({"/metrics": (status, page)}) as url, pytest.raises(DraftgaugeError, match=message):
        read_counts(engine, url)


def test_a_server_that_lists_no_models() -> None:
    with serving({"/v1/models": (200, models_page("mine"))}) as url:
        assert served_models("vllm", url) == {"mine": None}
    with serving({"/v1/models": (200, "[]")}) as url, pytest.raises(ServerError, match="does not list its models"):
        served_models("vllm", url)
    with serving({"/v1/models": (200, "no json")}) as url, pytest.raises(ServerError, match="not JSON"):
        fetch_json(url, "/v1/models")


PER_POSITION = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%s"} %s\n'


@pytest.mark.parametrize(
    "line",
    [
        "vllm:spec_decode_num_drafts NaN\n",
        "vllm:spec_decode_num_drafts_total +Inf\n",
        "vllm:spec_decode_num_draft_tokens_total -5\n",
        "vllm:spec_decode_num_accepted_tokens_total 1e308\n",
        "vllm:spec_decode_num_accepted_tokens_total 900\n",
        *(PER_POSITION % each for each in (("x", 1), ("", 1), ("-1", 1), ("0.5", 1), ("300000000", 1))),
        *(PER_POSITION % each for each in (("0", "NaN"), ("0", "Inf"), ("0", 999), ("1", 21), ("2", 31))),
    ],
)
def test_counters_that_cannot_be_are_refused(line: str) -> None:
    page = vllm_metrics(100, 300, 200, (90, 70, 40)) + line
    with serving({"/metrics": (200, page)}) as url, pytest.raises(DraftgaugeError, match=r"no count|cannot be"):
        read_counts("vllm", url)


def test_of_several_readings_the_last_counts_and_none_goes_backwards(tmp_path: Path) -> None:
    first, last = vllm_metrics(10, 30, 9, (6, 2, 1)), vllm_metrics(100, 300, 200, (90, 70, 40))
    page = tmp_path / "page.txt"
    page.write_text(first + last)
    assert read_counts("vllm", str(page)) == SpeculationCounts(100, 300, 200, (90, 70, 40))
    page.write_text(last + first)
    with pytest.raises(
        DraftgaugeError, match=r"num_drafts_total goes backwards from 100 to 10: the server started anew"
    ):
        read_counts("vllm", str(page))


def test_the_rate_of_earlier_sglang_counts_the_bonus_token() -> None:
    """Up to 0.5.10 the accepted length over the tokens verified, 8 of 20 here; then 7 of 19."""
    for rate in (8 / 20, 7 / 19):
        page = f"sglang:generation_tokens_total 8000\nsglang:spec_accept_length 8.0\nsglang:spec_accept_rate {rate}\n"
        with serving({"/metrics": (200, page)}) as url:
            assert read_counts("sglang", url) == SpeculationCounts(1000, 19000, 7000)


VLLM = vllm_answer(
    num_spec_steps=10, num_draft_tokens=30, num_accepted_draft_tokens=9, acceptance_histogram=[4, 4, 1, 1]
)


def test_sglang_s_count_of_steps_is_of_all_requests_and_not_of_the_latest() -> None:
    page = "sglang:generation_tokens_total 8010\nsglang:spec_accept_length 3.0\nsglang:spec_accept_rate 0.5\n"
    page += "sglang:spec_verify_calls_total 3200\nsglang:num_requests_total 10\n"
    with serving({"/metrics": (200, page)}) as url:
        assert read_counts("sglang", url) == SpeculationCounts(3200, 12800, 4800)
    with serving({"/metrics": (200, page.replace("3200", "100"))}) as url:  # more than these could have accepted
        assert read_counts("sglang", url).drafts == 2670


def sglang_counted(drafted: str, accepted: str, *histogram: str) -> dict[str, Any]:
    return {"spec_verify_ct": 10, drafted: 30, accepted: 9} | {key: [4, 4, 1, 1] for key in histogram}


def llama_counted(predicted: int, drafted: int, accepted: int, **rounds: int) -> dict[str, Any]:
    return {"timings": {"predicted_n": predicted, "draft_n": drafted, "draft_n_accepted": accepted} | rounds}


OLD, NEXT = ("spec_draft_token_num", "spec_accept_token_num"), ("spec_proposed_drafts", "spec_accepted_drafts")
NOW = ("spec_num_proposed_drafts", "spec_num_correct_drafts")
WHOLE = SpeculationCounts(10, 30, 9, (6, 2, 1))


@pytest.mark.parametrize(
    ("engine", "answers", "expected"),
    [
        ("vllm", [VLLM], WHOLE),
        ("sglang", [{"meta_info": sglang_counted(*OLD, "spec_accept_histogram")}], WHOLE),
        ("sglang", [{"meta_info": sglang_counted(*NEXT)}], replace(WHOLE, by_position=())),
        ("sglang", [{"choices": [{"meta_info": sglang_counted(*NOW, "spec_correct_drafts_histogram")}]}], WHOLE),
        ("sglang", [{"sglext": {"spec_tokens_details": sglang_counted(*NOW)}}], replace(WHOLE, by_position=())),
        ("sglang", [{"meta_info": {}}, {"meta_info": sglang_counted(*OLD, "spec_accept_histogram")}], WHOLE),
        ("llama-server", [llama_counted(2, 4, 4, draft_rounds=1)] * 3, SpeculationCounts(3, 12, 12)),
        ("llama-server", [llama_counted(2, 4, 4)] * 3, SpeculationCounts(3, 12, 12)),
        # Three rounds of 4 accepted whole are 15 tokens, of which 8 were kept; the long answer says the length.
        ("llama-server", [llama_counted(81, 80, 60), llama_counted(9, 12, 12)], SpeculationCounts(23, 92, 72)),
    ],
)
def test_answers_count_what_their_servers_do(
    engine: str, answers: list[dict[str, Any]], expected: SpeculationCounts, tmp_path: Path
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    assert read_counts(engine, str(path)) == expected


@pytest.mark.parametrize(
    ("engine", "text", "message"),
    [
        ("sglang", json.dumps(VLLM), "line 1 has no counters of sglang"),
        ("sglang", '{"meta_info": {"spec_new": 3}}', "has no counters of sglang .*name another engine or version"),
        ("sglang", '{"meta_info": "x"}', "has no counters of sglang"),
        ("vllm", '{"choices": [{"avg_decoded_tokens_per_iter": 2.5}]}', "is of TensorRT-LLM, which says a mean"),
        ("vllm", 'data: {"choices": []}\n\ndata: [DONE]\n', "events of streams: ask without stream"),
        ("llama-server", json.dumps(llama_counted(9, 4, 5)), "5 accepted tokens of 4 drafted ones, which cannot be"),
        (
            "vllm",
            json.dumps(VLLM).replace("[4, 4, 1, 1]", "[4, 4, 2]"),
            "counts 8 accepted tokens by position and 9 in",
        ),
        ("vllm", json.dumps(VLLM).replace("[4, 4, 1, 1]", "[0, 14]"), "14 tokens accepted at position 1 and 10 before"),
        ("vllm", json.dumps(VLLM).replace("30", '"30"'), "has no counters of vllm"),
    ],
)
def test_answers_that_say_nothing_or_nonsense(engine: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(DraftgaugeError, match=message):
        read_counts(engine, str(path))


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


VLLM_TIMED = vllm_answer(4.0, (1, 2, 3, 4), num_accepted_draft_tokens=1, num_draft_tokens=2)
LLAMA = llama_answer(4.0, (1, 2, 3, 4), drafted=2, accepted=1)


def completed(engine: str, answer: Any) -> Any:
    path = {"vllm": "/v1/completions", "llama-server": "/completion"}[engine]
    with serving({"/v1/models": (200, '{"data": [{"id": "m"}]}'), path: (200, json.dumps(answer))}) as url:
        return complete(engine, url, [1], 4)


@pytest.mark.parametrize(("engine", "answer"), [("vllm", VLLM_TIMED), ("llama-server", LLAMA)])
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
