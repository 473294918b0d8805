"""Serving engines on the bundled pair: plain speed of the gguf engine, and whether advice is right where it is given.

Needs what ``make test-engines`` sets up, and its environment (``python tools/engines.py environment``). Rows:

* ``measure: plain``: tokens per second of plain decoding in the gguf engine, in llama.cpp's server and in the lean
  engine, interleaved prompt by prompt, over the gguf engine's;
* ``measure: setting``: every setting tried in an engine, live, over plain decoding there, and what was advised for it
  on other prompts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, console, save, show_progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from draftgauge.api.advise import advise
from draftgauge.api.arms import Arm, ArmRun, BenchPrompt, bench_arms, plain_arm, policy_arm
from draftgauge.api.bench_rows import bench_rows
from draftgauge.api.costs import pair_costs
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile import profile
from draftgauge.api.requests import CostSpec, LoadSpec, PairSpec
from draftgauge.api.runs import first_per_task, prompt_file
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.prompts_text import encode_with
from draftgauge.models.reference import reference_path
from draftgauge.policies.registry import make_policy
from draftgauge.serving.client import complete
from draftgauge.traces.engine_costs import read_costs
from engine_processes import llama_server, vllm_server
from gguf_files import write_gguf

LENGTHS = (1, 2, 3, 4, 6)
SERVED_LENGTHS = (1, 2, 4)  # each is two servers of vLLM at once
LONGEST = 16


def main() -> None:
    """Measure and save."""
    given = arguments(__doc__)
    tokenizer = load_tokenizer("reference")
    chosen = first_per_task(read_prompts(prompt_file("reference:test")), given.per_task)
    prompts = [BenchPrompt(encode_with(tokenizer, p), p.task) for p in chosen]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        files = {p: write_gguf(reference_path(p), place / f"{p}.gguf", tokenizer) for p in ("target", "draft")}
        gguf = load_pair(
            PairSpec(
                target=str(files["target"]),
                draft=str(files["draft"]),
                loading=LoadSpec(tokenizer=str(reference_path("target"))),
            )
        )
        rows = plain_rows(gguf, files, prompts, given)
        rows += gguf_rows(gguf, files, place, prompts, given)
        rows += vllm_rows(place, prompts, given)
    save(given.out, "engines.json", rows)


def plain_rows(gguf: Pair, files: dict[str, Path], prompts: Sequence[BenchPrompt], given: Any) -> list[dict[str, Any]]:
    """Plain decoding in three engines."""
    lean = load_pair(PairSpec(target="reference"))
    settings = DecodingSettings(max_new_tokens=given.max_new_tokens, end_tokens=gguf.end_tokens)
    with llama_server(files["target"]) as url:
        other = plain_arm(lean, settings)
        other.name = "lean"
        arms = [plain_arm(gguf, settings), other, server_arm("llama-server", "llama-server", url, given.max_new_tokens)]
        return tagged(measured(arms, prompts, given, "plain"), "plain", "gguf", {})


def gguf_rows(
    pair: Pair, files: dict[str, Path], place: Path, prompts: Sequence[BenchPrompt], given: Any
) -> list[dict[str, Any]]:
    """Settings of the gguf engine against its advice, which is from training prompts."""
    run = place / "gguf-run"
    profile(
        target=str(files["target"]),
        draft=str(files["draft"]),
        tokenizer=str(reference_path("target")),
        prompts="reference:train",
        per_task=given.per_task,
        max_new_tokens=given.max_new_tokens,
        out=run,
    )
    advice = advise(folder=run, engine="gguf", policies=("stopping",))
    costs = pair_costs(pair, CostSpec(), LONGEST)
    settings = DecodingSettings(max_new_tokens=given.max_new_tokens, end_tokens=pair.end_tokens)
    specs = [*(f"fixed:{length}" for length in LENGTHS), "stopping"]
    arms = [plain_arm(pair, settings)]
    arms += [policy_arm(pair, spec, make_policy(spec, LONGEST, costs), settings) for spec in specs]
    return tagged(measured(arms, prompts, given, "gguf"), "setting", "gguf", by_setting(advice))


def vllm_rows(place: Path, prompts: Sequence[BenchPrompt], given: Any) -> list[dict[str, Any]]:
    """Settings of vLLM, its own draft model and our proposer, against advice with costs measured there."""
    target, draft = reference_path("target"), str(reference_path("draft"))
    costs, run = place / "vllm-costs.json", place / "lean-run"
    with vllm_server(target, *ours("vllm_costs.CostProbe", 8, draft=draft, costs_out=str(costs))) as url:
        for prompt in prompts:
            complete("vllm", url, prompt.tokens, given.max_new_tokens)
    profile(prompts="reference:train", per_task=given.per_task, max_new_tokens=given.max_new_tokens, out=run)
    read_costs(costs, "vllm")
    advice = advise(folder=run, engine="vllm", costs=costs)
    with ExitStack() as servers:
        urls = {"plain": servers.enter_context(vllm_server(target))}
        for length in SERVED_LENGTHS:
            own = {"method": "draft_model", "model": draft, "num_speculative_tokens": length}
            urls[f"draft_model:{length}"] = servers.enter_context(
                vllm_server(target, "--speculative-config", json.dumps(own))
            )
            policy = {"draft": draft, "policy": f"fixed:{length}"}
            urls[f"fixed:{length}"] = servers.enter_context(vllm_server(target, *ours("vllm.Proposer", 8, **policy)))
        arms = [server_arm(name, "vllm", url, given.max_new_tokens) for name, url in urls.items()]
        rows = measured(arms, prompts, given, "vllm")
    return tagged(rows, "setting", "vllm", by_setting(advice))


def ours(model: str, length: int, **options: Any) -> tuple[str, ...]:
    """vLLM's options for one of draftgauge's proposers."""
    config = {"method": "custom_class", "model": f"draftgauge.integrations.{model}", "num_speculative_tokens": length}
    return "--speculative-config", json.dumps(config), "--additional-config", json.dumps({"draftgauge": options})


def server_arm(name: str, engine: str, url: str, max_new_tokens: int) -> Arm:
    """A running server as a way of decoding."""

    def decode(prompt: list[int]) -> ArmRun:
        answer = complete(engine, url, prompt, max_new_tokens)
        seconds = (answer.decode_seconds, answer.prefill_seconds)
        return ArmRun(answer.tokens, answer.steps or 0, len(answer.tokens), *seconds)

    return Arm(name, decode)


def measured(arms: Sequence[Arm], prompts: Sequence[BenchPrompt], given: Any, label: str) -> list[dict[str, Any]]:
    """Rows of all tasks together."""
    bench_arms(arms, prompts, given.rounds, np.random.default_rng(0), partial(show_progress, label))
    return [row for row in bench_rows(arms, prompts, "none") if row["task"] == "all"]


def by_setting(advice: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Advice by setting."""
    return {row["setting"]: row for row in advice}


def tagged(
    rows: Sequence[dict[str, Any]], measure: str, engine: str, advice: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows with what they are of, and what was advised."""
    tags = {"measure": measure, "engine": engine, "cores": os.cpu_count()}
    for row in rows:
        found = advice.get(row["policy"], {})
        row |= tags | {"advised": found.get("advised"), "expected": found.get("speedup")}
        console.print(f"{engine} {row['policy']}: {row['ratio_to_plain']:.2f}x plain", highlight=False)
    return list(rows)


if __name__ == "__main__":
    main()
