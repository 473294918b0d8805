"""Makes docs/results/rollback.json: what a hybrid costs beyond an attention model, with nothing else on the machine.

Two random models of the same number of weights, in the shapes of Qwen3.5 and Qwen3, in bfloat16. The hybrid verifies
five tokens and keeps some; then both record a prompt with prompt lookup, in turns. Processor seconds of one thread,
medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import RESULTS, save
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen3_5TextConfig, Qwen3Config

from draftgauge.core.prompts import Prompt
from draftgauge.decoding import DecodingSettings
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.drafters.prompt_lookup import PromptLookupDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap

VOCABULARY, PROMPT, FED = 256, 64, 5
MOST = {"rollback": 0.05, "recording": 1.3}  # what is asked for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=16, help="how many are recorded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hybrid, attention = models(asked.layers, asked.width)
    weights = {"hybrid": count(hybrid), "attention": count(attention)}
    kinds = {"hybrid": wrap(hybrid), "attention": wrap(attention, "modules"), "attention, lean": wrap(attention)}
    rows = rollbacks(kinds["hybrid"], asked.rounds) + recordings(kinds, asked.tokens, asked.rounds)
    save(asked.out, "rollback.json", [row | {"layers": asked.layers, "width": asked.width, **weights} for row in rows])


def models(layers: int, width: int) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A hybrid, and an attention model whose MLPs are so wide that it has as many weights."""
    shape = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": layers}
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    hybrid = made(Qwen3_5TextConfig(**shape, intermediate_size=3 * width, layer_types=(kinds * layers)[:layers]))
    narrow = Qwen3Config(**shape, intermediate_size=3 * width, num_attention_heads=16, num_key_value_heads=4)
    with torch.device("meta"):
        missing = count(hybrid) - count(AutoModelForCausalLM.from_config(narrow))
    narrow.intermediate_size += max(0, round(missing / (3 * width * layers * 64))) * 64
    return hybrid, made(narrow)


def made(config: PreTrainedConfig) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def count(model: PreTrainedModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


def rollbacks(model: CachedModel, rounds: int) -> list[dict[str, object]]:
    text = torch.randint(0, VOCABULARY, (PROMPT + FED,))
    rows: list[dict[str, object]] = []
    for kept in (1, 2, 3, 4):
        passes, back = [], []
        for _ in range(rounds + 1):  # the first one warms up
            model.reset()
            model.forward(text[:PROMPT], last_only=True)
            passes.append(seconds(model.forward, text[PROMPT:]))
            back.append(seconds(model.truncate, PROMPT + kept))
        verified, rolled = statistics.median(passes[1:]), statistics.median(back[1:])
        share = rolled / verified
        rows.append({"what": "rollback", "kept": kept, "of": FED, "verified": verified, "seconds": rolled})
        rows[-1] |= {"share": share, "most": MOST["rollback"], "reached": share <= MOST["rollback"]}
        print(f"{kept} of {FED} kept: {1e3 * rolled:.1f} of {1e3 * verified:.1f} ms, {share:.1%}", flush=True)
    return rows


def recordings(kinds: dict[str, CachedModel], tokens: int, rounds: int) -> list[dict[str, object]]:
    prompt = torch.randint(0, VOCABULARY, (PROMPT,)).tolist()
    plan, drafter = RecordingPlan(DecodingSettings(tokens), gamma_max=8), PromptLookupDrafter()
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds + 1):
        for name, model in kinds.items():
            taken[name].append(seconds(record_prompt, model, drafter, Prompt(0, "0", "random", ""), prompt, plan))
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    rows: list[dict[str, object]] = []
    for name, median in medians.items():
        ratio = medians["hybrid"] / median
        rows.append({"what": "recording", "model": name, "engine": kinds[name].spec.engine, "tokens": tokens})
        rows[-1] |= {"seconds": median, "hybrid_over_this": ratio}
        rows[-1] |= {"most": MOST["recording"], "reached": ratio <= MOST["recording"]}
        print(f"{name} ({kinds[name].spec.engine}): {median:.2f} s, hybrid {ratio:.2f} times that", flush=True)
    return rows


def seconds(run: Callable[..., object], *arguments: object) -> float:
    begin = time.process_time()
    run(*arguments)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
