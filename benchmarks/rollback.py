"""Makes docs/results/rollback.json: what a hybrid costs beyond an attention model, with nothing else on the machine.

Two random models of as many weights, shaped as Qwen3.5 and Qwen3. Processor seconds of one thread, medians.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from common import RESULTS, save
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3Config

from draftgauge.core.prompts import Prompt
from draftgauge.decoding import DecodingSettings
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.drafters.prompt_lookup import PromptLookupDrafter
from draftgauge.models.loading import wrap

LAYERS, WIDTH, VOCABULARY, PROMPT, FED, TOKENS, ROUNDS = 8, 2048, 256, 64, 5, 16, 5


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    mixed = Qwen3_5TextConfig(**shape, intermediate_size=3 * WIDTH)  # every fourth layer attends
    hybrid = AutoModelForCausalLM.from_config(mixed, dtype=torch.bfloat16)
    plain = Qwen3Config(**shape, intermediate_size=3 * WIDTH, num_attention_heads=16, num_key_value_heads=4)
    with torch.device("meta"):
        missing = hybrid.num_parameters() - AutoModelForCausalLM.from_config(plain).num_parameters()
    plain.intermediate_size += round(missing / (3 * WIDTH * LAYERS * 64)) * 64  # so that it has as many weights
    attention = AutoModelForCausalLM.from_config(plain, dtype=torch.bfloat16)
    models = {"hybrid": wrap(hybrid), "attention": wrap(attention, "modules"), "attention, lean": wrap(attention)}
    text, rows = torch.randint(0, VOCABULARY, (PROMPT + FED,)), []
    for kept in (1, 2, 3, 4):
        pairs = []  # of verifying five tokens, and rolling back
        for _ in range(ROUNDS + 1):  # the first one warms up
            models["hybrid"].reset()
            models["hybrid"].forward(text[:PROMPT], last_only=True)
            whole = seconds(models["hybrid"].forward, text[PROMPT:])
            pairs.append((whole, seconds(models["hybrid"].truncate, PROMPT + kept)))
        whole, took = map(median, zip(*pairs[1:], strict=True))
        rows.append({"what": f"{kept} of {FED} kept", "seconds": took, "beside": whole, "ratio": took / whole})
    plan, recorded = RecordingPlan(DecodingSettings(TOKENS), gamma_max=8), {name: list[float]() for name in models}
    asked = PromptLookupDrafter(), Prompt(0, "0", "random", ""), text.tolist(), plan
    for _ in range(ROUNDS + 1):
        for name, model in models.items():
            recorded[name].append(seconds(record_prompt, model, *asked))
    took = median(recorded["hybrid"][1:])
    for name in ("attention", "attention, lean"):
        whole = median(recorded[name][1:])
        rows.append({"what": f"recording, beside {name}", "seconds": took, "beside": whole, "ratio": took / whole})
    for row in rows:
        print(f"{row['what']}: {row['seconds']:.4f} of {row['beside']:.4f} s, {row['ratio']:.3f}")
    save(RESULTS, "rollback.json", [row | {"layers": LAYERS, "width": WIDTH} for row in rows])


def seconds(run: Callable[..., object], *arguments: object) -> float:
    begin = time.process_time()
    run(*arguments)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
