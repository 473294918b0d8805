"""The engine for any architecture: transformers' own modules behind the cache contract.

Every layer keeps all its keys, sliding-window layers too: a cache that drops keys cannot be rolled back. The window
then comes from the attention mask, which transformers builds for the whole length.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from draftgauge.core.errors import ModelError, is_out_of_memory
from draftgauge.models.base import BranchSession, HiddenStates, ModelSpec, watching
from draftgauge.models.spec import attention_kernels, cache_argument, check_context, check_starts, model_spec

# Layers that keep all keys, with an indexer's where they are chosen from, nothing at all, or states; by the release.
_KNOWN = ("DynamicLayer", "DynamicIndexedLayer", "DummyLayer")
_WITH_STATES = ("LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer")
_ROLLED_BACK = tuple(getattr(cache_utils, name) for name in (*_KNOWN, *_WITH_STATES) if hasattr(cache_utils, name))
STATES = ("conv_states", "recurrent_states", "has_previous_state")  # of a cache layer, each by the state's index
_HYBRID_WINDOW = "LinearAttentionAndSlidingWindowAttentionLayer"

PROBED = 8  # tokens of either part of the text that shows whether a model decodes with its cache
_CHECKED: WeakSet[PreTrainedModel] = WeakSet()
MOST_APART = 0.3  # of the norm of its logits; bfloat16 and experts that change come to a tenth of that


class ModulesModel:
    """:class:`~draftgauge.models.base.CachedModel` of any causal language model of transformers."""

    gives_positions: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = model.eval()
        together = ModelSpec.branches if takes_branch_masks(model) else 1  # else each has a copy of the cache
        self.spec = replace(model_spec(model, "modules"), branches=together)
        self.hidden: HiddenStates | None = None  # filled by every forward where there is one
        self._cache = rollback_cache(model)
        self._length = 0
        self._taken = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in self._taken else {}
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
        watched: AbstractContextManager[None] = nullcontext()
        if self.hidden is not None:
            note = self.hidden.keep(self._length, self._length + len(tokens))
            watched = watching(self.module, self.hidden.layers, lambda layer, states: note(layer, states[0]))
        with watched:
            logits = self.run(tokens, self._cache, self._length, last_only)
        self._length += len(tokens)
        return logits

    @torch.inference_mode()
    def run(self, tokens: Tensor, cache: DynamicCache, begin: int, last_only: bool = False) -> Tensor:
        """A pass over tokens ``[k]`` behind the first ``begin`` ones, which this cache holds; logits as of
        :meth:`forward`.
        """
        options: dict[str, Any] = cache_argument(self.module, cache) | (self._last_only if last_only else {})
        if self.gives_positions and "position_ids" in self._taken:
            options["position_ids"] = torch.arange(begin, begin + len(tokens), device=tokens.device)[None]
        with attention_kernels(self.spec.device):
            output = self.module(input_ids=tokens[None], use_cache=True, **options)
        logits: Tensor = output.logits[0, -1:] if last_only else output.logits[0]
        return logits.to(self.spec.device, torch.float32)

    def _check_cache(self) -> None:
        """Decode a few tokens at once and in two parts.

        Many architectures take a cache and leave it empty, or let tokens see those behind them: their text would be
        wrong without an error.
        """
        if getattr(self.module.config.get_text_config(), "prefix_lm", False):
            self._refuse("its prompt's tokens see those behind them")
        first, second = self._probe()
        with self._refusing_errors():
            whole = self.forward(torch.cat((first, second)))
            cached, count = self._cached(), len(whole)
            self.reset()
            parts = torch.cat((self.forward(first), self.forward(second)))
            self.reset()
        if cached != count:
            self._refuse(f"it has cached {cached} of {count} tokens")
        if (whole - parts).norm() > MOST_APART * whole.norm():
            self._refuse("its logits are others when a text comes in parts; do its tokens see those behind them?")

    def _probe(self) -> tuple[Tensor, Tensor]:
        count = 2 * min(PROBED, self.spec.context // 2)
        tokens = torch.linspace(self.spec.vocabulary // 4, self.spec.vocabulary // 2, count, device=self.spec.device)
        first, second = tokens.long().chunk(2)
        return first, second

    def _cached(self) -> int:
        return max(
            (layer.get_seq_length() for layer in self._cache.layers if hasattr(layer, "get_seq_length")), default=0
        )

    @contextmanager
    def _refusing_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._refuse(f"it ends in {type(error).__name__}: {' '.join(str(error).split())[:200]}", error)

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
        if takes_branch_masks(self.module):
            return MaskedBranches(self.module, self.spec, self._cache, starts)
        caches = [shared_prefix(self._cache, start) for start in starts.tolist()]
        return SequentialBranches(self.run, self.spec, caches, starts)


def rollback_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for the model in which every layer keeps all keys."""
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:  # a subclass may keep more than keys
            cache.layers[index] = DynamicLayer()
        elif type(layer).__name__ == _HYBRID_WINDOW:
            cache.layers[index] = cache_utils.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif type(layer) not in _ROLLED_BACK:
            raise ModelError(
                f"{model.config.model_type} keeps a state that cannot be rolled back ({type(layer).__name__} in layer "
                f"{index}, which is unknown here): choose another model"
            )
    return cache


def holds_states(layer: object) -> bool:
    """Whether a cache layer holds recurrent or convolution states."""
    return isinstance(layer, tuple(getattr(cache_utils, name) for name in _WITH_STATES if hasattr(cache_utils, name)))


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
        full = self._additive(self._visible)
        masks: Tensor | dict[str, Tensor] = full  # one for each kind of attention
        if self._window is not None and self._kinds != {"full_attention"}:
            distance = self._positions[:, None] - self._key_positions  # [N, keys]
            sliding = self._additive(self._visible & (distance < self._window))
            masks = {"full_attention": full, "sliding_attention": sliding} if self._kinds else sliding
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
