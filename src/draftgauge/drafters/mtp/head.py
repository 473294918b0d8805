"""One MTP head: the norms of its two inputs, the projection that joins them, and layers of the target's own class.

Letters in shapes: ``B`` texts, ``n`` rows, ``H`` hidden size, ``C`` places that rows can see.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, DynamicCache, PreTrainedConfig, PreTrainedModel

from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.mtp.families import COUNTS, MtpFamily
from draftgauge.models.base import final_norm, text_decoder
from draftgauge.models.spec import attention_kernels, cache_argument

Take = Callable[[int, Tensor, Tensor], KeysValues]


class Passing(DynamicCache):
    """A cache for one pass, which hands keys and values of each layer to a function and gives back what it returns."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self._take = take

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysValues:
        return self._take(layer_idx, key_states, value_states)


class Head:
    """One head; ``projection`` has weights ``[H, 2H]``, and ``decoder`` no norm of its own behind its layers."""

    def __init__(
        self, embedding: nn.Module, hidden: nn.Module, projection: nn.Linear, decoder: PreTrainedModel, norm: nn.Module
    ) -> None:
        self.embedding, self.hidden, self.projection = embedding, hidden, projection
        self.decoder, self.norm = decoder, norm
        config = decoder.config
        self._argument = next(iter(cache_argument(decoder, None)))
        self._kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
        self._window = getattr(config, "sliding_window", None) if "sliding_attention" in self._kinds else None

    def run(
        self, family: MtpFamily, pairs: tuple[Tensor, Tensor, Tensor], visible: Tensor, columns: Tensor, take: Take
    ) -> Tensor:
        """What the head passes on, ``[B, n, H]``.

        Args:
            pairs: embedded tokens and hidden states ``[B, n, H]``, and their places ``[B, n]`` or ``[1, n]``.
            visible: ``[B, n, C]`` or ``[1, n, C]``: the places that a row sees; ``columns`` ``[B, C]`` are they.
            take: see :class:`Passing`.
        """
        embedded, states, places = pairs
        embedded = embedded.to(states.dtype)
        if family.zero_first:
            embedded = embedded * (places > 0)[..., None]
        both = [self.embedding(embedded), self.hidden(states)]
        joined = self.projection(torch.cat(both[::-1] if family.hidden_first else both, -1))
        states = self.decoded(joined, places, visible, columns, take)
        return self.norm(states) if family.passes_normed else states

    def decoded(self, states: Tensor, places: Tensor, visible: Tensor, columns: Tensor, take: Take) -> Tensor:
        mask: Any = _additive(visible, states)
        if self._kinds:
            mask = dict.fromkeys(self._kinds, mask)
            if self._window is not None:
                near = places[..., None] - columns[:, None] < self._window
                mask["sliding_attention"] = _additive(visible & near, states)
        with attention_kernels(states.device):
            given = {"position_ids": places.expand(len(states), -1), self._argument: Passing(take)}
            output = self.decoder(inputs_embeds=states, attention_mask=mask, use_cache=True, **given)
        last: Tensor = output.last_hidden_state
        return last


def _additive(visible: Tensor, like: Tensor) -> Tensor:
    """A mask ``[B, 1, n, C]``."""
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible, torch.finfo(like.dtype).min)[:, None]


def take_norm(decoder: PreTrainedModel) -> nn.Module:
    """Take the norm behind the layers out of a decoder: some families pass on what is before it."""
    norm = final_norm(decoder)
    assert norm is not None
    name = next(name for name, part in decoder.named_children() if part is norm)
    setattr(decoder, name, nn.Identity())
    return norm


def head_class(module: PreTrainedModel, config: PreTrainedConfig) -> Any:
    """What the layers of a head are built as: the target's own class, or that of a family's ``model_type``."""
    own = config.model_type == module.config.get_text_config().model_type
    return type(text_decoder(module)) if own else MODEL_MAPPING[type(config)]


def head_config(text: PreTrainedConfig, family: MtpFamily, number: int = 0) -> PreTrainedConfig:
    """The target's configuration for the layers of one head alone."""
    config = copy.deepcopy(text)
    if (kind := family.settings.get("model_type", text.model_type)) != text.model_type:
        names = [each.name for each in fields(CONFIG_MAPPING[kind]) if hasattr(text, each.name)]
        config = CONFIG_MAPPING[kind](**{name: getattr(text, name) for name in names})
    settings: dict[str, Any] = {"num_hidden_layers": len(family.blocks), "vocab_size": 1, "pad_token_id": 0}
    settings |= {**dict.fromkeys(COUNTS, 0), **family.settings}
    for name, other in family.from_settings.items():  # lists with an entry for every layer of every head
        settings |= {name: own[number:]} if (own := getattr(text, other, None)) else {}
    for name, value in settings.items():
        if name != "model_type" and hasattr(config, name):
            setattr(config, name, value)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    config._attn_implementation = "eager" if text._attn_implementation == "eager" else "sdpa"
    return config
