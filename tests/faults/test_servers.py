"""Servers whose answers are cut or changed: figures or an error in words, in time."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.serving import endpoint
from draftgauge.serving.client import complete
from draftgauge.serving.counters import read_counts, served_models
from engine_server import raw_server, vllm_metrics
from faults.mutations import MUTATIONS, nest

ANSWERS = 1000 if os.environ.get("DRAFTGAUGE_FAULTS") == "whole" else 40
METRICS = vllm_metrics(100, 300, 200, (90, 70, 40)).encode()
MODELS = b'{"object": "list", "data": [{"id": "target", "object": "model"}]}'
COMPLETION = b"""{"choices": [{"token_ids": [1, 2, 3], "text": "abc"}], "metrics": {"time_to_first_token_ms": 1.0,
"generation_time_ms": 4.0, "speculative_decoding": {"num_accepted_draft_tokens": 1, "num_draft_tokens": 2}}}"""


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


def ask_all(url: str) -> None:
    """Whatever is asked of a server; errors in words are fine, others fail the test."""
    for ask in (
        lambda: read_counts("vllm", url),
        lambda: served_models("vllm", url),
        lambda: complete("vllm", url, [1, 2], 8),
    ):
        with suppress(DraftgaugeError):
            ask()


@pytest.mark.parametrize("body", [METRICS, MODELS, COMPLETION], ids=["metrics", "models", "completion"])
def test_changed_answers_end_in_figures_or_words(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BYTES", 2**20)
    content, started = [answer(body)], time.monotonic()
    with raw_server(lambda connection: connection.sendall(content[0])) as (url, _):
        ask_all(url)
        for number in range(ANSWERS):
            rng, mutation = np.random.default_rng(number), MUTATIONS[number % len(MUTATIONS)]
            if number % 3 and mutation is not nest:
                content[0] = mutation(rng, answer(body))  # status and headers too
            else:
                content[0] = answer(mutation(rng, body), b"200 OK" if number % 2 else b"500 Oh")
            ask_all(url)
    assert time.monotonic() - started < 5 * ANSWERS
