"""An output that is known already, taken in by the target in one teacher-forced pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftgauge.decoding.plain import prefill
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.verification import entropy_bits

CHUNK = 256  # tokens that go through together: no more logits exist at once


@dataclass(frozen=True)
class ForcedOutput:
    """What the target says of an output of ``N`` tokens that it did not decode here.

    Attributes:
        entropy: ``[N]`` bits of the distribution behind each token.
        differs: positions whose token is not the target's most probable one.
    """

    entropy: NDArray[np.float32]
    differs: tuple[int, ...]


@torch.inference_mode()
def force_output(target: CachedModel, prompt_tokens: list[int], output: list[int]) -> ForcedOutput:
    """Let a target read a prompt and an output; its cache then holds both but for the last token.

    Args:
        target: its cache is emptied first.
        prompt_tokens, output: at least one token each.

    Raises:
        ModelError: if they are longer than the model takes.
    """
    device = target.spec.device
    prefill(target, prompt_tokens)
    text = upload([prompt_tokens[-1], *output], device)
    entropies, agreeing = [], []
    for begin in range(0, len(output), CHUNK):
        end = min(begin + CHUNK, len(output))
        logits = target.forward(text[begin:end])
        entropies.append(entropy_bits(logits))
        agreeing.append(logits.argmax(-1) == text[begin + 1 : end + 1])
    agrees = torch.cat(agreeing).cpu().numpy()
    differs = tuple(int(position) for position in np.flatnonzero(~agrees))
    return ForcedOutput(torch.cat(entropies).cpu().numpy(), differs)
