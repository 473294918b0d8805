"""Published models in every engine and verb: outputs agree, rows are judged by what holds of any model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import draftgauge
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.models.loading import load_model, load_tokenizer, wrap
from draftgauge.models.tokenizer import encode_with
from engine_processes import llama_server, need_llama_server
from gguf_files import need_libllama

pytestmark = pytest.mark.slow
Rows = list[dict[str, Any]]


def run(*words: str, rows: Path | None = None) -> Rows:
    """Run a verb, which must succeed; the rows that it wrote, if it writes some."""
    result = draftgauge([*words, *(["--json", str(rows)] if rows else [])])
    assert result.exit_code == 0, result.output
    return json.loads(rows.read_text())["rows"] if rows else []


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_generate(model: Callable[[str], str], name: str, tmp_path: Path) -> None:
    pair = ["--target", model(name), "--drafter", "prompt_lookup", "--raw", "--max-new-tokens", "12"]
    (row,) = run("generate", "1 2 3 4 5 1 2 3 4 5 1 2", *pair, "--policy", "fixed:3", rows=tmp_path / "rows.json")
    assert row["tokens"] == 12
    assert row["steps"] < 12  # the text is repeated, so that what is looked up in it is accepted
    assert math.isfinite(row["tokens_per_second"])


@pytest.mark.parametrize("suffix", ["", ".gguf"])
def test_a_pair_from_recording_to_advice(
    model: Callable[[str], str], prompts: str, suffix: str, tmp_path: Path
) -> None:
    if suffix:
        need_libllama()
    out = str(tmp_path / "run")
    pair = ["--target", model(f"qwen2.5-coder-1.5b{suffix}"), "--drafter", model(f"qwen2.5-coder-0.5b{suffix}")]
    small = ["--prompts", prompts, "--max-new-tokens", "16"]
    small += ["--gamma-max", "4", "--cost-seconds", "5"]
    recorded = run("profile", *pair, *small, "--out", out, rows=tmp_path / "profile.json")
    (row,) = [row for row in recorded if row["task"] == "all"]
    assert row["first_accepted"] > 0.5  # models of one family, on plain questions
    run("replay", out, "--policy", "stopping")
    (advised, *_) = run("advise", out, rows=tmp_path / "advice.json")
    assert advised["ratio_to_plain"] > 0
    once = ["--rounds", "1", "--limit", "1", "--no-baselines"]
    benched = run("bench", out, "--policy", "fixed:2", *once, rows=tmp_path / "bench.json")
    assert {row["policy"] for row in benched} >= {"plain", "fixed:2"}
    run("report", out, "--out", str(tmp_path / "report.html"))


@pytest.mark.parametrize("name", ["hidden", "kv-block"])
def test_the_trained_drafters(model: Callable[[str], str], prompts: str, name: str, tmp_path: Path) -> None:
    drafter = str(Path(__file__).parents[2] / "drafters" / "smollm2-135m" / name)
    pair = ["--target", model("smollm2-135m"), "--drafter", drafter, "--prompts", prompts, "--compression", "fp32"]
    once = ["--rounds", "1", "--limit", "2", "--no-baselines", "--max-new-tokens", "32", "--over", "plain"]
    rows = run("bench", *pair, *once, "--policy", "fixed:3", rows=tmp_path / "bench.json")
    (row,) = [row for row in rows if (row["policy"], row["task"]) == ("fixed:3", "all")]
    assert row["mismatches"] == 0
    assert row["tokens_per_step"] > 1.1


def test_a_drafter_from_training_to_export(model: Callable[[str], str], prompts: str, tmp_path: Path) -> None:
    target, out = model("smollm2-135m"), str(tmp_path / "hidden")
    training = ["--target", target, "--prompts", prompts, "--out", out, "--reuse", "hidden"]
    training += ["--steps", "2", "--batch", "1", "--depths", "2", "--new-tokens", "16", "--length", "96"]
    run("train", *training, "--plan")
    run("train", *training)
    measured = ["--prompts", prompts, "--limit", "1", "--max-new-tokens", "12"]
    rows = run("evaluate", out, *measured, rows=tmp_path / "evaluated.json")
    assert any(row["mat"] >= 1 for row in rows if "mat" in row)
    run("diagnose", out, *measured)
    run("export", out, "--out", str(tmp_path / "eagle3"))
    run("generate", "Say hello.", "--drafter", out, "--max-new-tokens", "8", "--policy", "fixed:2")
    run("study", "kvshot", "--target", target, "--prompts", prompts, "--out", str(tmp_path / "study"), "--plan")


def test_servers(model: Callable[[str], str], prompts: str, tmp_path: Path) -> None:
    need_llama_server()
    file, tokenizer = Path(model("smollm2-135m.gguf")), model("smollm2-135m")
    draft = ("--spec-type", "draft-simple", "--spec-draft-model", str(file), "--spec-draft-n-max", "2")
    with llama_server(file) as plain, llama_server(file, *draft) as drafting:
        servers = [f"plain={plain}", f"fixed:2={drafting}"]
        options = ["--engine", "llama-server", "--tokenizer", tokenizer, "--prompts", prompts, "--limit", "1"]
        rows = run(
            *("bench-servers", *servers, *options, "--max-new-tokens", "16", "--rounds", "1"),
            rows=tmp_path / "rows.json",
        )
        assert {row["policy"] for row in rows} == {"plain", "fixed:2"}
        run("advise", "--engine", "llama-server", "--url", drafting)


TOKENS = 32
NEAR_TIE = 0.75  # between the two best float32 logits, which are around 20: bfloat16 has steps of 0.125 there


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_engines_agree(model: Callable[[str], str], prompts: str, name: str) -> None:
    path = model(name)
    tokenizer = load_tokenizer(path)
    encoded = [encode_with(tokenizer, prompt) for prompt in read_prompts(Path(prompts))[::2]]
    lean = load_model(path, "fp32", engine="lean")
    modules = wrap(lean.module, "modules")
    settings, exact = DecodingSettings(max_new_tokens=TOKENS), []
    for prompt in encoded:
        outputs = [plain_decode(engine, prompt, settings).tokens for engine in (lean, modules)]
        generated = lean.module.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=None
        )
        assert outputs == [generated[0, len(prompt) :].tolist()] * 2
        lean.reset()
        exact.append((outputs[0], lean.forward(torch.tensor([*prompt, *outputs[0]]))[len(prompt) - 1 : -1]))
    del lean, modules
    for engine in ("lean", "modules"):
        half, differing = load_model(path, "bf16", engine=engine), 0
        for prompt, (output, logits) in zip(encoded, exact, strict=True):
            half.reset()
            half.forward(torch.tensor(prompt[:-1]))
            steps = torch.cat([half.forward(torch.tensor([token])) for token in [prompt[-1], *output[:-1]]])
            other = steps.argmax(-1) != torch.tensor(output)
            best = logits.topk(2).values
            assert ((best[:, 0] - best[:, 1])[other] < NEAR_TIE).all()
            differing += int(other.sum())
        print(f"{name}, {engine} in bfloat16: {differing} of {2 * TOKENS} tokens differ, all near-ties")
