"""vLLM on the bundled pair with draftgauge inside: outputs of plain decoding, counts of live decoding, costs measured,
requests imported.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from command_line import draftgauge
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.models.loading import end_tokens, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_with
from draftgauge.models.reference import PAIR_FOLDER, reference_path
from draftgauge.policies.registry import make_policy
from draftgauge.serving.client import complete
from draftgauge.serving.counters import read_counts
from draftgauge.serving.endpoint import ServerError, fetch_json
from draftgauge.serving.requests_trace import import_requests
from draftgauge.traces.engine_costs import read_costs
from engine_processes import need_vllm, vllm_server

pytestmark = pytest.mark.slow
OUTPUT, LONGEST = 48, 16
METRICS = ("--per-request-spec-decode-metrics", "detailed")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    need_vllm()
    tokenizer = load_tokenizer("reference")
    return [encode_with(tokenizer, p) for p in read_prompts(PAIR_FOLDER / "prompts" / "validation.jsonl")[::12]]


def speculation(model: str, length: int, **options: Any) -> tuple[str, ...]:
    config = {"method": "custom_class", "model": f"draftgauge.integrations.{model}", "num_speculative_tokens": length}
    ours = {"draft": str(reference_path("draft")), "device": "cpu"} | options
    more = json.dumps({"draftgauge": ours})
    return "--speculative-config", json.dumps(config), "--additional-config", more


@pytest.mark.parametrize("policy", ["fixed:4", "hf-confidence:threshold=0.4"])
def test_outputs_and_counts_are_ours(prompts: list[list[int]], policy: str, tmp_path: Path) -> None:
    target, draft = load_model("reference", device="cpu"), load_model("reference", device="cpu", part="draft")
    ends = end_tokens(target, load_tokenizer("reference"))
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=ends)
    answers = tmp_path / "answers.jsonl"
    with vllm_server(reference_path("target"), *speculation("vllm.Proposer", LONGEST, policy=policy), *METRICS) as url:
        model = fetch_json(url, "/v1/models")["data"][0]["id"]
        body = {"model": model, "max_tokens": OUTPUT, "temperature": 0.0, "return_token_ids": True}
        one = [fetch_json(url, "/v1/completions", body | {"prompt": prompt}, 600.0) for prompt in prompts]
        counts = read_counts("vllm", url)
        with ThreadPoolExecutor(4) as pool:  # the same requests, four at a time
            four = list(pool.map(lambda p: fetch_json(url, "/v1/completions", body | {"prompt": p}, 600.0), prompts))
        with pytest.raises(ServerError):
            fetch_json(url, "/v1/completions", body | {"prompt": prompts[0], "temperature": 0.8}, 600.0)
    answers.write_text("\n".join(map(json.dumps, one)))
    drafted = accepted = 0
    for prompt, answer, again in zip(prompts, one, four, strict=True):
        plain = plain_decode(target, prompt, settings).tokens
        assert answer["choices"][0]["token_ids"] == plain
        assert again["choices"][0]["token_ids"] == plain
        drafter = LanguageModelDrafter(draft, ends, None, None, target.spec.vocabulary)
        rest = DecodingSettings(max_new_tokens=OUTPUT - 1, end_tokens=ends)
        live = speculative_decode(target, drafter, make_policy(policy, LONGEST), [*prompt, plain[0]], rest)
        drafted += sum(step.drafted for step in live.steps)
        accepted += sum(step.accepted for step in live.steps)
    assert (counts.drafted, counts.accepted) == (pytest.approx(drafted, rel=0.02), pytest.approx(accepted, rel=0.02))
    if policy.startswith("fixed"):
        assert len(import_requests(answers).trace.prompts) == len(prompts)


def test_costs_are_measured_and_advised_with(prompts: list[list[int]], tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    with vllm_server(reference_path("target"), *speculation("vllm_costs.CostProbe", 6, costs_out=str(costs))) as url:
        for prompt in prompts:
            complete("vllm", url, prompt, OUTPUT)
        result = draftgauge(["advise", "-e", "vllm", "--url", url, "--costs", str(costs)])
    assert read_costs(costs, "vllm")[1].gamma_max == 6
    assert result.exit_code == 0, result.output
