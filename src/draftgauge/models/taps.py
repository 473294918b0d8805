"""Taps: what a drafter may reuse of its target, the hidden states and the KV cache of chosen layers.

Live, they cost the target no second pass. Hidden states are left behind by the passes that verify; keys and values are
views of the engine's own cache. Letters in shapes: ``B`` texts, ``T`` positions, ``S`` tapped layers, ``H`` hidden
size, ``KV`` key/value heads, ``D`` head dimension.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from draftgauge.core.errors import ModelError
from draftgauge.core.parts import TapRule
from draftgauge.models.base import CachedModel, HiddenStates, skeleton_of, text_decoder, watching
from draftgauge.models.engines.gguf import GgufModel
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.lean_weights import FAMILIES, LENGTH_DEPENDENT_ROPE
from draftgauge.models.engines.modules import ModulesModel, rollback_cache
from draftgauge.models.engines.openvino import OpenvinoModel
from draftgauge.models.spec import attention_kernels, cache_argument, layer_config, rope_kind, rope_kinds

# EAGLE-3's code takes what *enters* layers 2, L // 2 and L - 3 of L, which is the output of the layers below them:
# SpecForge names those. The default takes what leaves these layers; their keys and values are made of what enters them.
EAGLE_LAYERS = 7  # from this many on, layers 2, L // 2 and L - 3 are three
TAPS = 3
FULL_ATTENTION = ("full_attention", "attention", "hybrid")  # kinds of layers by transformers' names


def default_taps(layers: int) -> tuple[int, ...]:
    if layers >= EAGLE_LAYERS:
        return (2, layers // 2, layers - 3)
    count = min(TAPS, layers)
    return tuple((2 * part + 1) * layers // (2 * count) for part in range(count))


def specforge_taps(layers: int) -> tuple[int, ...]:
    """The layers of ``layers`` whose outputs EAGLE-3 (arXiv 2503.01840) and SpecForge take."""
    if layers < EAGLE_LAYERS:
        raise ModelError(
            f"the layers that EAGLE-3 and SpecForge read are of targets of {EAGLE_LAYERS} layers or more, not {layers}"
        )
    return (1, layers // 2 - 1, layers - 4)


TAP_RULES: Mapping[TapRule, Callable[[int], tuple[int, ...]]] = {"eagle3": default_taps, "specforge": specforge_taps}


@dataclass(frozen=True)
class TapPlan:
    """Decoder layers to tap, counted from 0.

    Attributes:
        hidden_layers: whose output, the residual stream, is kept. transformers calls it ``hidden_states[layer + 1]``.
            Of the last layer that one has gone through the final norm, and this one has not.
        kv_layers: whose cached keys and values are read.
    """

    hidden_layers: tuple[int, ...] = ()
    kv_layers: tuple[int, ...] = ()


def tap_plan(
    config: PreTrainedConfig, hidden: bool, kv: bool, layers: Sequence[int] | TapRule | None = None
) -> TapPlan:
    """Plan the taps of a target.

    Some targets alternate full and sliding-window attention. Where a rule chooses and not the caller, keys and values
    then come from the full-attention layers nearest to those of the rule.

    Args:
        layers: which decoder layers, counted from 0, or one of :data:`TAP_RULES`; "eagle3" if None.
    """
    config = config.get_text_config()  # of a model that sees images too, the part that decodes
    if kv:
        _check_keys(config)
    rule: Sequence[int] | TapRule = "eagle3" if layers is None else layers
    if isinstance(rule, str) and rule not in TAP_RULES:
        raise ModelError(f"unknown taps {rule!r}: name layers, or one of {', '.join(TAP_RULES)}")
    chosen = TAP_RULES[rule](config.num_hidden_layers) if isinstance(rule, str) else tuple(rule)
    count = config.num_hidden_layers
    if not chosen or len(set(chosen)) < len(chosen):
        raise ModelError(
            f"name at least one layer to tap, and each once, not {', '.join(map(str, chosen)) or 'none at all'}"
        )
    if missing := [layer for layer in chosen if not 0 <= layer < count]:
        raise ModelError(
            f"there is no layer {', '.join(map(str, missing))} to tap: this {config.model_type} has {count}, counted "
            f"from 0 to {count - 1}"
        )
    if hidden and (absent := sorted({*chosen}.intersection(_of_images(config)))):
        raise ModelError(
            f"layer {absent[0]} of this {config.model_type} reads images and is left out of text: tap other layers"
        )
    kv_layers = chosen if kv else ()
    if kv and isinstance(rule, str):
        kv_layers = nearest_full(config, chosen)
    full = _full_attention(config)
    for layer in kv_layers:
        if layer not in full:
            advice = "choose a target with full attention, or a drafter that reuses hidden states"
            if full:
                advice = f"tap layers with full attention, {', '.join(map(str, full))}"
            raise ModelError(
                f"layer {layer} of this {config.model_type} {_without_keys(config, layer)}, so it has no keys and "
                f"values of its own for the whole text: {advice}"
            )
    return TapPlan(chosen if hidden else (), kv_layers)


def _check_keys(config: PreTrainedConfig) -> None:
    """Refuse a target whose cache does not hold keys that say what was read."""
    if getattr(layer_config(config, 0), "kv_lora_rank", None):
        raise ModelError(
            f"this {config.model_type} caches a latent (MLA) in place of keys and values: choose a drafter that reads "
            "hidden states"
        )
    check_rope(config)


def check_rope(config: PreTrainedConfig) -> None:
    """Refuse a target whose rotary embedding a drafter cannot share."""
    changing = [kind["rope_type"] for kind in rope_kinds(config) if kind["rope_type"] in LENGTH_DEPENDENT_ROPE]
    if changing:
        raise ModelError(
            f"this {config.model_type} has rotary embeddings ({changing[0]}) that change with the length of the text, "
            "so keys that were cached do not tell their position: choose a target with another kind of rotary embedding"
        )


def _of_images(config: PreTrainedConfig) -> Sequence[int]:
    return getattr(config, "cross_attention_layers", None) or ()


def _full_attention(config: PreTrainedConfig) -> list[int]:
    return [layer for layer in range(config.num_hidden_layers) if not _without_keys(config, layer)]


def _without_keys(config: PreTrainedConfig, layer: int) -> str:
    """Why a layer keeps no keys of the whole text; empty where it does."""
    if layer in _of_images(config):
        return "reads images"
    if layer >= config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0):
        return "reads the keys of another layer"
    kinds, length = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    kind = kinds[layer] if kinds is not None else "full_attention" if length is None else "sliding_attention"
    if kind == "sliding_attention":
        return f"attends within a window of {length} tokens"
    return "" if kind in FULL_ATTENTION else f"is one of {kind}"


def nearest_full(config: PreTrainedConfig, layers: tuple[int, ...]) -> tuple[int, ...]:
    """The nearest unused layer with full attention for each layer; the layers themselves if no layer has it."""
    left = _full_attention(config)
    if not left:
        return layers
    taken = []
    for layer in layers[: len(left)]:
        taken.append(min(left, key=lambda other: abs(other - layer)))
        left.remove(taken[-1])
    return tuple(sorted(taken))


_ORDERS: WeakKeyDictionary[nn.Module, dict[int, Tensor | None]] = WeakKeyDictionary()


def ordered(module: PreTrainedModel, heads: Tensor) -> Tensor:
    """Keys or queries ``[..., D]`` in the order of Llama's: what rotates together lies ``D / 2`` apart.

    Raises:
        ModelError: if it cannot be told how the family rotates them.
    """
    orders, width = _ORDERS.setdefault(module, {}), heads.shape[-1]
    if width not in orders:
        order = _order(module, width)
        orders[width] = None if order == list(range(width)) else torch.tensor(order, device=heads.device)
    found = orders[width]
    return heads if found is None else heads[..., found.to(heads.device)]


def _order(module: PreTrainedModel, width: int) -> list[int]:
    if module.config.get_text_config().model_type in FAMILIES:  # halves, and nothing to compute on a GPU
        return list(range(width))
    turned = _turned(module, width)
    apart = turned - torch.diag(turned.diagonal())
    firsts = [one for one in range(len(turned)) if float(apart[one].max()) > 0]
    seconds = [int(apart[one].argmax()) for one in firsts]
    rest = [one for one in range(width) if one not in {*firsts, *seconds}]  # not rotated
    room = width // 2 - len(firsts)
    return [*firsts, *rest[:room], *seconds, *rest[room:]]


@torch.no_grad()
def _turned(module: PreTrainedModel, width: int) -> Tensor:
    """Unit vectors ``[n, n]`` after the family's own rotation to position 1; ``n`` is what it rotates of the width."""
    config, decoder = module.config.get_text_config(), text_decoder(module)
    rotary: Any = getattr(decoder, "rotary_emb", None)
    apply: Any = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
    try:
        kind, device = rope_kind(config), next(rotary.buffers()).device
        one = torch.ones(1, 1, dtype=torch.long, device=device)
        cos, sin = rotary(torch.empty(0, device=device), one, *([kind] if kind else []))
        both = len(inspect.signature(apply).parameters.keys() & {"q", "k"})
        for count in (width, cos.shape[-1]):  # some families cut the part off that they rotate, before they do
            units = torch.eye(count, device=device)[:, None, None]
            try:
                turned = apply(units, units, cos, sin)[1] if both else apply(units, cos, sin)
            except RuntimeError:
                continue
            return turned[:, 0, 0].cpu()
    except (AttributeError, TypeError, ValueError, LookupError):
        pass  # no rotary embedding, or one that is called in another way
    raise ModelError(
        f"it is not known how this {config.model_type} model tells the positions of its keys: choose a drafter that "
        "reads hidden states"
    )


class Taps:
    """Hidden states and KV of the text in a model's cache, by position: views, valid until its next ``forward``."""

    def __init__(self, model: LeanModel | ModulesModel, plan: TapPlan, store: HiddenStates | None) -> None:
        self.plan = plan
        self._model = model
        self._store = store

    @property
    def length(self) -> int:
        return self._model.length

    def hidden(self, begin: int, end: int) -> Tensor:
        """``[end - begin, S, H]`` residual stream after the plan's hidden layers, positions ``begin .. end - 1``."""
        assert 0 <= begin <= end <= self.length, (begin, end, self.length)
        assert self._store is not None, "the plan taps no hidden states"
        assert self._store is self._model.hidden, "other taps have taken the place of these"
        return self._store.rows(begin, end)

    def keys_values(self, begin: int, end: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """``[S, KV, end - begin, D]`` keys, rotated at their positions, and values of the plan's KV layers, copied.

        The numbers of a key are in the order of :func:`~draftgauge.models.taps.ordered`.
        """
        assert 0 <= begin <= end <= self.length, (begin, end, self.length)
        pairs = [self._model.keys_values(layer) for layer in self.plan.kv_layers]
        if not pairs:
            return None, None
        keys = torch.stack([pair[0][:, begin:end] for pair in pairs])
        return ordered(skeleton_of(self._model), keys), torch.stack([pair[1][:, begin:end] for pair in pairs])


def attach_taps(model: CachedModel, plan: TapPlan) -> Taps:
    """Let every later ``forward`` of a model, of the lean, static or modules engine, leave the plan's hidden states
    behind.

    The cache is emptied. A model has one set of taps at a time: attaching again replaces it.
    """
    if isinstance(model, GgufModel | OpenvinoModel):
        raise ModelError(
            "a GGUF or OpenVINO target shows no hidden states, keys or values, which this drafter reads: draft with a "
            "language model or prompt_lookup"
        )
    if not isinstance(model, LeanModel | ModulesModel):
        raise ModelError(
            f"taps are for the lean and the modules engine, not for a {type(model).__name__}: attach them to the "
            "model itself"
        )
    skeleton = model.skeleton if isinstance(model, LeanModel) else model.module
    config = skeleton.config.get_text_config()
    devices = {str(parameter.device) for parameter in skeleton.parameters()}
    if plan.kv_layers and len(devices) > 1:
        raise ModelError(
            f"keys and values cannot be tapped from a model that is spread over {', '.join(sorted(devices))}: choose a "
            "drafter that reads hidden states, or one device"
        )
    if plan.hidden_layers:
        tap_plan(config, hidden=True, kv=False, layers=plan.hidden_layers)
    if plan.kv_layers:
        tap_plan(config, hidden=False, kv=True, layers=plan.kv_layers)
    model.reset()
    model.hidden = HiddenStates(plan.hidden_layers, config.hidden_size, model.spec) if plan.hidden_layers else None
    return Taps(model, plan, model.hidden)


@dataclass(frozen=True)
class Features:
    """What a target shows of some texts, for training; the same as live taps give position by position.

    Attributes:
        hidden: ``[B, T, S, H]``, None where not asked for; in the target's dtype, as the rest.
        keys: ``[B, S, KV, T, D]``, rotated, as cached but for their order: see :func:`ordered`.
        values: ``[B, S, KV, T, D]``.
        logits: ``[B, T, V]``; row ``t`` predicts the token at ``t + 1``. ``[n, V]`` where only those of some positions
            were asked for.
    """

    hidden: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    logits: Tensor

    def until(self, length: int) -> Features:
        """The first positions of every text: views."""
        assert self.logits.ndim == 3, "these features hold the logits of some positions only"
        return Features(
            None if self.hidden is None else self.hidden[:, :length],
            None if self.keys is None else self.keys[..., :length, :],
            None if self.values is None else self.values[..., :length, :],
            self.logits[:, :length],
        )


def nowhere(tokens: Tensor) -> Tensor:
    """For the ``where`` of :func:`batch_features` over these tokens: no logits are computed."""
    return torch.zeros(tokens.shape, dtype=torch.bool)


@torch.no_grad()
def batch_features(module: PreTrainedModel, tokens: Tensor, plan: TapPlan, where: Tensor | None = None) -> Features:
    """One pass of a target, in evaluation mode, over whole texts, without gradients.

    Args:
        tokens: ``[B, T]`` int64 on its device. Shorter texts may be padded on the right with any token.
        where: ``[B, T]`` bool on the CPU: the ``n`` positions whose logits ``[n, V]`` are computed; all if None. Of a
            large vocabulary they are most of the memory.
    """
    hidden: dict[int, Tensor] = {}
    cache = rollback_cache(module) if plan.kv_layers else None
    if cache is not None:
        cache.layers = [own if index in plan.kv_layers else _PassingLayer() for index, own in enumerate(cache.layers)]
    with ExitStack() as during:
        during.enter_context(attention_kernels(tokens.device))
        during.enter_context(watching(module, plan.hidden_layers, hidden.__setitem__))
        if where is not None:
            chosen = where.flatten().nonzero()[:, 0].to(module.device, non_blocking=True)
            head = module.get_output_embeddings()
            see = head.register_forward_pre_hook(lambda head, inputs: (inputs[0].flatten(0, 1)[chosen],))
            during.enter_context(see)
        logits: Tensor = module(input_ids=tokens, use_cache=cache is not None, **cache_argument(module, cache)).logits
    kept = [cache.layers[layer] for layer in plan.kv_layers] if cache is not None else []
    return Features(
        hidden=torch.stack([hidden[layer] for layer in plan.hidden_layers], 2) if plan.hidden_layers else None,
        keys=ordered(module, torch.stack([layer.keys for layer in kept], 1)) if kept else None,
        values=torch.stack([layer.values for layer in kept], 1) if kept else None,
        logits=logits,
    )


class _PassingLayer(DynamicLayer):
    """A cache layer that keeps nothing: enough for one pass over whole texts."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return key_states, value_states
