"""One measurement for ``train_speed.py``: the steps of speculators' EAGLE-3 trainer, in that library's environment."""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from transformers import AutoConfig

TAPS = [2, 4, 5]  # those of draftgauge for a target of eight layers


def main(settings: dict[str, Any]) -> None:
    """Print the seconds of every measured step and the peak memory as JSON."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(settings["target"])
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    model = Eagle3DraftModel.from_training_args(
        config,
        verifier_name_or_path=settings["target"],
        draft_vocab_size=config.vocab_size,
        norm_before_residual=False,
        ttt_steps=settings["depths"],
        num_layers=1,
        target_layer_ids=TAPS,
        draft_attn_impl=settings["attention"],
    )
    model.float().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    texts, length = settings["texts"], settings["length"]
    total = texts * length  # texts stand one after the other, told apart by their numbers
    inputs = {
        "hidden_states": torch.randn(1, total, len(TAPS) * config.hidden_size),
        "input_ids": torch.randint(1, config.vocab_size, (1, total)),
        "document_ids": torch.arange(texts).repeat_interleave(length)[None],
        "loss_mask": torch.ones(1, total, dtype=torch.bool),
        "position_ids": (1 + torch.arange(length)).repeat(texts)[None],
        "verifier_last_hidden_states": torch.randn(1, total, config.hidden_size),
    }
    losses = resolve_loss_config("kl_div", "eager")
    seconds = []
    for _ in range(settings["warmup"] + settings["steps"]):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16"):
            _, loss, _ = model(**inputs, ttt_steps=settings["depths"], ttt_step_loss_decay=1.0, loss_config=losses)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30
    found = {"parameters": sum(p.numel() for p in trained), "peak_memory_gib": peak, "version": version("speculators")}
    print(json.dumps({"seconds": seconds[settings["warmup"] :], **found}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
