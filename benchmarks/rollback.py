"""What a rejected draft costs a hybrid: ``python benchmarks/rollback.py``, with nothing else on the machine.

A random model of the shape of Qwen3.5, width 2,048, 8 layers, bfloat16, verifies five tokens and keeps some. The
table is of processor seconds on one thread, medians.
"""

from __future__ import annotations

import statistics
import time

import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

from draftgauge.models.loading import wrap

LAYERS, WIDTH, PROMPT, FED, ROUNDS = 8, 2048, 64, 5, 9


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=256,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * (LAYERS // 4),
    )
    model = wrap(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval())
    text = torch.randint(0, config.vocab_size, (PROMPT + FED,))
    print("| kept of five | pass, ms | rolling back, ms | share |\n|---:|---:|---:|---:|")
    for kept in (1, 2, 3, 4):
        passes, rollbacks = [], []
        for _ in range(ROUNDS):
            model.reset()
            model.forward(text[:PROMPT], last_only=True)
            moments = [time.process_time()]
            model.forward(text[PROMPT:])
            moments.append(time.process_time())
            model.truncate(PROMPT + kept)
            moments.append(time.process_time())
            passes.append(moments[1] - moments[0])
            rollbacks.append(moments[2] - moments[1])
        verified, back = statistics.median(passes[1:]), statistics.median(rollbacks[1:])
        print(f"| {kept} | {1e3 * verified:.1f} | {1e3 * back:.1f} | {back / verified:.1%} |", flush=True)


if __name__ == "__main__":
    main()
