"""A causal language model with a cache that can be rolled back: what drafting and verifying ask of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelSpec:
    """What decoding must know of a model.

    Attributes:
        context: longest sequence in tokens.
        engine: "lean", "static", "modules", "gguf", "openvino", or one of these with "-fast"; see docs/engines.md.
        attention: which attention transformers was loaded with.
        context_reason: why ``context`` is less than the configuration says; empty if it is not.
        branches: the most branches that grow together.
        recurrent: whether rolling back takes work, as states have to be made again.
        kernels: of the gguf engines, instruction sets that the library uses, and how it holds the weights.
    """

    vocabulary: int
    context: int
    device: torch.device
    dtype: torch.dtype
    family: str
    engine: str
    attention: str = ""
    context_reason: str = ""
    branches: int = 1 << 30
    recurrent: bool = False
    kernels: str = ""

    @property
    def keeps_on_device(self) -> bool:
        """Whether drafted tokens are best read once a step: on an accelerator, and on the static engine."""
        return self.device.type != "cpu" or self.engine == "static"


class BranchSession(Protocol):
    """Branches off one cached sequence that grow together, one token a step; they do not see each other."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token ``[N]`` to every branch; float32 logits ``[N, vocabulary]`` after it.

        Raises:
            ModelError: if a branch would exceed the model's context.
        """

    def keep(self, rows: Tensor) -> None:
        """Go on with these branches only, in this order; ``rows`` are int64 indices into the present ones."""


class CachedModel(Protocol):
    """One sequence (batch of one) with its KV cache: ``forward`` appends, ``truncate`` rolls back."""

    spec: ModelSpec

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model behind it with the same weights: None in the gguf and openvino engines, which
        have none."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def reset(self) -> None:
        """Empty the cache."""

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens ``[k]``, int64 on the model's device, at least one.

        Returns:
            float32 logits ``[k, vocabulary]``, row ``i`` for the token after ``tokens[i]``; of the last token alone,
            ``[1, vocabulary]``, with ``last_only``.

        Raises:
            ModelError: if the sequence would exceed ``spec.context``.
        """

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the cache; the others are forgotten."""

    def branches(self, starts: Tensor) -> BranchSession:
        """Open short branches off the cached sequence, to be decoded together, the cache left as it is.

        Branch ``i`` continues the first ``starts[i]`` cached tokens. The session ends with the next ``forward``,
        ``truncate`` or ``reset``. Its memory grows with ``N`` times the length of the cache and the vocabulary.

        Args:
            starts: ``[N]`` int64 on the model's device, each in ``1..length``.

        Raises:
            ModelError: if a start is outside the cached sequence.
        """


def skeleton_of(model: CachedModel) -> PreTrainedModel | None:
    """The transformers model behind an engine for its configuration and structure: it may lack weights, which
    ``module`` gives back."""
    return getattr(model, "skeleton", None) or model.module
