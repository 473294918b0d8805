"""What a recording takes, before anything starts: memory of the device, and disk. Only configurations are read."""

from __future__ import annotations

import shutil
from typing import Any

import torch
from transformers import PreTrainedModel

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import nearest_existing
from draftgauge.drafters.base import choose_drafter, drafter_kind
from draftgauge.drafters.dense import CHUNK as DENSE_CHUNK
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.meter import measured_span
from draftgauge.models.base import most_places
from draftgauge.models.device import (
    activation_dtype,
    choose_device,
    draft_compression,
    free_bytes,
    on_meta,
    seconds,
    weight_bytes,
)
from draftgauge.models.folder import weight_bytes_of
from draftgauge.models.loading import load_tokenizer, made_by_others
from draftgauge.models.spec import UNLIMITED, cached_numbers, read_configuration
from draftgauge.pair.loading import target_of
from draftgauge.pair.prompts import PromptEncoder, choose_prompts, encode_prompts
from draftgauge.pair.served import answered_prompts
from draftgauge.requests import ProfileRequest

ROW_BYTES = 18  # of a position: its prompt and number, token, entropy, accepted
DRAFTED_BYTES = 16  # of a drafted token: itself and three signals
COPIES = 3  # of a chunk of logits: themselves, probabilities, a temporary
LOGITS_BYTES = 4
GIB = 2**30
PROCESS_BYTES = 0.5 * GIB  # of Python, torch and transformers
COPIED = 0.15  # of a model's weights on a CPU: a head that is an embedding too, and what is copied while packing


def estimate_rows(request: ProfileRequest) -> list[dict[str, Any]]:
    """One row a compression: ``prompts``; ``positions``, at most; ``longest``, tokens of the longest prompt and its
    output. ``weights_gib`` is the files' size for a drafter that reads the target, whose few layers ``cache_gib``
    leaves out. That has keys and values of target and draft model, and of the batches. ``memory_gib`` is their sum with
    ``logits_gib`` and ``copies_gib`` (libraries, and weights in another order). ``free_gib`` is the device's, None if
    unknown. ``disk_gib`` is at most; ``free_disk_gib``; ``fits``; ``minutes``, about, as fast as memory is read."""
    target, (name, source) = target_of(request.pair), choose_drafter(request.pair.drafter)
    for model in (target, source):
        if model is not None and (kind := made_by_others(model)):
            raise DraftgaugeError(f"a plan reads what transformers loads, and {model} is {kind}: leave out --plan")
    trusted, files = request.pair.loading.trust_remote_code, 0
    models = [on_meta(read_configuration(target, trusted), trusted)]
    if issubclass(drafter_kind(name), LanguageModelSource) and source is not None:
        models.append(on_meta(read_configuration(source, trusted), trusted))
    elif source is not None:
        files = weight_bytes_of(source)
    path, chosen = choose_prompts(request.prompts)
    if request.prompts.turns > 1:
        raise DraftgaugeError("a plan decodes nothing, so it knows no later turns: leave out --turns")
    named = [getattr(m.config.get_text_config(), "max_position_embeddings", None) for m in models]
    context = min((length for length in named if length), default=1 << 31)
    tokenizer = load_tokenizer(request.pair.loading.tokenizer or target, trusted)
    encoder = PromptEncoder(tokenizer, context)
    encoded = encode_prompts(encoder, chosen, path, request.output.max_new_tokens, request.prompts)
    if request.outputs is not None:
        encoded, _ = answered_prompts(request.outputs, encoded)
    longest = max(len(tokens) for _, tokens in encoded) + request.output.max_new_tokens
    span = measured_span(request.drafts.gamma_max, context)
    return [_row(request, name, models, files, len(encoded), (longest, span)) for name in request.pair.compression]


def _row(
    request: ProfileRequest,
    compression: str,
    models: list[PreTrainedModel],
    files: int,
    prompts: int,
    lengths: tuple[int, int],
) -> dict[str, Any]:
    longest, span = lengths
    device = choose_device(request.pair.machine.device)
    weights, cache, copies = float(files), 0.0, PROCESS_BYTES
    measured = max(longest, span) + span  # costs are measured around a length, over a span
    of_batches = max(request.batches, default=0) * measured
    for number, model in enumerate(models):
        held = compression if number == 0 else draft_compression(compression)
        config = model.config.get_text_config()
        dtype = activation_dtype(held, device, config.dtype)
        width = dtype.itemsize
        size = sum(p.numel() for p in model.parameters()) * weight_bytes(held, dtype)
        weights += size
        copies += size * (device.type == "cpu") * COPIED
        context = getattr(config, "max_position_embeddings", None) or UNLIMITED
        places = most_places(min(measured, context), context) + of_batches
        cache += places * width * cached_numbers(config)
    vocabulary = models[0].config.get_text_config().vocab_size
    rows = min(DENSE_CHUNK, request.output.max_new_tokens + 1)
    if request.sampling.temperature > 0:  # of the whole output: its chances of acceptance need both distributions
        rows = max(rows, request.output.max_new_tokens)
    logits = COPIES * rows * vocabulary * LOGITS_BYTES
    positions = prompts * request.output.max_new_tokens
    disk = positions * (ROW_BYTES + DRAFTED_BYTES * request.drafts.gamma_max)
    free, memory = free_bytes(device), weights + copies + cache + logits
    probe, begun = torch.ones(1 << 26, device=device), seconds(device)
    probe.sum().item()
    read = probe.nbytes / (seconds(device) - begun)  # bytes a second
    free_disk = shutil.disk_usage(nearest_existing(request.out)).free
    return {
        "compression": compression,
        "prompts": prompts,
        "positions": positions,
        "longest": longest,
        "device": str(device),
        "weights_gib": weights / GIB,
        "cache_gib": cache / GIB,
        "logits_gib": logits / GIB,
        "copies_gib": copies / GIB,
        "memory_gib": memory / GIB,
        "free_gib": None if free is None else free / GIB,
        "disk_gib": disk / GIB,
        "free_disk_gib": free_disk / GIB,
        "fits": (free is None or memory <= free) and disk <= free_disk,
        "minutes": (2 * positions * weights / read + request.costs.cost_seconds) / 60,
    }
