"""Costs from ``vllm bench forward``: its cases, its two results, a served step that calibrates them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import refusal, succeeds
from draftgauge.traces.engine_costs import read_costs

BATCHES, LENGTHS, CONTEXTS = (1, 8), (2, 4), (256, 4096)


def seconds(batch: int, length: int, context: int, drafter: bool) -> float:
    verify = 0.01 + 0.0002 * batch * (length + 1) + 1e-7 * batch * context
    return verify + drafter * 4 * (0.001 + 2e-9 * batch * context)  # which drafts 4 tokens whatever is verified


def results(document: dict[str, Any], drafter: bool) -> list[dict[str, Any]]:
    """As 0.33 writes them."""
    written = []
    for case in document["cases"]:
        (shape,) = case["requests"]
        shape = dict(shape)
        batch, length = shape.pop("count"), shape["num_draft_tokens"]
        taken = seconds(batch, length, shape["kv_len"] - shape["query_len"], drafter) * 1e6
        requests = [shape | {"chunked": False}] * batch
        ranks = [{"num_tokens": batch * (length + 1), "latency_us": {"median": taken}}]
        written.append({"case": case["name"], "requests": requests, "median_us": taken, "ranks": ranks})
    return written


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    listed = {name: tmp_path / f"{name}.json" for name in ("cases", "target", "drafter", "costs")}
    shape = [f"--{name}={','.join(map(str, of))}" for name, of in (("lengths", LENGTHS), ("batches", BATCHES))]
    said = succeeds("costs", "--cases", listed["cases"], *shape, f"--contexts={CONTEXTS[0]},{CONTEXTS[1]}").stdout
    assert "wrote 12 cases" in said
    assert said.count("vllm bench forward") == 2
    assert said.count("--exclude-drafter") == 1
    assert "--max-model-len 4106" in said.replace("\n", " ")
    document = json.loads(listed["cases"].read_text())
    assert document["cases"][3]["requests"] == [{"query_len": 3, "kv_len": 4099, "num_draft_tokens": 2, "count": 1}]
    for name in ("target", "drafter"):
        listed[name].write_text(json.dumps(results(document, name == "drafter")))
    return listed


def made(files: dict[str, Path], *more: object) -> str:
    both = ("--target-alone", files["target"], "--with-drafter", files["drafter"], "--out", files["costs"])
    return " ".join(succeeds("costs", *both, *more).stdout.split())


def test_two_results_give_verification_drafting_and_the_law(files: dict[str, Path]) -> None:
    said = made(files)
    assert "1e-07 s a step and request" in said
    assert "off by 0.0% at most" in said
    curves = read_costs(files["costs"], "vllm")
    for batch, curve in curves.items():
        for context in (256, 2000, 30_000):  # where nothing was measured too
            expected = seconds(batch, 3, context, False)
            assert curve.verify_seconds(4, context) == pytest.approx(expected, rel=1e-6)
            assert curve.draft_seconds(2, context) == pytest.approx(2 * (0.001 + 2e-9 * batch * context), rel=1e-6)
            assert curve.plain[0] == pytest.approx(seconds(batch, 0, 256, False))


def test_a_served_step_calibrates_every_step(files: dict[str, Path]) -> None:
    forward = seconds(1, 0, 256, False)
    said = made(files, "--served", forward + 0.002)
    assert f"takes 0.002 s ({0.002 / (forward + 0.002):.0%}) beyond its forward pass" in said
    assert read_costs(files["costs"], "vllm")[8].verify_seconds(5, 256) == pytest.approx(
        seconds(8, 4, 256, False) + 0.002
    )


def test_results_that_do_not_fit_are_refused(files: dict[str, Path]) -> None:
    good = json.loads(files["drafter"].read_text())
    both = ("--target-alone", files["target"], "--with-drafter", files["drafter"], "--out", files["costs"])
    for wrong, message in (
        (good[:-1], "are of other cases"),
        ({"results": good}, "is no result of vllm bench forward"),
        ([{"case": "x", "median_us": 1.0}], "is not one of `draftgauge costs --cases`"),
        ([good[0] | {"requests": [{"query_len": 9, "kv_len": 9, "num_draft_tokens": 0}]}], "a query of 9 tokens"),
        ([good[0] | {"median_us": -1}], "in -1e-06 s"),
        ([good[0] | {"median_us": 0.01}], "in 1e-08 s"),  # seconds in place of microseconds
        ([good[0] | {"requests": [good[0]["requests"][0] | {"kv_len": 1e300}]}], "1e+300 in place of a count"),
        ([good[0] | {"requests": [good[0]["requests"][0] | {"kv_len": 0}]}], "-1 in place of a count"),
    ):
        files["drafter"].write_text(json.dumps(wrong))
        assert message in refusal("costs", *both)
    files["drafter"].write_text(json.dumps(good))
    assert "is shorter than its forward pass" in refusal("costs", *both, "--served", "0.001")
    files["target"].write_text(json.dumps(good[2:]))
    files["drafter"].write_text(json.dumps(good[2:]))
    assert "lacks cases" in refusal("costs", *both)
    assert "name --start to measure a server, --cases to write" in refusal("costs")
    assert "--contexts names a number twice" in refusal("costs", "--cases", files["cases"], "--contexts=1,1")
    assert "--batches must name" in refusal("costs", "--cases", files["cases"], "--batches=")
    assert "measure llama-server with --start" in refusal("costs", "-e", "llama-server")
