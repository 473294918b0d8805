"""``draftgauge bench-servers``: servers interleaved prompt by prompt, in the formats of llama.cpp and of vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import draftgauge, refusal, rows_of, succeeds
from draftgauge.traces.engine_costs import read_costs
from engine_server import error_page, llama_answer, models_page, serving, vllm_answer
from tiny import save_tiny

MODELS = {"/v1/models": (200, models_page("m"))}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("inputs")
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello", "task": "a"}\n{"prompt": "there", "task": "b"}\n')
    tokenizer = str(save_tiny(folder / "target"))
    return ["--prompts", str(prompts), "--tokenizer", tokenizer, "--rounds", "2", "--max-new-tokens", "8"]


def benched(arguments: list[str], out: Path) -> dict[str, dict[str, Any]]:
    succeeds("bench-servers", *arguments, "--json", str(out))
    return {row["policy"]: row for row in rows_of(out) if row["task"] == "all"}


@pytest.fixture
def llama_servers() -> Iterator[list[str]]:
    """One without speculation and one at a fixed length, as arguments."""
    with (
        serving(MODELS | {"/completion": (200, json.dumps(llama_answer(80.0)))}) as plain,
        serving(MODELS | {"/completion": (200, json.dumps(llama_answer(40.0, drafted=8, accepted=5)))}) as fixed,
    ):
        yield [f"plain={plain}", f"fixed:4={fixed}", "--engine", "llama-server"]


def test_llama_servers(inputs: list[str], llama_servers: list[str], tmp_path: Path) -> None:
    found = benched([*inputs, *llama_servers], tmp_path / "rows.json")
    assert found["fixed:4"]["ratio_to_plain"] == pytest.approx(2.0)
    assert found["fixed:4"]["tokens_per_step"] == pytest.approx(8 / 3)
    assert found["fixed:4"]["mismatches"] == 0
    assert found["plain"]["tokens_per_second"] == pytest.approx(7 / 0.08)  # the first token is the prompt's
    assert found["plain"]["tpot_p90_ms"] == pytest.approx(1e3 * 0.08 / 7)
    assert benched([*inputs, *llama_servers, "--at-least", "1.9"], tmp_path / "rows.json")["fixed:4"]["reached"]
    slow = draftgauge(["bench-servers", *inputs, *llama_servers, "--at-least", "2.1"])
    assert (slow.exit_code, "below --at-least 2.1: fixed:4 at 2.00x" in slow.message) == (1, True)


def test_costs_of_servers_are_written(inputs: list[str], llama_servers: list[str], tmp_path: Path) -> None:
    servers, plain = llama_servers, llama_servers[0]
    with serving(MODELS | {"/completion": (200, json.dumps(llama_answer(14.0)))}) as draft:
        costs = ["--costs-out", str(tmp_path / "costs.json")]
        found = benched([*inputs, *servers, f"draft={draft}", *costs], tmp_path / "rows.json")
        assert set(found) == {"plain", "fixed:4"}
        curve = read_costs(tmp_path / "costs.json", "llama-server")[1]
        assert curve.plain[0] == pytest.approx(0.08 / 7)
        assert curve.draft[0][4] == pytest.approx(4 * 0.014 / 7)
        assert curve.step_seconds(4, 256) == pytest.approx(0.04 / 2)  # 7 tokens, 5 of them accepted
        benched([*inputs, *servers, *costs], tmp_path / "rows.json")
        whole = read_costs(tmp_path / "costs.json", "llama-server")[1]
        assert whole.step_seconds(4, 256) == pytest.approx(0.04 / 2)
        assert whole.draft[0][4] == pytest.approx(0.04 / 2 - 0.08 / 7)
        assert "--costs-out" in refusal("bench-servers", *inputs, *servers, f"draft={draft}")
        assert "fixed:4=URL" in refusal("bench-servers", *inputs, plain, "--engine", "llama-server", *costs)


@pytest.mark.parametrize(
    "said",
    [
        {"drafted": 12, "accepted": 11},  # no step drafts more than 4, as the server's setting says
        {"drafted": 9, "accepted": 9, "draft_rounds": 3},
    ],
)
def test_an_answer_that_ends_inside_a_draft_took_the_steps_that_it_took(
    said: dict[str, int], inputs: list[str], llama_servers: list[str], tmp_path: Path
) -> None:
    """Of 8 tokens that 4 passes gave, the tokens less the accepted ones would be 1 or none."""
    answer = llama_answer(40.0, drafted=said["drafted"], accepted=said["accepted"])
    answer["timings"] |= {name: value for name, value in said.items() if name == "draft_rounds"}
    with serving(MODELS | {"/completion": (200, json.dumps(answer))}) as url:
        costs = ["--costs-out", str(tmp_path / "costs.json"), "--engine", "llama-server"]
        found = benched([*inputs, llama_servers[0], f"fixed:4={url}", *costs], tmp_path / "rows.json")
    assert found["fixed:4"]["tokens_per_step"] == pytest.approx(8 / 4)
    curve = read_costs(tmp_path / "costs.json", "llama-server")[1]
    assert curve.step_seconds(4, 256) == pytest.approx(0.04 / 3)


def test_a_length_that_did_not_take_effect_is_said(inputs: list[str], llama_servers: list[str]) -> None:
    """Two servers that draft alike, and one that drafts more than it is named for."""
    for drafted, names, message in (
        (38, ("fixed:2", "fixed:4"), "fixed:2 and fixed:4 draft 2.00 and 2.00 tokens a step, so the length did not"),
        (76, ("fixed:2",), "fixed:2 drafts more than 2 tokens a step"),
    ):
        answer = json.dumps(llama_answer(40.0, range(1, 41), drafted=drafted, accepted=20))
        with serving(MODELS | {"/completion": (200, answer)}) as url:
            servers = [f"{name}={url}" for name in names]
            assert message in refusal("bench-servers", *inputs, llama_servers[0], *servers, "-e", "llama-server")


def test_servers_named_by_setting_alone_are_started(inputs: list[str], tmp_path: Path) -> None:
    model = tmp_path / "draft.gguf"
    model.write_bytes(b"")
    program = f"{sys.executable} {Path(__file__).parents[1] / 'fake_llama_server.py'}"
    started = ["--target", str(model), "--drafter", str(model), "--program", program, "-e", "llama-server"]
    found = benched([*inputs, "plain", "fixed:2", "fixed:4", *started], tmp_path / "rows.json")
    assert set(found) == {"plain", "fixed:2", "fixed:4"}
    assert found["fixed:4"]["tokens_per_step"] == pytest.approx(1, abs=0.2)


def test_what_is_asked_of_a_bench_is_asked_of_servers_too(
    inputs: list[str], llama_servers: list[str], tmp_path: Path
) -> None:
    costs = tmp_path / "new" / "costs.json"
    asked = ["--seconds", "1e-9", "--over", "plain", "--costs-out", str(costs)]
    found = benched([*inputs, *llama_servers, *asked], tmp_path / "rows.json")
    assert {(row["prompts"], row["over"]) for row in found.values()} == {(1, "plain")}
    assert found["fixed:4"]["gain"] == pytest.approx(1.0)
    assert costs.is_file()
    for wrong, message in (
        (["--over", "fixed:2"], "plain, fixed:4, not 'fixed:2'"),
        (["--turns", "2"], "single turns"),
    ):
        assert message in refusal("bench-servers", *inputs, *llama_servers, *wrong)


def test_vllm_servers(inputs: list[str], tmp_path: Path) -> None:
    slower = vllm_answer(100.0, num_accepted_draft_tokens=4, num_draft_tokens=9)
    with (
        serving(MODELS | {"/v1/completions": (200, json.dumps(vllm_answer()))}) as plain,
        serving(MODELS | {"/v1/completions": (200, json.dumps(slower))}) as fixed,
    ):
        servers = [f"plain={plain}", f"fixed:4={fixed}"]
        found = benched([*inputs, *servers], tmp_path / "rows.json")
        with serving(MODELS | {"/v1/completions": (200, json.dumps(vllm_answer() | {"metrics": None}))}) as untimed:
            said = refusal("bench-servers", *inputs, f"plain={untimed}", servers[1])
    assert "the server plain does not say how long it decoded: start it with --enable-per-request-metrics" in said
    assert found["fixed:4"]["ratio_to_plain"] == pytest.approx(0.8)
    assert found["fixed:4"]["tokens_per_step"] == pytest.approx(2.0)


def test_prompts_longer_than_a_server_takes(inputs: list[str], tmp_path: Path) -> None:
    answers = {"/v1/completions": (200, json.dumps(vllm_answer()))}
    with serving(answers | {"/v1/models": (200, models_page("m", max_model_len=9))}) as url:
        costs = ["--costs-out", str(tmp_path / "costs.json"), "--long-prompts", "truncate"]
        unsaid = refusal("bench-servers", f"plain={url}", f"fixed:4={url}", *inputs, *costs)
        assert "fixed:4 does not say what it accepted: start it with --enable-per-request-metrics" in unsaid
        arguments = [f"plain={url}", *inputs]
        assert "longer than the 1 tokens that the models take" in refusal("bench-servers", *arguments)
        cut = benched([*arguments, "--long-prompts", "truncate"], tmp_path / "rows.json")
        assert cut["plain"]["prompts"] == 2


def test_servers_that_cannot_be_compared(inputs: list[str]) -> None:
    with serving(MODELS | {"/v1/completions": (500, error_page("out of memory", 500))}) as url:
        for arguments, message in (
            ([url], "SETTING=URL"),
            ([f"fixed:2={url}"], "plain=URL"),
            ([f"plain={url}", f"plain={url}"], "each setting once"),
            ([f"plain={url}", "--engine", "sglang"], "--engine vllm or llama-server"),
            (["plain=http://127.0.0.1:9"], "no server answers"),
            ([f"plain={url}"], "500: out of memory"),
        ):
            assert message in refusal("bench-servers", *arguments, *inputs)
