"""One measurement for ``train_speed.py``: steps of draftgauge's training on features that are in memory."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.unroll import unroll_states
from draftgauge.models.loading import load_model
from draftgauge.models.taps import Features
from draftgauge.training.allocator import keep_freed_memory
from draftgauge.training.memory import peak_memory_gib
from draftgauge.training.reuse.answers import Conversation
from draftgauge.training.reuse.batches import collate
from draftgauge.training.reuse.loss import (
    backward_through_depths,
    compiled_loss,
    depth_weights,
    soft_cross_entropy,
    teach,
)
from draftgauge.training.reuse.steps import make_optimizer


def main(settings: dict[str, Any]) -> None:
    """Print the seconds of every measured step and the peak memory as JSON."""
    torch.set_num_threads(settings["threads"])
    keep_freed_memory()
    target = load_model(settings["target"], device="cpu").module
    net = new_net(reuse_config(target.config, "hidden"), target, 0)
    net.head.weight.requires_grad_(settings["head"] == "trained")
    trained = nn.ParameterList([p for p in net.parameters() if p.requires_grad])
    optimizer = make_optimizer(trained, 0.01, rate=0.0)
    texts, length, depths = settings["texts"], settings["length"], settings["depths"]
    rng = np.random.default_rng(0)
    conversations = [
        Conversation(rng.integers(1, target.config.vocab_size, length).astype(np.int32), 2) for _ in range(texts)
    ]
    batch = collate(conversations, range(texts), depths)
    shape = (texts, batch.tokens.shape[1])
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*shape, len(net.config.hidden_layers), net.config.hidden_size, generator=generator)
    last = torch.randn(*shape, net.config.hidden_size, generator=generator)
    weights = depth_weights(depths, 1.0)
    scales = [float(weight) / int(batch.trained(depth).sum()) for depth, weight in enumerate(weights)]
    softly = compiled_loss() if settings["compile"] else soft_cross_entropy
    seconds = []
    for _ in range(settings["warmup"] + settings["steps"]):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16"):
            with torch.no_grad():
                logits = target.get_output_embeddings()(last[batch.taught()])
            teacher = teach(logits, batch)
            states = unroll_states(net, batch.tokens, Features(hidden, None, None, logits), depths, batch.first)
            backward_through_depths(states, net.logits, teacher, batch, scales, "kl", softly)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    found = {"parameters": sum(p.numel() for p in trained), "peak_memory_gib": peak_memory_gib(torch.device("cpu"))}
    print(json.dumps({"seconds": seconds[settings["warmup"] :], **found, "version": torch.__version__}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
