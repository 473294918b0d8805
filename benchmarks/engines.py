"""Makes the table of docs/results/serving: how far the advice was off, for serving engines on the bundled pair.

Needs what ``make test-engines`` sets up, and its environment (``python tools/engines.py environment``). Every part is
saved as soon as it is measured; run again, only parts that are missing are measured, or those named with ``--part``.

* ``plain``: plain decoding in the gguf engine, in llama.cpp's server and in the lean engine, interleaved prompt by
  prompt;
* ``gguf``, ``llama-server``, ``vllm``: settings of the engine, live, over plain decoding there, and what was advised
  from training prompts;
* ``generate``: ``generate(custom_generate=draftgauge.speculative(...))`` beside transformers' assisted generation, and
  what was advised for it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import arguments, console, save
from engine_parts import LONGEST, Bench, lengths_with, measured, tagged
from engines_served import llama_rows, vllm_rows
from transformers import GenerationConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import draftgauge
from draftgauge.api.advise import advise
from draftgauge.api.bench_servers import server_arm
from draftgauge.benching.arms import (
    ASSISTED,
    ASSISTED_CONSTANT,
    GENERATE,
    PLAIN,
    Arm,
    ArmRun,
    TransformersBaseline,
    own_arm,
)
from draftgauge.core.provenance import read_measurement
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.folder import reference_path
from draftgauge.models.loading import load_tokenizer
from draftgauge.pair.costs import pair_costs
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.policies.spec import make_policy
from draftgauge.requests import CostSpec, LoadSpec, PairSpec
from engine_processes import llama_server

NAME = "engines.json"
LENGTHS = (1, 2, 3, 4, 6)
ASSISTED_LENGTHS, SPECULATIVE_LENGTHS = (1, 2, 3, 4, 6), (3, 4)
Rows = list[dict[str, Any]]


def main() -> None:
    """Measure what is missing, and save it part by part."""
    parts: dict[str, Callable[[Bench], Rows]] = {
        "plain": plain_rows,
        "gguf": gguf_rows,
        "llama-server": llama_rows,
        "generate": generate_rows,
        "vllm": vllm_rows,
    }
    given = arguments(__doc__, tuple(parts))
    rows = list(read_measurement(given.out / NAME).rows) if (given.out / NAME).is_file() else []
    wanted = given.part or [part for part in parts if all(row["part"] != part for row in rows)]
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench.prepare(Path(scratch), given, load_tokenizer("reference"))
        for part in wanted:
            started = time.perf_counter()
            new = [row | {"part": part} for row in parts[part](bench)]
            rows = [row for row in rows if row["part"] != part] + new
            save(given.out, NAME, rows)
            console.print(f"{part}: {time.perf_counter() - started:.0f} s", highlight=False)


def gguf_pair(bench: Bench) -> Pair:
    """The bundled pair as GGUF files."""
    loading = LoadSpec(tokenizer=str(reference_path("target")))
    return load_pair(PairSpec(target=str(bench.gguf("target")), drafter=str(bench.gguf("draft")), loading=loading))


def plain_rows(bench: Bench) -> Rows:
    """Plain decoding in three engines; ratios are to the gguf engine's."""
    gguf, lean = gguf_pair(bench), load_pair(PairSpec(target="reference"))
    settings = DecodingSettings(max_new_tokens=bench.max_new_tokens, end_tokens=gguf.end_tokens)
    with llama_server(bench.gguf("target")) as url:
        other = own_arm(lean, settings)
        other.name = "lean"
        server = server_arm("llama-server", "llama-server", url, bench.max_new_tokens)
        return tagged(measured([own_arm(gguf, settings), other, server], bench, "plain"), "gguf", [])


def gguf_rows(bench: Bench) -> Rows:
    """Settings of the gguf engine."""
    pair = gguf_pair(bench)
    run = bench.recorded(
        "gguf-run",
        target=str(bench.gguf("target")),
        drafter=str(bench.gguf("draft")),
        tokenizer=reference_path("target"),
    )
    advice = advise(folder=run, engine="gguf", policies=("stopping",))
    costs = pair_costs(pair, CostSpec(), LONGEST)
    settings = DecodingSettings(max_new_tokens=bench.max_new_tokens, end_tokens=pair.end_tokens)
    specs = [*lengths_with(LENGTHS, advice), "stopping"]
    arms = [own_arm(pair, settings, spec, make_policy(spec, LONGEST, costs)) for spec in specs]
    return tagged(measured([own_arm(pair, settings), *arms], bench, "gguf"), "gguf", advice)


def generate_rows(bench: Bench) -> Rows:
    """transformers' ``generate()`` plain, assisted, and with speculation by one argument; whole calls, prompt
    included.
    """
    pair = load_pair(PairSpec(target="reference"))
    arms = [_assisted(TransformersBaseline(pair, GENERATE), "plain", bench)]
    arms.append(_assisted(TransformersBaseline(pair, ASSISTED), ASSISTED, bench))
    for length in ASSISTED_LENGTHS:
        name = f"{ASSISTED_CONSTANT}:{length}"
        arms.append(_assisted(TransformersBaseline(pair, ASSISTED_CONSTANT, length), name, bench))
    advice = advise(folder=bench.recorded("lean-run"), engine="transformers", policies=("stopping",))
    policies = ["stopping", *lengths_with(SPECULATIVE_LENGTHS, advice)]
    arms += [_speculative(pair, policy, bench) for policy in policies]
    named = [row if row["policy"] == PLAIN else row | {"policy": _named(row["policy"])} for row in advice]
    return tagged(measured(arms, bench, "generate"), "transformers", named)


def _assisted(baseline: TransformersBaseline, name: str, bench: Bench) -> Arm:
    def decode(prompt: list[int]) -> ArmRun:
        run = baseline.run(prompt, bench.max_new_tokens)
        return ArmRun(run.tokens, 0, len(run.tokens), run.prefill_seconds + run.decode_seconds, 0.0)

    return Arm(name, decode)


def _speculative(pair: Pair, policy: str, bench: Bench) -> Arm:
    """``generate`` with draftgauge's decoding function, and the settings of the baselines."""
    assert pair.draft is not None
    model = pair.target.module
    function = draftgauge.speculative(pair.draft.module, policy, tokenizer=pair.tokenizer)
    ends = sorted(pair.end_tokens)
    settings = GenerationConfig(
        max_new_tokens=bench.max_new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
    )

    def decode(prompt: list[int]) -> ArmRun:
        ids = torch.tensor([prompt])
        started = time.perf_counter()
        out = model.generate(ids, settings, attention_mask=torch.ones_like(ids), custom_generate=function)
        seconds = time.perf_counter() - started
        tokens = out[0, len(prompt) :].tolist()
        return ArmRun(tokens, len(function.generations[0].steps), len(tokens), seconds, 0.0)

    return Arm(_named(policy), decode)


def _named(policy: str) -> str:
    return f"speculative:{policy}"


if __name__ == "__main__":
    main()
