"""The engine for any architecture: transformers' own modules behind the cache contract.

Every layer keeps all its keys, sliding-window layers too: a cache that drops keys cannot be rolled back. The window
then comes from the attention mask, which transformers builds for the whole length.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NoReturn
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from draftgauge.core.errors import ModelError, is_out_of_memory
from draftgauge.models.base import BranchSession, ModelSpec
from draftgauge.models.growing import HiddenStates
from draftgauge.models.hidden import watching
from draftgauge.models.spec import check_context, check_starts, model_spec
from draftgauge.models.transformers_calls import attention_kernels, cache_argument

# Layers that keep all keys, or nothing at all: transformers has a class of its own for the latter since 5.20.
_ROLLED_BACK = tuple(
    getattr(cache_utils, name) for name in ("DynamicLayer", "DummyLayer") if hasattr(cache_utils, name)
)

PROBED = 8  # tokens of either part of the text that shows whether a model decodes with its cache
_CHECKED: WeakSet[PreTrainedModel] = WeakSet()
MOST_APART = 0.3  # of the norm of its logits; bfloat16 and experts that change come to a tenth of that


class ModulesModel:
    """:class:`~draftgauge.models.base.CachedModel` of any causal language model of transformers."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = model.eval()
        together = ModelSpec.branches if takes_branch_masks(model) else 1  # else each has a copy of the cache
        self.spec = replace(model_spec(model, "modules"), branches=together)
        self.hidden: HiddenStates | None = None  # filled by every forward where there is one
        self._cache = rollback_cache(model)
        self._length = 0
        self._last_only = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )
        if model not in _CHECKED:
            self._check_cache()
            _CHECKED.add(model)

    @property
    def length(self) -> int:
        return self._length

    def reset(self) -> None:
        self._cache = rollback_cache(self.module)
        self._length = 0

    @torch.inference_mode()
    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        check_context(self.spec, self._length + len(tokens))
        keep = self._last_only if last_only else {}
        watched: AbstractContextManager[None] = nullcontext()
        if self.hidden is not None:
            note = self.hidden.keep(self._length, self._length + len(tokens))
            watched = watching(self.module, self.hidden.layers, lambda layer, states: note(layer, states[0]))
        with attention_kernels(self.spec.device), watched:
            cache = cache_argument(self.module, self._cache)
            output = self.module(input_ids=tokens[None], use_cache=True, **cache, **keep)
        self._length += len(tokens)
        logits: Tensor = output.logits[0, -1:] if last_only else output.logits[0]
        return logits.to(self.spec.device, torch.float32)

    def _check_cache(self) -> None:
        """Decode a few tokens at once and in two parts.

        Many architectures take a cache and leave it empty, or let tokens see those behind them: their text would be
        wrong without an error.
        """
        if getattr(self.module.config.get_text_config(), "prefix_lm", False):
            self._refuse("its prompt's tokens see those behind them")
        count = 2 * min(PROBED, self.spec.context // 2)
        tokens = torch.linspace(self.spec.vocabulary // 4, self.spec.vocabulary // 2, count, device=self.spec.device)
        first, second = tokens.long().chunk(2)
        try:
            whole = self.forward(tokens.long())
            lengths = [layer.get_seq_length() for layer in self._cache.layers if hasattr(layer, "get_seq_length")]
            cached = max(lengths, default=0)
            self.reset()
            parts = torch.cat((self.forward(first), self.forward(second)))
            self.reset()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._refuse(f"it ends in {type(error).__name__}: {' '.join(str(error).split())[:200]}", error)
        if cached != count:
            self._refuse(f"it has cached {cached} of {count} tokens")
        if (whole - parts).norm() > MOST_APART * whole.norm():
            self._refuse("its logits are others when a text comes in parts; do its tokens see those behind them?")

    def _refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise ModelError(
            f"this {self.spec.family} model ({type(self.module).__name__}) does not decode with a cache of keys and "
            f"values ({reason}): choose a decoder-only language model"
        ) from cause

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length, (length, self._length)
        if length == 0:
            self.reset()
        elif length < self._length:
            self._cache.crop(length - self._length)  # negative: how many to drop
            self._length = length

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """A decoder layer's rotated keys, and values, ``[KV, length, D]`` each: views until the next ``forward``."""
        assert self._length > 0
        cached = self._cache.layers[layer]
        return cached.keys[0], cached.values[0]

    def branches(self, starts: Tensor) -> BranchSession:
        check_starts(int(starts.min()), int(starts.max()), self._length)
        session = MaskedBranches if takes_branch_masks(self.module) else SequentialBranches
        return session(self.module, self.spec, self._cache, starts)


def rollback_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for the model in which every layer keeps all keys."""
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:  # a subclass may keep more than keys
            cache.layers[index] = DynamicLayer()
        elif type(layer) not in _ROLLED_BACK:
            raise ModelError(
                f"{model.config.model_type} keeps a state that cannot be rolled back ({type(layer).__name__} in layer "
                f"{index}): speculative decoding needs plain attention layers"
            )
    return cache


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
        config = model.config.get_text_config()
        self._kinds = set(getattr(config, "layer_types", None) or ())
        self._window = getattr(config, "sliding_window", None)
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
        masks: Tensor | dict[str, Tensor] = self._additive(self._visible)  # one for each kind of attention
        if self._window is not None and self._kinds != {"full_attention"}:
            distance = self._positions[:, None] - self._key_positions  # [N, keys]
            sliding = self._additive(self._visible & (distance < self._window))
            masks = {"full_attention": masks, "sliding_attention": sliding} if self._kinds else sliding
        with attention_kernels(self._spec.device):
            output = self._model(
                input_ids=tokens[None],
                position_ids=self._positions[None],
                attention_mask=masks,
                use_cache=True,
                **cache_argument(self._model, self._cache),
            )
        self._positions = self._positions + 1
        logits: Tensor = output.logits[0]
        return logits.float()

    def keep(self, rows: Tensor) -> None:
        self._positions = self._positions[rows]
        self._visible = self._visible[rows]

    def _additive(self, visible: Tensor) -> Tensor:
        """A mask ``[1, 1, N, keys]``."""
        mask = torch.zeros(visible.shape, dtype=self._spec.dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(self._spec.dtype).min)[None, None]


class SequentialBranches:
    """One branch after the other, each on its own continuation of the cache: slow, and right for every architecture."""

    def __init__(self, model: PreTrainedModel, spec: ModelSpec, cache: DynamicCache, starts: Tensor) -> None:
        self._model = model
        self._spec = spec
        self._caches = [shared_prefix(cache, start) for start in starts.tolist()]

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        check_context(self._spec, max(cache.get_seq_length() for cache in self._caches) + 1)
        with attention_kernels(self._spec.device):
            outputs = [
                self._model(input_ids=token[None, None], use_cache=True, **cache_argument(self._model, cache))
                for token, cache in zip(tokens, self._caches, strict=True)
            ]
        return torch.stack([output.logits[0, -1] for output in outputs]).float()

    def keep(self, rows: Tensor) -> None:
        self._caches = [self._caches[row] for row in rows.tolist()]


def shared_prefix(cache: DynamicCache, length: int) -> DynamicCache:
    """A cache of the first ``length`` tokens that reads the given one's memory: what is appended goes to new memory."""
    copy = DynamicCache()
    copy.layer_class_to_replicate = None
    for layer in cache.layers:
        view = type(layer)()
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            view.lazy_initialization(layer.keys, layer.values)
            view.keys, view.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        copy.layers.append(view)
    return copy
