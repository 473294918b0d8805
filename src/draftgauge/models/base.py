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
        vocabulary: number of logits.
        context: longest sequence in tokens the model takes.
        device: where it runs.
        dtype: of its activations.
        family: ``model_type`` of its configuration.
        engine: "lean" (our own functions), "static" (the same with fixed shapes, as CUDA graphs), "modules"
            (transformers' modules), "gguf" or "gguf-fast" (llama.cpp).
        attention: the kernels that its attention runs with.
        context_reason: why ``context`` is less than the configuration says; empty if it is not.
        branches: the most branches that grow together.
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

    @property
    def keeps_on_device(self) -> bool:
        """Whether drafted tokens are best read once a step: each read waits for an accelerator.

        The static engine does on a CPU what it would do on a GPU.
        """
        return self.device.type != "cpu" or self.engine == "static"


class BranchSession(Protocol):
    """Branches off one cached sequence that grow together, one token a step; they do not see each other.

    Opened by :meth:`CachedModel.branches`, for drafting from many positions of a known text at once.
    """

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every branch.

        Args:
            tokens: ``[N]`` int64 on the model's device.

        Returns:
            float32 ``[N, vocabulary]``: the logits after the token, branch by branch.

        Raises:
            ModelError: if a branch would exceed the model's context.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these branches only, in this order.

        Args:
            rows: int64 indices into the present branches, on the model's device.
        """
        ...


class CachedModel(Protocol):
    """One sequence (batch of one) with its KV cache.

    The cache holds the keys and values of the first ``length`` tokens. ``forward`` appends; ``truncate`` rolls back.
    """

    spec: ModelSpec
    module: PreTrainedModel
    """The transformers model behind it: its configuration, its generation settings, and the same weights. None in the
    gguf engine, which has none."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    def reset(self) -> None:
        """Empty the cache."""
        ...

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and return logits.

        Args:
            tokens: ``[k]`` int64 on the model's device, at least one.
            last_only: compute logits of the last token only (prefill).

        Returns:
            float32 logits ``[k, vocabulary]`` (``[1, vocabulary]`` with ``last_only``); row ``i`` predicts the token
            after ``tokens[i]``.

        Raises:
            ModelError: if the sequence would exceed ``spec.context``.
        """
        ...

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the cache; the others are forgotten."""
        ...

    def branches(self, starts: Tensor) -> BranchSession:
        """Open short branches off the cached sequence, to be decoded all together, the cache left as it is.

        Branch ``i`` continues the first ``starts[i]`` cached tokens. The session reads this model's cache, so it ends
        with the next ``forward``, ``truncate`` or ``reset``. Its memory grows with ``N`` times the length of the cache
        and with ``N`` times the vocabulary: open one session for every few hundred positions.

        Args:
            starts: ``[N]`` int64 on the model's device, each in ``1..length``.

        Raises:
            ModelError: if a start is outside the cached sequence.
        """
        ...
