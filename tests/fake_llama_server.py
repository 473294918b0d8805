"""A program that answers as llama-server does, whose step takes a known time: for tests of servers that are started."""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from engine_server import llama_metrics, models_page, serving

PLAIN, TOKEN, DRAFTED, ALONE, TEXT = 0.010, 0.002, 0.004, 0.003, 1e-6  # seconds


def step(length: int, at_once: int, context: int) -> float:
    """Seconds of a step that drafts and verifies so many tokens of each request."""
    return PLAIN + at_once * (TOKEN * (length + 1) + TEXT * context) + DRAFTED * length


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "host", "spec-type", "spec-draft-model", "spec-draft-p-min", "spec-synth-rates", "slow"):
        parser.add_argument(f"--{name}")
    for name in ("--port", "--parallel", "--ctx-size", "--spec-draft-n-max", "--ignores"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--metrics", action="store_true")
    given = parser.parse_args()
    length, lock, asked = given.ignores or given.spec_draft_n_max, threading.Lock(), [0]
    length = length if given.spec_type else 0
    slow, counts = Path(given.slow or "."), [0, 0, 0]
    factor = 1.5 if length and not slow.exists() else 1.0  # of the first server that drafts
    slow.touch()

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        with lock:
            asked[0] += 1
        time.sleep(0.05)  # for the others to come
        with lock:
            together = asked[0]
        time.sleep(0.05)
        accepts = length if given.spec_synth_rates else 0
        steps = -(-(body["n_predict"] - 1) // (accepts + 1))
        seconds = factor * steps * (ALONE if "draft" in given.model else step(length, together, len(body["prompt"])))
        with lock:
            asked[0] -= 1
            counts[:] = [counts[0] + steps, counts[1] + steps * length, counts[2] + steps * accepts]
        timings = {"predicted_n": 1 + steps * (accepts + 1), "predicted_ms": 1000 * seconds, "prompt_ms": 1.0}
        timings |= {"draft_n": steps * length, "draft_n_accepted": steps * accepts} if length else {}
        return {"tokens": list(range(body["n_predict"])), "timings": timings}

    pages = {"/health": (200, "{}"), "/v1/models": (200, models_page("m")), "/completion": complete}
    pages |= {"/tokenize": (200, json.dumps({"tokens": list(range(100))}))}
    pages |= {"/metrics": lambda _: llama_metrics(*counts)}
    with serving(pages, given.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
