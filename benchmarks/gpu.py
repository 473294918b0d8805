"""On a GPU: how far the static engine is from what the memory allows, and from transformers, for shapes of real models.

Weights are random, so nothing is accepted on purpose: what is measured is time. Shapes are those of the published
configurations; the bundled pair comes first. Each pair and compression is a part of its own, kept in ``gpu-parts/`` as
soon as it is done: the same command goes on where it was stopped. Rows, one a part:

* ``plain_over_floor``: a pass over one token, over the time that reading its weights once takes (goal 1.3);
* ``verify_8_over_1``: a pass over eight tokens over one (goal 1.05);
* ``draft_over_floor``: the same as the first, of the draft;
* ``waits``: times that a step of fixed length 4 waits for the device;
* ``generate_over_plain`` and ``compiled_over_plain``: seconds a token of transformers' ``generate()``, eager, and with
  a static cache and ``torch.compile``, over ours;
* ``skipped``: why a part could not run here.

**It has not been run on a GPU.** ``--dry`` runs every line on a CPU, with two narrow layers in place of the real shape,
and states from the real shape what a part would take; no figure of it is a measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import console, save
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config

from draftgauge.core.errors import DraftgaugeError, is_out_of_memory
from draftgauge.core.files import atomic_write_text
from draftgauge.decoding.clock import seconds
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import activation_dtype, draft_compression
from draftgauge.models.loading import load_model
from draftgauge.models.reference import reference_path
from draftgauge.policies.fixed import FixedLength

GAMMA = 4
PASSES = 50
COMPRESSIONS = ("bf16", "int8", "nf4")
CONTEXT = 1024
WEIGHT_BYTES = {"int8": 1.0, "nf4": 0.55}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(hidden: int, intermediate: int, layers: int, heads: int, head_dim: int, tied: bool = True) -> LlamaConfig:
    """A Llama 3 shape."""
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
        tie_word_embeddings=tied,
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


LLAMA_1B, LLAMA_8B = llama(2048, 8192, 16, 32, 64), llama(4096, 14336, 32, 32, 128, tied=False)
PAIRS: dict[str, tuple[PretrainedConfig, PretrainedConfig] | None] = {
    "bundled": None,
    "llama-3.2-3b / 1b": (llama(3072, 8192, 28, 24, 128), LLAMA_1B),
    "qwen3-8b / 0.6b": (qwen3(4096, 12288, 36, 32, tied=False), qwen3(1024, 3072, 28, 16, tied=True)),
    "llama-3.1-70b / 8b": (llama(8192, 28672, 80, 64, 128, tied=False), LLAMA_8B),
}


@dataclass(frozen=True)
class Part:
    """One pair at one compression."""

    pair: str
    compression: str

    @property
    def file(self) -> str:
        """Its name on the disk."""
        return f"{self.pair.replace(' / ', '-')}-{self.compression}.json"


def narrow(config: PretrainedConfig) -> PretrainedConfig:
    """The same family with two narrow layers, for a dry run."""
    small = type(config)(**config.to_dict())
    small.update(
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
            "layer_types": ["full_attention"] * 2,
        }
    )
    return small


def saved(config: PretrainedConfig, folder: Path, device: str, dtype: torch.dtype) -> Path:
    """Random weights of a shape, saved so that they are loaded as any checkpoint is."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    return folder


def weights_read(model: PreTrainedModel) -> int:
    """Parameters that a pass over one token reads: all but the token embeddings, unless the head shares them."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    every = sum(parameter.numel() for parameter in model.parameters())
    return every if embedding is head or embedding.data_ptr() == head.data_ptr() != 0 else every - embedding.numel()


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy, reading and writing."""
    size = 1 << (28 if device.type == "cuda" else 22)
    one, other = (torch.empty(size, dtype=torch.float32, device=device) for _ in range(2))
    return 2 * one.nbytes / timed(lambda: other.copy_(one), device)


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of some work, after it has been done three times."""
    for _ in range(3):
        work()
    spent = []
    for _ in range(PASSES):
        began = seconds(device)
        work()
        spent.append(seconds(device) - began)
    return sorted(spent)[len(spent) // 2]


def pass_seconds(model: CachedModel, tokens: int, context: int) -> float:
    """Seconds of a pass over so many tokens, its choices read."""
    device = model.spec.device
    model.reset()
    model.forward(torch.ones(context, dtype=torch.int64, device=device), last_only=True)
    fed = torch.ones(tokens, dtype=torch.int64, device=device)

    def once() -> None:
        model.forward(fed).argmax(-1).tolist()
        model.truncate(context)

    return timed(once, device)


def waits_a_step(target: CachedModel, draft: CachedModel) -> float | None:
    """Times that a step of a fixed length waits for the device; None on a CPU, where nobody waits."""
    if target.spec.device.type != "cuda":
        return None
    drafter, settings = LanguageModelDrafter(draft), DecodingSettings(4 * (GAMMA + 1))
    for watched in (False, False, True):
        torch.cuda.set_sync_debug_mode("warn" if watched else "default")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = speculative_decode(target, drafter, FixedLength(GAMMA), [1, 2, 3], settings)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in told) / len(result.steps)


def generate_seconds(model: PreTrainedModel, device: torch.device, compiled: bool) -> float:
    """Seconds a token of transformers' ``generate()``."""
    ids = torch.ones(1, 64, dtype=torch.int64, device=device)
    count = 64 if device.type == "cuda" else 4
    options: dict[str, Any] = {"cache_implementation": "static"} if compiled else {}
    for _ in range(3 if device.type == "cuda" else 1):  # compiles, and warms up
        began = seconds(device)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            **options,
        )
        spent = seconds(device) - began
    return spent / count


def measure(part: Part, device: torch.device, dry: bool) -> dict[str, Any]:
    """The row of a part; ``skipped`` where it does not run here."""
    began = time.perf_counter()
    shapes = PAIRS[part.pair]
    with tempfile.TemporaryDirectory() as scratch:
        if shapes is None:
            paths = [reference_path(role) for role in ("target", "draft")]
        else:
            used = [narrow(shape) if dry else shape for shape in shapes]
            dtype = torch.float32 if dry else torch.bfloat16
            roles = ("target", "draft")
            paths = [saved(c, Path(scratch) / r, str(device), dtype) for c, r in zip(used, roles, strict=True)]
        held = "none" if dry else part.compression
        target = load_model(paths[0], held, device, "static" if held not in WEIGHT_BYTES else "auto")
        draft = load_model(paths[1], draft_compression(held), device, "static")
    rate = bandwidth(device)
    context = min(CONTEXT, target.spec.context // 4, draft.spec.context // 4)
    one, eight, drafting = (
        pass_seconds(target, 1, context),
        pass_seconds(target, 8, context),
        pass_seconds(draft, 1, context),
    )
    bytes_each = WEIGHT_BYTES.get(held, activation_dtype(held, device).itemsize)
    floors = (
        weights_read(target.module) * bytes_each / rate,
        weights_read(draft.module) * draft.spec.dtype.itemsize / rate,
    )
    row = {
        "pair": part.pair,
        "compression": part.compression,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu (dry run, no measurement)",
        "engine": target.spec.engine,
        "bandwidth_gb_s": rate / 1e9,
        "plain_ms": 1e3 * one,
        "plain_over_floor": one / floors[0],
        "verify_8_over_1": eight / one,
        "draft_ms": 1e3 * drafting,
        "draft_over_floor": drafting / floors[1],
        "waits": waits_a_step(target, draft),
        "generate_over_plain": generate_seconds(target.module, device, compiled=False) / one,
    }
    if device.type == "cuda":
        row["compiled_over_plain"] = generate_seconds(target.module, device, compiled=True) / one
    return row | {"seconds": time.perf_counter() - began}


def attempt(part: Part, device: torch.device, dry: bool) -> dict[str, Any]:
    """The row of a part, or why there is none."""
    try:
        return measure(part, device, dry)
    except Exception as error:
        if not isinstance(error, DraftgaugeError) and not is_out_of_memory(error):
            raise
        return {"pair": part.pair, "compression": part.compression, "skipped": str(error).splitlines()[0]}


def stated(part: Part) -> dict[str, Any]:
    """What the real shape of a part takes, from models laid out on ``meta``."""
    shapes = PAIRS[part.pair]
    if shapes is None:
        return {}
    gib = []
    for number, config in enumerate(shapes):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        each = WEIGHT_BYTES.get(part.compression, 2.0) if number == 0 else 2.0
        gib.append(sum(parameter.numel() for parameter in model.parameters()) * each / 2**30)
    return {"target_gib": gib[0], "draft_gib": gib[1]}


def main() -> int:
    """Measure what is missing and write ``gpu.json``; 2 without a GPU, unless it is a dry run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--dry", action="store_true", help="run every line on a CPU; measures nothing")
    args, _ = parser.parse_known_args()
    parts = [Part(pair, compression) for pair in PAIRS for compression in COMPRESSIONS]
    if args.dry:
        for part in parts:
            row = attempt(part, torch.device("cpu"), dry=True) | stated(part)
            console.print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}, highlight=False)
        console.print("A dry run on a CPU with narrow models: nothing above was measured on a GPU.")
        return 0
    if not torch.cuda.is_available():
        console.print("gpu.py needs a GPU and found none: nothing was measured. --dry runs its lines on a CPU")
        return 2
    folder = args.out / "gpu-parts"
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        if not (folder / part.file).exists():
            row = attempt(part, torch.device("cuda"), dry=False) | stated(part)
            atomic_write_text(folder / part.file, json.dumps(row, indent=1) + "\n")
            torch.cuda.empty_cache()
            console.print(row, highlight=False)
    save(args.out, "gpu.json", [json.loads((folder / part.file).read_text()) for part in parts])
    return 0


if __name__ == "__main__":
    sys.exit(main())
