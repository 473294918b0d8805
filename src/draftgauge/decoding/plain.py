"""The plain loop, one token a pass: the reference that speculative decoding must equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from draftgauge.decoding.settings import DecodingSettings, Finish, Generation, OnCommit, Stopper, check_request
from draftgauge.models.base import CachedModel
from draftgauge.models.device import seconds, upload
from draftgauge.policies.base import Step
from draftgauge.verification import check_finite, choose


@torch.inference_mode()
def plain_decode(
    model: CachedModel,
    prompt_tokens: list[int],
    settings: DecodingSettings,
    generator: Generator | None = None,
    on_commit: OnCommit | None = None,
    on_logits: Callable[[Tensor], None] | None = None,
) -> Generation:
    """Decode without speculation.

    Args:
        generator: on the model's device, needed if the sampling is not greedy.
        on_commit: told each token as it is committed.
        on_logits: told the logits ``[1, V]`` that give each token, before it is read.

    Returns:
        The output; every origin is "plain" and every step commits one token.
    """
    check_request(model.spec, prompt_tokens, settings, generator)
    device = model.spec.device
    stopper = Stopper(settings)
    started = seconds(device)
    prefill(model, prompt_tokens)
    prefilled = seconds(device)

    result = Generation(prefill_seconds=prefilled - started)
    token = upload(prompt_tokens[-1:], device)
    finish: Finish | None = None
    while finish is None:
        logits = model.forward(token)
        if on_logits is not None:
            on_logits(logits)
        token = choose(logits, settings.sampling, generator)
        read = token.tolist()
        check_finite(read, f"target ({model.spec.dtype})", model.length)
        committed, finish = stopper.cut(read)
        result.tokens += committed
        if on_commit is not None:
            on_commit(committed, ["plain"])
    result.finish = finish
    result.origins = ["plain"] * len(result.tokens)
    result.steps = [Step(0, 0, 1)] * len(result.tokens)
    result.decode_seconds = seconds(device) - prefilled
    return result


def prefill(model: CachedModel, prompt_tokens: list[int]) -> None:
    """Take in the prompt but for its last token, whose logits the first step needs."""
    model.reset()
    if len(prompt_tokens) > 1:
        model.forward(upload(prompt_tokens[:-1], model.spec.device), last_only=True)
