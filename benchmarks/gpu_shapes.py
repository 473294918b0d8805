"""Cost curves of random-weight pairs with the shapes of real models, on a GPU; and the bench of the bundled pair there.

Weights are random, so nothing is accepted on purpose: what is measured is time. Shapes are those of the published
configurations.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, console, save, show_progress
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config

from draftgauge.decoding.meter import MeterPlan, measure_costs
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.models.loading import load_model

GAMMA_MAX = 8
CONTEXTS = (128, 1024, 4096)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(hidden: int, intermediate: int, layers: int, heads: int, head_dim: int) -> LlamaConfig:
    """A Llama 3.2 shape."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=LLAMA3_ROPE,
        tie_word_embeddings=True,
    )


def qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> Qwen3Config:
    """A Qwen3 shape."""
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=tied,
    )


PAIRS: dict[str, tuple[PretrainedConfig, PretrainedConfig]] = {
    "llama-3.2-3b / 1b": (llama(3072, 8192, 28, 24, 128), llama(2048, 8192, 16, 32, 64)),
    "qwen3-8b / 0.6b": (qwen3(4096, 12288, 36, 32, tied=False), qwen3(1024, 3072, 28, 16, tied=True)),
}


def saved(config: PretrainedConfig, folder: Path) -> Path:
    """Random bfloat16 weights of a shape, saved so that they are loaded as any checkpoint is."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    return folder


def rows_of(name: str, target: PretrainedConfig, draft: PretrainedConfig, rounds: int) -> list[dict[str, Any]]:
    """Cost rows of one pair at every compression."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        target_path, draft_path = saved(target, Path(scratch) / "target"), saved(draft, Path(scratch) / "draft")
        drafter = LanguageModelDrafter(load_model(draft_path, "none", "cuda"))
        for compression in ("none", "int8", "nf4"):
            model = load_model(target_path, compression, "cuda")
            curve = measure_costs(
                model,
                drafter,
                MeterPlan(list(range(100, 4200)), CONTEXTS, GAMMA_MAX, seconds=60 * rounds, compression=compression),
                np.random.default_rng(0),
                progress=lambda done, total: show_progress(name, done, total),
            )
            for row, context in enumerate(curve.contexts):
                for k, seconds in enumerate(curve.verify[row], start=1):
                    rows.append(
                        {
                            "pair": name,
                            "compression": compression,
                            "context": context,
                            "tokens": k,
                            "verify_ms": 1e3 * seconds,
                            "verify_over_one": seconds / curve.verify[row][0],
                            "draft_ms": 1e3 * curve.draft[row][k - 1],
                            "cost_ratio": curve.cost_ratio(),
                        }
                    )
            del model
            torch.cuda.empty_cache()
    return rows


def main() -> int:
    """Measure and write ``gpu-shapes.json``; 2 without a GPU."""
    args = arguments(__doc__)
    if not torch.cuda.is_available():
        console.print("gpu_shapes.py needs a GPU and found none; nothing was measured")
        return 2
    rows = [row for pair, (target, draft) in PAIRS.items() for row in rows_of(pair, target, draft, args.rounds)]
    save(args.out, "gpu-shapes.json", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
