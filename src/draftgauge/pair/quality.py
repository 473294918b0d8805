"""What compressing a target costs in quality: how far its next-token distributions are from the uncompressed ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from draftgauge.core.errors import ModelError, warn
from draftgauge.core.files import atomic_write_text
from draftgauge.core.parts import COMPRESSIONS, UNCOMPRESSED
from draftgauge.core.progress import Progress
from draftgauge.core.prompts import in_turn
from draftgauge.models.base import CachedModel
from draftgauge.models.device import choose_device, free_bytes, release_unused, upload
from draftgauge.models.folder import weight_bytes_of
from draftgauge.models.loading import load_model, load_tokenizer, made_by_others
from draftgauge.pair.loading import target_of
from draftgauge.pair.prompts import choose_prompts, encode_prompts, encoder_of
from draftgauge.requests import PairSpec, ProfileRequest
from draftgauge.traces.run import Run

QUALITY_NAME = "quality.json"
PROMPTS = 20
POSITIONS = 32  # of each output, from its beginning

Text = tuple[list[int], list[int]]
"""Token ids of a prompt, and the first ones of the first run's output to it."""


def measure_quality(request: ProfileRequest, runs: Sequence[Path], progress: Progress) -> None:
    """Write each compressed run's ``kl`` and ``agreement`` beside it, where they are not known yet.

    ``kl`` is the mean of ``KL(uncompressed || compressed)`` in nats. ``agreement`` is the share of positions where both
    choose the same token. Texts are the beginnings of 20 outputs of the first run. One model is loaded at a time.
    Files that come quantised, later turns, and an uncompressed target that does not fit are left out.
    """
    target, names = target_of(request.pair), request.pair.compression
    missing = {
        name: run
        for name, run in zip(names, runs, strict=True)
        if name in COMPRESSIONS and name != UNCOMPRESSED and not read_quality(run)
    }
    if not missing or made_by_others(target) or request.prompts.turns > 1:
        return
    device = choose_device(request.pair.machine.device)
    free = free_bytes(device)
    try:
        if request.pair.loading.device_map is None and free is not None and free < weight_bytes_of(target):
            raise ModelError(f"{target} does not fit into the free memory of {device}")
        exact = _load(request.pair, UNCOMPRESSED)
    except ModelError as error:
        warn(
            f"the quality of {', '.join(missing)} is not measured, as the uncompressed target cannot be loaded: {error}"
        )
        return
    texts = _texts(request, runs[0], exact)
    references = [log_probabilities(exact, text) for text in texts]
    del exact
    for done, (name, run) in enumerate(missing.items()):
        release_unused()
        progress("quality", done, len(missing))
        held = _load(request.pair, name)
        kept = compared(references, (log_probabilities(held, text) for text in texts))
        atomic_write_text(run / QUALITY_NAME, json.dumps(kept | {"prompts": len(texts)}))
        del held
    progress("quality", len(missing), len(missing))


def read_quality(run: Path) -> dict[str, float]:
    """``kl``, ``agreement``, ``positions`` and ``prompts`` of a run; empty where they were not measured."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        kept = json.loads((run / QUALITY_NAME).read_text(encoding="utf-8"))
        figures = {name: float(kept[name]) for name in ("kl", "agreement", "positions", "prompts") if name in kept}
        return figures if all(map(math.isfinite, figures.values())) else {}
    return {}


def compared(exact: Iterable[Tensor], held: Iterable[Tensor]) -> dict[str, float]:
    """Means over all positions of log probabilities ``[n, vocabulary]``, a tensor a text, read one after the other."""
    kl, same, positions = 0.0, 0, 0
    for p, q in zip(exact, held, strict=True):
        kl += float((p.exp() * (p - q)).sum())
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        positions += len(p)
    return {"kl": max(0.0, kl / positions), "agreement": same / positions, "positions": positions}


def log_probabilities(model: CachedModel, text: Text) -> Tensor:
    """float32 ``[n, vocabulary]`` for the ``n`` tokens behind a prompt, on the CPU."""
    prompt, output = text
    model.reset()
    first = model.forward(upload(prompt, model.spec.device), last_only=True).cpu()
    rows = [first] if len(output) == 1 else [first, model.forward(upload(output[:-1], model.spec.device)).cpu()]
    model.reset()
    return torch.cat(rows).log_softmax(-1)


def _texts(request: ProfileRequest, run: Path, model: CachedModel) -> list[Text]:
    trace, loading = Run(run).trace, request.pair.loading
    tokenizer = load_tokenizer(loading.tokenizer or target_of(request.pair), loading.trust_remote_code)
    path, chosen = choose_prompts(request.prompts)
    outputs = {prompt.index: output for prompt, output in zip(trace.prompts, trace.outputs, strict=True)}
    recorded = in_turn(prompt for prompt in chosen if prompt.index in outputs)[:PROMPTS]
    encoded = encode_prompts(
        encoder_of(model, tokenizer), recorded, path, request.output.max_new_tokens, request.prompts
    )
    return [(tokens, outputs[prompt.index][:POSITIONS].tolist()) for prompt, tokens in encoded]


def _load(spec: PairSpec, compression: str) -> CachedModel:
    loading = spec.loading
    options = loading.engine, loading.trust_remote_code, loading.device_map
    return load_model(target_of(spec), compression, spec.machine.device, *options)
