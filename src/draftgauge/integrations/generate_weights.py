"""Whether a model is still what was taken over from it: an engine may hold copies of its weights.

PyTorch counts writes to a tensor, but neither those through ``.data`` nor those of fused optimisers. So where copies
are held the weights themselves are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.models.base import CachedModel
from draftgauge.models.lean import LeanModel
from draftgauge.models.lean_families import why_not_lean
from draftgauge.models.lean_ops import packs

SAMPLED = 64  # elements of each weight, at least


@dataclass(frozen=True)
class Weights:
    """What the weights of a model were.

    Attributes:
        written: of each, where it lies and how often it was written to.
        values: of those that an engine holds copies of, two figures each.
    """

    written: tuple[tuple[int, int], ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, model: CachedModel) -> Weights:
        """As they are now."""
        parameters = list(model.module.parameters())
        written = tuple((each.data_ptr(), 0 if each.is_inference() else each._version) for each in parameters)
        return cls(written, _values(_copied(model, parameters)))


def is_unchanged(model: CachedModel, weights: Weights) -> bool:
    """Whether what an engine took over from a model is what that now has, and computes."""
    module: PreTrainedModel = model.module
    return Weights.of(model) == weights and not (isinstance(model, LeanModel) and why_not_lean(module))


def _copied(model: CachedModel, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters that an engine holds copies of, or has derived others from."""
    if not isinstance(model, LeanModel):
        return []
    packed = packs(model.module)
    return [each for each in parameters if each.is_floating_point() and (packed or each.ndim == 1)]


@torch.inference_mode()
def _values(weights: list[nn.Parameter]) -> tuple[float, ...]:
    figures: list[Tensor] = []
    for weight in weights:
        values = weight.detach().flatten()
        figures += [values[:: max(1, len(values) // SAMPLED)].float().sum(), torch.linalg.vector_norm(values).float()]
    return tuple(torch.stack(figures).nan_to_num().tolist()) if figures else ()
