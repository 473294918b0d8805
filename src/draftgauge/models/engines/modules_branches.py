"""Branches off a cached sequence for transformers' modules: masked in one pass, or one after the other."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from draftgauge.models.base import ModelSpec
from draftgauge.models.spec import check_context
from draftgauge.models.transformers_calls import attention_kernels, cache_argument

STATES = ("conv_states", "recurrent_states", "has_previous_state")  # of a cache layer, each by the state's index


def takes_branch_masks(model: PreTrainedModel) -> bool:
    """Whether a custom mask and custom positions describe branches exactly for this model.

    They do for rotary embeddings under attention that adds a mask. Other position schemes (ALiBi, learned offsets) read
    positions off the mask, and chunked attention has masks of its own.
    """
    config = model.config.get_text_config()
    rotary = any(name.endswith("rotary_emb") for name, _ in model.named_modules())
    return (
        rotary
        and not getattr(config, "alibi", False)  # falcon has rotary embeddings, and with ALiBi does not use them
        and "position_ids" in inspect.signature(model.forward).parameters
        and config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}
        and getattr(config, "attention_chunk_size", None) is None
    )


class MaskedBranches:
    """All branches in one pass: their tokens are appended to a copy of the cache, and a mask keeps them apart."""

    def __init__(self, model: PreTrainedModel, spec: ModelSpec, cache: DynamicCache, starts: Tensor) -> None:
        self._model = model
        self._spec = spec
        self._cache = shared_prefix(cache, int(starts.max()))
        self._config = model.config.get_text_config()
        prefix = torch.arange(self._cache.get_seq_length(), device=starts.device)
        self._positions = starts  # [N] position of the next token
        self._key_positions = prefix  # [keys] position of every key in the cache
        self._visible = prefix < starts[:, None]  # [N, keys]

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        check_context(self._spec, int(self._positions.max()) + 1)
        own = torch.eye(len(tokens), dtype=torch.bool, device=tokens.device)
        self._visible = torch.cat((self._visible, own), 1)
        self._key_positions = torch.cat((self._key_positions, self._positions))
        with attention_kernels(self._spec.device):
            output = self._model(
                input_ids=tokens[None],
                position_ids=self._positions[None],
                attention_mask=self._masks(),
                use_cache=True,
                **cache_argument(self._model, self._cache),
            )
        self._positions = self._positions + 1
        logits: Tensor = output.logits[0]
        return logits.float()

    def keep(self, rows: Tensor) -> None:
        self._positions = self._positions[rows]
        self._visible = self._visible[rows]

    def _masks(self) -> Tensor | dict[str, Tensor]:
        """Additive masks ``[1, 1, N, keys]``, one for each kind of attention the model has."""
        kinds = set(getattr(self._config, "layer_types", None) or ())
        window = getattr(self._config, "sliding_window", None)
        full = self._additive(self._visible)
        if window is None or kinds == {"full_attention"}:
            return full
        distance = self._positions[:, None] - self._key_positions  # [N, keys]
        sliding = self._additive(self._visible & (distance < window))
        return {"full_attention": full, "sliding_attention": sliding} if kinds else sliding

    def _additive(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self._spec.dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(self._spec.dtype).min)[None, None]


class SequentialBranches:
    """One branch after the other, each on its own continuation of the cache: slow, and right for every architecture."""

    def __init__(
        self,
        run: Callable[[Tensor, DynamicCache, int], Tensor],
        spec: ModelSpec,
        caches: list[DynamicCache],
        starts: Tensor,
    ) -> None:
        """Branches that each have a cache of their first ``starts`` tokens; ``run`` is the model's."""
        self._run, self._spec = run, spec
        self._branches = list(zip(caches, starts.tolist(), strict=True))

    def step(self, tokens: Tensor) -> Tensor:
        check_context(self._spec, max(length for _, length in self._branches) + 1)
        branches = zip(tokens, self._branches, strict=True)
        logits = [self._run(token[None], cache, length) for token, (cache, length) in branches]
        self._branches = [(cache, length + 1) for cache, length in self._branches]
        return torch.cat(logits)

    def keep(self, rows: Tensor) -> None:
        self._branches = [self._branches[row] for row in rows.tolist()]


def shared_prefix(cache: DynamicCache, length: int) -> DynamicCache:
    """A cache of the first ``length`` tokens that reads the given one's memory: what is appended goes to new memory.

    States are left out.
    """
    prefix = DynamicCache()
    prefix.layer_class_to_replicate = None
    prefix.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in prefix.layers:
        for name, held in vars(layer).items():
            if isinstance(held, dict):
                setattr(layer, name, dict.fromkeys(held) if name in STATES else dict(held))
    cached = max((layer.get_seq_length() for layer in cache.layers if isinstance(layer, DynamicLayer)), default=0)
    crop(prefix, cached - length)
    return prefix


def crop(cache: DynamicCache, dropped: int) -> None:
    """Drop the last tokens of what is kept by token; states stay as they are."""
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer):
            own = DynamicLayer if hasattr(layer, STATES[0]) else type(layer)
            own.crop(layer, -dropped)
