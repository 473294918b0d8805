"""On a GPU: how far the static engine is from what the memory allows, and from transformers, for shapes of real models.

Weights are random, so nothing is accepted on purpose: what is measured is time. Shapes are those of the published
configurations; the bundled pair comes first. Each pair and compression is a part of its own, kept in ``gpu-parts/`` as
soon as it is done: the same command goes on where it was stopped. Rows, one a part:

* ``plain_over_floor``: a pass over one token, over the time that reading its weights once takes (goal 1.3);
* ``verify_8_over_1``: a pass over eight tokens over one (goal 1.05);
* ``draft_over_floor``: the same as the first, of the draft;
* ``waits``: times that a step of fixed length 4 waits for the device;
* ``generate_over_plain`` and ``compiled_over_plain``: seconds a token of transformers' ``generate()``, eager, and with
  a static cache and ``torch.compile``, over ours, at the same length of text;
* ``target_gib``, ``draft_gib``: of the weights; ``peak_gib``: of everything on the device;
* ``skipped``: why a part cannot run here. A part that failed otherwise is named, and tried again by the next run.

**It has not been run on a GPU.** ``--dry`` runs every line on a CPU at every compression, with two narrow layers in
place of the real shape, and states from the real shape what a part would take; no figure of it is a measurement.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import console, save
from gpu_models import SHAPES, narrow, random_model, weight_bytes
from transformers import PreTrainedModel

from draftgauge.core.errors import DraftgaugeError, is_out_of_memory
from draftgauge.core.files import atomic_write_text
from draftgauge.decoding.clock import seconds
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.models.base import CachedModel
from draftgauge.models.compression import draft_compression
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.reference import reference_path
from draftgauge.policies.fixed import FixedLength

GAMMA = 4
CONTEXT = 1024
WAITED = "called a synchronizing CUDA operation"  # what PyTorch says then; that it says so at all is another warning
COMPRESSIONS = ("bf16", "int8", "nf4", "fp8")
PAIRS: dict[str, tuple[str, str] | None] = {
    "bundled": None,
    "llama-3.2-3b-1b": ("llama-3.2-3b", "llama-3.2-1b"),
    "qwen3-8b-0.6b": ("qwen3-8b", "qwen3-0.6b"),
    "llama-3.1-8b-1b": ("llama-3.1-8b", "llama-3.2-1b"),
    "llama-3.1-70b-8b": ("llama-3.1-70b", "llama-3.1-8b"),
}


@dataclass(frozen=True)
class Part:
    """One pair at one compression of its target."""

    pair: str
    compression: str

    @property
    def name(self) -> str:
        """As ``--part`` takes it."""
        return f"{self.pair}-{self.compression}"

    @property
    def shapes(self) -> tuple[str, str] | None:
        """Of target and draft; None for the bundled pair, which has weights."""
        return PAIRS[self.pair]


# The bundled pair is no checkpoint in float8.
PARTS = {
    part.name: part for pair in PAIRS for kind in COMPRESSIONS if (part := Part(pair, kind)) != Part("bundled", "fp8")
}


@dataclass(frozen=True)
class Setting:
    """Where parts run, and how often passes are timed.

    Attributes:
        dry: narrow models.
    """

    device: torch.device
    dry: bool

    @property
    def passes(self) -> int:
        """Timed of each kind."""
        return 5 if self.dry else 50

    @property
    def generated(self) -> int:
        """Tokens that ``generate()`` is timed over."""
        return 4 if self.dry else 64


def load_pair(part: Part, setting: Setting) -> tuple[CachedModel, CachedModel]:
    """Target and draft on the device."""
    device, kinds = setting.device, (part.compression, draft_compression(part.compression))
    # Quantised linears run code of their own, which no graph can hold.
    engines = ("static" if kinds[0] == kinds[1] else "auto", "static")
    if part.shapes is None:
        roles = zip(("target", "draft"), kinds, engines, strict=True)
        target, draft = (load_model(reference_path(role), kind, device, engine) for role, kind, engine in roles)
        return target, draft
    configs = [narrow(SHAPES[shape]) if setting.dry else SHAPES[shape] for shape in part.shapes]
    models = zip(configs, kinds, engines, strict=True)
    target, draft = (wrap(random_model(config, kind, device), engine) for config, kind, engine in models)
    return target, draft


def bandwidth(setting: Setting) -> float:
    """Bytes a second of a large copy, reading and writing."""
    size = 1 << (20 if setting.dry else 28)
    one, other = (torch.empty(size, dtype=torch.float32, device=setting.device) for _ in range(2))
    return 2 * one.nbytes / timed(lambda: other.copy_(one), setting)


def timed(work: Callable[[], Any], setting: Setting) -> float:
    """Median seconds of some work, after it has been done three times."""
    for _ in range(3):
        work()
    spent = []
    for _ in range(setting.passes):
        began = seconds(setting.device)
        work()
        spent.append(seconds(setting.device) - began)
    return sorted(spent)[len(spent) // 2]


def pass_seconds(model: CachedModel, tokens: int, context: int, setting: Setting) -> float:
    """Seconds of a pass over so many tokens, its choices read."""
    model.reset()
    model.forward(torch.ones(context, dtype=torch.int64, device=setting.device), last_only=True)
    fed = torch.ones(tokens, dtype=torch.int64, device=setting.device)

    def once() -> None:
        model.forward(fed).argmax(-1).tolist()
        model.truncate(context)

    return timed(once, setting)


def waits_a_step(target: CachedModel, draft: CachedModel) -> float | None:
    """Times that a step of a fixed length waits for the device; None on a CPU, where nobody waits."""
    drafter, settings = LanguageModelDrafter(draft), DecodingSettings(4 * (GAMMA + 1))
    on_gpu = target.spec.device.type == "cuda"
    for watched in (False, False, True):  # graphs are captured before
        with warnings.catch_warnings(record=True) as told, watching(on_gpu and watched):
            warnings.simplefilter("always")
            result = speculative_decode(target, drafter, FixedLength(GAMMA), [1, 2, 3], settings)
    return sum(str(each.message).startswith(WAITED) for each in told) / len(result.steps) if on_gpu else None


@contextmanager
def watching(watched: bool) -> Iterator[None]:
    """PyTorch warns of everything that waits for the device."""
    if not watched:
        yield
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def generate_seconds(model: PreTrainedModel, context: int, setting: Setting, compiled: bool) -> float:
    """Seconds a token of transformers' ``generate()``: what more tokens take longer than one."""
    ids = torch.ones(1, context, dtype=torch.int64, device=setting.device)
    options: dict[str, Any] = {"cache_implementation": "static"} if compiled else {}  # compiles on a GPU

    def generated(count: int) -> float:
        began = seconds(setting.device)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            **options,
        )
        return seconds(setting.device) - began

    for _ in range(2):  # compiles, and warms up
        generated(1 + setting.generated)
    rounds = sorted(generated(1 + setting.generated) - generated(1) for _ in range(3))
    return rounds[1] / setting.generated


def measure(part: Part, setting: Setting) -> dict[str, Any]:
    """The row of a part."""
    began, device = time.perf_counter(), setting.device
    target, draft = load_pair(part, setting)
    rate = bandwidth(setting)
    context = min(CONTEXT, target.spec.context // 4, draft.spec.context // 4)
    one, eight = (pass_seconds(target, tokens, context, setting) for tokens in (1, 8))
    drafting = pass_seconds(draft, 1, context, setting)
    floors = (
        weight_bytes(target.module.config, part.compression, device, read=True) / rate,
        weight_bytes(draft.module.config, draft_compression(part.compression), device, read=True) / rate,
    )
    row = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu (dry run, no measurement)",
        "engine": target.spec.engine,
        "bandwidth_gb_s": rate / 1e9,
        "plain_ms": 1e3 * one,
        "plain_over_floor": one / floors[0],
        "verify_8_over_1": eight / one,
        "draft_ms": 1e3 * drafting,
        "draft_over_floor": drafting / floors[1],
        "waits": waits_a_step(target, draft),
        "generate_over_plain": generate_seconds(target.module, context, setting, compiled=False) / one,
        "compiled_over_plain": generate_seconds(target.module, context, setting, compiled=True) / one,
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
    }
    return row | {"seconds": time.perf_counter() - began}


def attempt(part: Part, setting: Setting) -> dict[str, Any]:
    """The row of a part: what was measured, or why there is nothing."""
    row: dict[str, Any] = {"pair": part.pair, "compression": part.compression} | stated(part, setting)
    try:
        return row | measure(part, setting)
    except Exception as error:  # one part must not cost the others
        cannot = isinstance(error, DraftgaugeError | ImportError) or is_out_of_memory(error)
        return row | {"skipped" if cannot else "failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    finally:
        gc.collect()
        if setting.device.type == "cuda":
            with suppress(RuntimeError):  # after some errors the device does nothing any more
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def stated(part: Part, setting: Setting) -> dict[str, Any]:
    """What the weights of a part take, from its real shapes."""
    if part.shapes is None:
        return {}
    device = torch.device("cuda") if setting.dry else setting.device
    target, draft = (SHAPES[shape] for shape in part.shapes)
    return {
        "target_gib": weight_bytes(target, part.compression, device) / 2**30,
        "draft_gib": weight_bytes(draft, draft_compression(part.compression), device) / 2**30,
    }


def run_parts(parts: Sequence[Part], folder: Path, setting: Setting) -> list[dict[str, Any]]:
    """The rows of all parts; those that are in the folder are not measured again."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for part in parts:
        path = folder / f"{part.name}.json"
        if not path.exists():
            row = attempt(part, setting)
            console.print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}, highlight=False)
            if "failed" in row:
                rows.append(row)
                continue
            atomic_write_text(path, json.dumps(row, indent=1) + "\n")
        rows.append(json.loads(path.read_text()))
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing and write ``gpu.json``; 2 without a GPU, unless it is a dry run; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--dry", action="store_true", help="run every line on a CPU; measures nothing")
    parser.add_argument("--part", action="append", choices=PARTS, help="these alone; may be repeated")
    args, _ = parser.parse_known_args(words)
    parts = [part for name, part in PARTS.items() if not args.part or name in args.part]
    if args.dry:
        with tempfile.TemporaryDirectory() as scratch:
            rows = run_parts(parts, Path(scratch), Setting(torch.device("cpu"), dry=True))
        console.print("A dry run on a CPU with narrow models: nothing above was measured on a GPU.")
    elif torch.cuda.is_available():
        rows = run_parts(parts, args.out / "gpu-parts", Setting(torch.device("cuda"), dry=False))
        save(args.out, "gpu.json", rows)
    else:
        console.print("gpu.py needs a GPU and found none: nothing was measured. --dry runs its lines on a CPU")
        return 2
    failed = [f"{row['pair']}-{row['compression']}" for row in rows if "failed" in row]
    if failed:
        console.print(f"failed: {', '.join(failed)}; the same command tries them again", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
