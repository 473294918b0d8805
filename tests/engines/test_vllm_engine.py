"""vLLM and llama.cpp's server on the bundled pair: outputs and counts of ours, costs measured, advice given."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from command_line import draftgauge, rows_of
from draftgauge.api.doctor import doctor
from draftgauge.api.export import export
from draftgauge.api.profile import profile
from draftgauge.api.train import train
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.mtp.families import FAMILIES, family_of
from draftgauge.models.folder import PAIR_FOLDER, reference_path
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import encode_with, end_tokens
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.policies.spec import make_policy
from draftgauge.requests import PairSpec
from draftgauge.serving.client import complete
from draftgauge.serving.counters import parse_metrics, read_counts
from draftgauge.serving.endpoint import fetch_json, fetch_text
from draftgauge.serving.requests_trace import import_requests
from draftgauge.traces.engine_costs import BY_DRAFTGAUGE, EngineCosts, read_costs
from engine_processes import llama_server, need_llama_server, need_vllm, vllm_server
from engine_steps import LONGEST, live_steps, trimmed
from gguf_files import convert, need_converter, need_libllama, write_gguf
from launching import ENGINES
from mtp_heads import save_with_heads
from tiny import tiny_tokenizer, tokens

pytestmark = pytest.mark.slow
OUTPUT, DEPTHS = 48, 4
METRICS = ("--per-request-spec-decode-metrics", "detailed")
SAMPLES = 600


@pytest.fixture(scope="module")
def pair() -> Pair:
    need_vllm()
    return load_pair(PairSpec(target="reference"))


@pytest.fixture(scope="module")
def prompts(pair: Pair) -> list[list[int]]:
    encoded = [pair.encode(p) for p in read_prompts(PAIR_FOLDER / "prompts" / "validation.jsonl")[::8]]
    return [tokens for tokens in encoded if len(tokens) < 500][:6]


def speculation(model: str, length: int, **options: Any) -> tuple[str, ...]:
    config = {"method": "custom_class", "model": f"draftgauge.integrations.{model}", "num_speculative_tokens": length}
    ours = {"drafter": str(reference_path("draft")), "device": "cpu"} | options
    more = json.dumps({"draftgauge": ours})
    return "--speculative-config", json.dumps(config), "--additional-config", more


def completion(url: str, prompt: list[int], **options: Any) -> Any:
    model = fetch_json(url, "/v1/models")["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0.0, "return_token_ids": True}
    return fetch_json(url, "/v1/completions", body | options, 600.0)


def counter(url: str, name: str) -> float:
    """One of vLLM's counters."""
    samples = parse_metrics(fetch_text(url, "/metrics"))
    return sum(sample.value for sample in samples if sample.name == name)


@pytest.mark.parametrize("policy", ["fixed:4", "stopping"])
def test_outputs_and_counts_are_ours(pair: Pair, prompts: list[list[int]], policy: str, tmp_path: Path) -> None:
    costs, answers = tmp_path / "costs.json", tmp_path / "answers.jsonl"
    draft, verify = (tuple(base + each * n for n in range(LONGEST + 1)) for base, each in ((0, 0.002), (0.01, 0.0005)))
    EngineCosts("vllm", (1,), (0.01,), (verify,), (draft,), BY_DRAFTGAUGE).save(costs)
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=pair.end_tokens)
    options = speculation("vllm.Proposer", LONGEST, policy=policy, costs=str(costs))
    with vllm_server(reference_path("target"), *options, *METRICS) as url:
        one = [completion(url, prompt) for prompt in prompts]
        counts = read_counts("vllm", url)
        with ThreadPoolExecutor(4) as pool:  # the same requests, four at a time
            four = list(pool.map(lambda prompt: completion(url, prompt), prompts))
        reused = counter(url, "vllm:prefix_cache_hits_total")
    assert reused > 0  # tokens of prompts that were not computed again
    answers.write_text("\n".join(map(json.dumps, one)))
    drafted = accepted = 0
    for prompt, answer, again in zip(prompts, one, four, strict=True):
        plain = plain_decode(pair.target, prompt, settings).tokens
        assert answer["choices"][0]["token_ids"] == plain
        assert again["choices"][0]["token_ids"] == plain
        expected = [step for step in live_steps(pair, policy, costs, prompt, plain) if step[0]]
        told = answer["metrics"]["speculative_decoding"]
        assert list(map(list, zip(told["per_step_drafted"], told["per_step_accepted"], strict=True))) == expected
        drafted += sum(step[0] for step in expected)
        accepted += sum(step[1] for step in expected)
    assert (counts.drafted, counts.accepted) == (drafted, accepted)
    if policy.startswith("fixed"):
        assert len(import_requests(answers).trace.prompts) == len(prompts)


def test_preempted_requests(pair: Pair, prompts: list[list[int]]) -> None:
    """A KV cache too small for its requests: some lose their place, are computed anew, and are drafted for again."""
    few = ("--max-model-len", "256", "--block-size", "32", "--num-gpu-blocks-override", "17")  # one block is vLLM's own
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=pair.end_tokens)
    options = speculation("vllm.Proposer", DEPTHS, policy=f"fixed:{DEPTHS}")
    with vllm_server(reference_path("target"), *options, *METRICS, *few) as url:
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda prompt: completion(url, prompt), prompts))
        counts, preempted = read_counts("vllm", url), counter(url, "vllm:num_preemptions_total")
    assert preempted > 0
    drafted = accepted = undisturbed = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        plain = plain_decode(pair.target, prompt, settings).tokens
        assert answer["choices"][0]["token_ids"] == plain
        told = answer["metrics"]["speculative_decoding"]
        steps = list(zip(told["per_step_drafted"], told["per_step_accepted"], strict=True))
        assert all(0 <= right <= count <= DEPTHS for count, right in steps)
        assert sum(right + 1 for _, right in steps[:-1]) < len(plain)  # the last step may pass the output's end
        drafted += sum(count for count, _ in steps)
        accepted += sum(right for _, right in steps)
        undisturbed += sum(right for _, right in live_steps(pair, f"fixed:{DEPTHS}", None, prompt, plain))
    assert (counts.drafted, counts.accepted) == (drafted, accepted)
    assert accepted > 0.8 * undisturbed  # a preemption costs a draft, not what is drafted afterwards


def open_question(pair: Pair, prompts: list[list[int]]) -> tuple[list[int], torch.Tensor]:
    """A text whose next token is certain and the one behind it is not, and the chances of the latter."""
    for prompt in prompts:
        output = plain_decode(pair.target, prompt, DecodingSettings(max_new_tokens=OUTPUT)).tokens
        pair.target.reset()
        chances = torch.softmax(pair.target.forward(torch.tensor(prompt + output)).double(), -1)[len(prompt) - 1 :]
        for at, (one, two) in enumerate(pairwise(chances.amax(-1).tolist())):
            if one > 0.99 and two < 0.6:
                return prompt + output[:at], chances[at + 1]
    raise AssertionError("no prompt leaves anything open")


def test_samples_have_the_targets_distribution(pair: Pair, prompts: list[list[int]]) -> None:
    """Of the second token, which is verified against a draft."""
    prompt, exact = open_question(pair, prompts)
    with vllm_server(reference_path("target"), *speculation("vllm.Proposer", 3, policy="fixed:3")) as url:
        answer = completion(url, prompt, temperature=1.0, n=SAMPLES, max_tokens=3, seed=1)
        counts = read_counts("vllm", url)
    seen = Counter(choice["token_ids"][1] for choice in answer["choices"])
    assert seen.total() == SAMPLES
    assert 0 < counts.accepted < counts.drafted
    likely = [token for token in exact.argsort(descending=True).tolist() if exact[token] * SAMPLES >= 5]
    bins = [(seen[token], float(exact[token]) * SAMPLES) for token in likely[:-1]]  # the last one is with the rest
    bins.append((SAMPLES - sum(count for count, _ in bins), SAMPLES - sum(mean for _, mean in bins)))
    statistic = sum((count - mean) ** 2 / mean for count, mean in bins)
    assert len(bins) > 1
    assert chi2.sf(statistic, len(bins) - 1) > 1e-4


def test_costs_are_measured_and_advised_with(prompts: list[list[int]], tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    with vllm_server(reference_path("target"), *speculation("vllm_costs.CostProbe", 6, costs_out=str(costs))) as url:
        for prompt in prompts:
            complete("vllm", url, prompt, OUTPUT)
    assert read_costs(costs, "vllm")[1].gamma_max == 6
    profile(per_task=1, max_new_tokens=16, gamma_max=6, cost_seconds=0.2, out=tmp_path / "run")
    result = draftgauge(["advise", str(tmp_path / "run"), "-e", "vllm", "--costs", str(costs)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("format_", ["eagle3", "dflash"])
def test_an_exported_drafter_is_accepted_step_by_step(prompts: list[list[int]], format_: str, tmp_path: Path) -> None:
    trained, exported = tmp_path / "trained", tmp_path / "exported"
    answers = {"questions": 96, "new_tokens": 32, "length": 192}
    recipe = "ttt" if format_ == "eagle3" else "block"
    train(out=trained, target="reference", reuse="hidden", recipe=recipe, steps=120, batch=2, depths=DEPTHS, **answers)
    assert export(trained, out=exported)[0]["format"] == format_
    config = {"method": format_, "model": str(exported), "num_speculative_tokens": DEPTHS}
    with vllm_server(reference_path("target"), "--speculative-config", json.dumps(config), *METRICS) as url:
        answered = [completion(url, prompt) for prompt in prompts]
        counts = read_counts("vllm", url)
    pair = load_pair(PairSpec(target="reference", drafter=str(trained)))
    plain = load_model("reference", device="cpu")
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=pair.end_tokens)
    by_position = Counter[int]()
    for prompt, answer in zip(prompts, answered, strict=True):
        output = answer["choices"][0]["token_ids"]
        assert output == plain_decode(plain, prompt, settings).tokens
        steps = live_steps(pair, f"fixed:{DEPTHS}", None, prompt, output)
        assert answer["metrics"]["speculative_decoding"]["per_step_accepted"] == [accepted for _, accepted in steps]
        by_position.update(depth for _, accepted in steps for depth in range(accepted))
    assert counts.by_position == tuple(by_position[depth] for depth in range(DEPTHS))
    assert counts.accepted > 0


@pytest.mark.parametrize(
    ("kind", "architecture", "length"), [("qwen2", "MiMoForCausalLM", 1), ("glm4_moe", "Glm4MoeForCausalLM", 3)]
)
def test_mtp_heads_are_accepted_step_by_step(
    kind: str, architecture: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_vllm()
    name, family = family_of(kind)
    monkeypatch.setitem(FAMILIES, name, replace(family, zero_first=True))  # as vLLM has it in every family
    sizes = {"vocab_size": 96, "hidden_size": 128, "max_position_embeddings": 1024}
    save_with_heads(tmp_path, kind, 1, outer="model.", **sizes)
    tiny_tokenizer(96).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings |= {"architectures": [architecture], "num_nextn_predict_layers": 1, "eos_token_id": None, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    asked = [tokens(9 + seed, seed).tolist() for seed in range(8)]
    config = {"method": "mtp", "num_speculative_tokens": length}
    with vllm_server(tmp_path, "--speculative-config", json.dumps(config), *METRICS) as url:
        answered = [completion(url, prompt, ignore_eos=True) for prompt in asked]
    pair, accepted = replace(load_pair(PairSpec(target=str(tmp_path), drafter="mtp")), end_tokens=frozenset()), 0
    for prompt, answer in zip(asked, answered, strict=True):
        output = answer["choices"][0]["token_ids"]
        assert output == plain_decode(pair.target, prompt, DecodingSettings(max_new_tokens=OUTPUT)).tokens
        steps = live_steps(pair, f"fixed:{length}", None, prompt, output)
        assert answer["metrics"]["speculative_decoding"]["per_step_accepted"] == [right for _, right in steps]
        accepted += sum(right for _, right in steps)
    assert accepted > 0


LENGTH, LLAMA_OUTPUT = 4, 48


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_llama_server()
    need_libllama()
    folder, tokenizer = tmp_path_factory.mktemp("gguf"), load_tokenizer("reference")
    return {p: write_gguf(reference_path(p), folder / f"{p}.gguf", tokenizer) for p in ("target", "draft")}


@pytest.fixture(scope="module")
def encoded() -> list[list[int]]:
    tokenizer = load_tokenizer("reference")
    return [encode_with(tokenizer, p) for p in read_prompts(PAIR_FOLDER / "prompts" / "validation.jsonl")[::24]]


def test_outputs_counts_and_advice(files: dict[str, Path], encoded: list[list[int]], tmp_path: Path) -> None:
    target, draft = load_model("reference", device="cpu"), load_model("reference/draft", device="cpu")
    ends = end_tokens(target, load_tokenizer("reference"))
    settings = DecodingSettings(max_new_tokens=LLAMA_OUTPUT, end_tokens=ends)
    options = ("--spec-type", "draft-simple", "--spec-draft-model", str(files["draft"]))
    kinds = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32", "--spec-draft-n-max", str(LENGTH))
    expected = accepted = 0
    with llama_server(files["target"], *options, *kinds) as url:
        for prompt in encoded:
            answer = complete("llama-server", url, prompt, LLAMA_OUTPUT)
            plain = plain_decode(target, prompt, settings).tokens
            assert [t for t in answer.tokens if t not in ends] == [t for t in plain if t not in ends]
            drafter = LanguageModelDrafter(draft, ends, None, None, target.spec.vocabulary)
            first = DecodingSettings(max_new_tokens=LLAMA_OUTPUT - 1, end_tokens=ends)
            live = speculative_decode(target, drafter, make_policy(f"fixed:{LENGTH}", 16), [*prompt, plain[0]], first)
            expected += sum(step.accepted for step in live.steps)
            accepted += answer.accepted
        counts = read_counts("llama-server", url)
        result = draftgauge(["advise", "-e", "llama-server", "--url", url, "--json", str(tmp_path / "rows.json")])
    assert abs(accepted - expected) <= 0.02 * expected  # ends of outputs are counted differently
    assert counts.accepted == accepted
    assert len(counts.by_position) == LENGTH
    assert sum(counts.by_position) == counts.accepted
    assert result.exit_code == 0, result.output
    rows = rows_of(tmp_path / "rows.json")
    assert rows[LENGTH]["tokens_per_step"] == pytest.approx(1 + counts.accepted / counts.drafts)


@ENGINES
def test_drafting_changes_no_answer(files: dict[str, Path]) -> None:
    options = ("--spec-type", "draft-simple", "--spec-draft-model", str(files["draft"]))
    kinds = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32", "--spec-draft-n-max", str(LENGTH))
    with llama_server(files["target"], *options, *kinds) as url, llama_server(files["target"]) as plain:
        rows = doctor(url=url, against=plain, server="llama-server", samples=15, max_new_tokens=LLAMA_OUTPUT, limit=4)
    status = {row["check"]: row["status"] for row in rows}
    assert status["parity-greedy"] in ("well", "suspect"), rows
    assert status["parity-sampled"] == "well", rows


@ENGINES
def test_an_exported_drafter_is_accepted_step_by_step_in_llama_cpp(
    files: dict[str, Path], encoded: list[list[int]], tmp_path: Path
) -> None:
    """Trained without the norms that llama.cpp has no place for."""
    need_converter()
    sizes = {"questions": 96, "new_tokens": 32, "length": 192, "steps": 120, "batch": 2, "depths": LENGTH}
    train(out=tmp_path / "hidden", target="reference", reuse="hidden", llama_cpp=True, **sizes)
    export(tmp_path / "hidden", out=tmp_path / "eagle3")
    drafter = convert(
        tmp_path / "eagle3", tmp_path / "eagle3.gguf", "--target-model-dir", str(reference_path("target"))
    )
    pair = load_pair(PairSpec(target="reference", drafter=str(tmp_path / "hidden")))
    options = ("--spec-type", "draft-eagle3", "--spec-draft-model", str(drafter), "--spec-draft-n-max", str(LENGTH))
    kinds = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32")
    by_position = Counter[int]()
    with llama_server(files["target"], *options, *kinds) as url:
        for prompt in encoded:
            answer = complete("llama-server", url, prompt, LLAMA_OUTPUT)
            steps = live_steps(pair, f"fixed:{LENGTH}", None, prompt, answer.tokens, drafts_end=False)
            steps = trimmed(steps, LLAMA_OUTPUT)
            assert (answer.drafted, answer.accepted) == (sum(d for d, _ in steps), sum(a for _, a in steps))
            by_position.update(depth for _, accepted in steps for depth in range(accepted))
        counts = read_counts("llama-server", url)
    assert counts.by_position == tuple(by_position[depth] for depth in range(LENGTH))
    assert counts.accepted > 0


def test_a_server_without_speculation(files: dict[str, Path]) -> None:
    with llama_server(files["target"]) as url:
        complete("llama-server", url, [5, 6, 7], 4)
        result = draftgauge(["advise", "-e", "llama-server", "--url", url])
    assert result.exit_code == 2
    assert "--spec-type draft-simple" in result.stderr
