"""How much of a target's attention follows from the token alone: layer by layer, its queries estimated linearly.

A drafter that reads cached keys has to ask them what the target would ask (KVShot, arXiv 2604.26412, query estimation).
The maps that its attention starts from (:mod:`draftgauge.training.reuse.start`) are fitted on training texts; on others
the attention that their queries make over the cached keys is compared with that of the true queries.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import console, save
from torch import Tensor

from draftgauge.api.runs import prompt_file
from draftgauge.core.prompts import mixed_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.texts import greedy_texts
from draftgauge.drafters.reuse import new_net, reuse_config
from draftgauge.drafters.reuse.rotary import like, rotate, window
from draftgauge.models.heads import catching_heads, score_rule
from draftgauge.models.loading import end_tokens, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompts
from draftgauge.training.reuse.start import fit_head_maps


@torch.inference_mode()
def measure(target_name: str, fitted_on: str, measured_on: str, per_task: int, new_tokens: int) -> list[dict[str, Any]]:
    """Rows ``layer, head, explained, total_variation, total_variation_uniform, texts`` (means over answers)."""
    target, tokenizer = load_model(target_name), load_tokenizer(target_name)
    settings = DecodingSettings(new_tokens, end_tokens=end_tokens(target, tokenizer))
    fitted, held_out = (
        greedy_texts(target, encode_prompts(mixed_prompts(prompt_file(name), count), tokenizer, 1024), settings)
        for name, count in ((fitted_on, None), (measured_on, per_task))
    )
    module = target.module
    net = new_net(reuse_config(module.config, "none"), module, 0)
    layers = range(module.config.get_text_config().num_hidden_layers)
    maps = fit_head_maps(net, module, layers, [torch.tensor(text.tokens) for text in fitted])
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    even: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    norm = net.blocks[0].token_norm
    assert norm is not None
    for text in held_out:
        ids = torch.tensor(text.tokens, device=net.embedding.device)
        embedded = norm(net.embed(ids))
        with catching_heads(module, layers, ["queries", "keys"]) as caught:
            module.get_decoder()(input_ids=ids[None], use_cache=False)
        tables = window(net.tables(len(ids), embedded), 0, len(ids))
        rows = slice(len(text.prompt), len(ids))  # positions of the answer, each over what stands before it
        for layer in layers:
            keys = rotate(caught[layer, "keys"][0].float(), like(tables, embedded))
            estimated = torch.einsum("qdh,th->qtd", maps[layer].weights["queries"], embedded)
            attended = [
                attention(rotate(queries.float(), like(tables, embedded)), keys, score_rule(module, layer))[:, rows]
                for queries in (caught[layer, "queries"][0], estimated)
            ]
            counts = torch.arange(len(ids), device=ids.device)[rows].clamp(min=1)
            uniform = (attended[0] > 0) / counts[None, :, None]
            found[layer].append((attended[0] - attended[1]).abs().sum(-1).mean(1) / 2)
            even[layer].append((attended[0] - uniform).abs().sum(-1).mean(1) / 2)
    return [
        {
            "layer": layer,
            "head": head,
            "explained": maps[layer].explained,
            "total_variation": float(np.mean([float(values[head]) for values in found[layer]])),
            "total_variation_uniform": float(np.mean([float(values[head]) for values in even[layer]])),
            "texts": len(held_out),
        }
        for layer in layers
        for head in range(module.config.get_text_config().num_attention_heads)
    ]


def attention(queries: Tensor, keys: Tensor, rule: Any) -> Tensor:
    """``[Q, T, T]`` over the positions strictly before each: a drafter has no other of the target's keys."""
    wide = keys.repeat_interleave(len(queries) // len(keys), 0)
    scores = rule(queries @ wide.mT)
    seen = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    return scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num()


def main() -> None:
    """Measure and write ``query-estimates.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument("--target", default="reference")
    parser.add_argument("--fit", default="reference:train", help="prompts whose answers the maps are fitted to")
    parser.add_argument("--prompts", default="reference:validation", help="prompts that they are judged on")
    parser.add_argument("--per-task", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=96)
    args, _ = parser.parse_known_args()
    rows = measure(args.target, args.fit, args.prompts, args.per_task, args.new_tokens)
    for layer in sorted({row["layer"] for row in rows}):
        own = [row for row in rows if row["layer"] == layer]
        console.print(
            f"layer {layer}: queries explained {own[0]['explained']:.2f}, total variation "
            f"{np.mean([row['total_variation'] for row in own]):.2f} (even attention "
            f"{np.mean([row['total_variation_uniform'] for row in own]):.2f})",
            highlight=False,
        )
    save(args.out, "query-estimates.json", rows)


if __name__ == "__main__":
    main()
