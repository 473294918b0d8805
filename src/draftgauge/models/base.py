"""A causal language model with a cache that can be rolled back, and what its layers compute.

Its buffers grow with the text: keys and values, hidden states, what drafters keep. They double, and are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any, Literal, NoReturn, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from draftgauge.core.errors import ModelError

BATCHED = 3  # axes of a residual stream: texts, positions, numbers
TOWERS = ("vision", "image", "audio")  # parts with layers of their own that read no text


@contextmanager
def watching(module: PreTrainedModel, layers: Sequence[int], take: Callable[[int, Tensor], object]) -> Iterator[None]:
    """Inside the block ``take(layer, states)`` gets the output ``[B, k, H]`` of each of these decoder layers.

    Raises:
        ModelError: in the pass, if a layer's output is no residual stream, or it runs several times a pass.
    """
    blocks, width = decoder_layers(module), module.config.get_text_config().hidden_size
    seen: set[int] = set()

    def begin(module: nn.Module, *_: object) -> None:
        seen.clear()

    def look(layer: int, block: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        if layer in seen or states.ndim != BATCHED or states.shape[-1] != width:
            how = "runs several times a pass" if layer in seen else f"gives states of the shape {list(states.shape)}"
            _refuse_taps(module, f"layer {layer} {how}")
        seen.add(layer)
        take(layer, states)  # and return nothing: it would replace the output

    with ExitStack() as hooks:
        hooks.enter_context(module.register_forward_pre_hook(begin))
        for layer in layers:
            hooks.enter_context(blocks[layer].register_forward_hook(partial(look, layer)))
        yield


def text_decoder(module: PreTrainedModel) -> nn.Module:
    """What holds the decoder layers of a model: in some families ``get_decoder`` is the whole model instead."""
    return _decoder_and_layers(module)[0]


def layer_count(config: PreTrainedConfig) -> int:
    """Decoder layers; LongCat's hold two attentions each, which its ``num_hidden_layers`` counts."""
    return int(config.num_layers if config.model_type == "longcat_flash" else config.num_hidden_layers)


def decoder_layers(module: PreTrainedModel) -> nn.ModuleList:
    return _decoder_and_layers(module)[1]


def final_norm(module: PreTrainedModel) -> nn.Module | None:
    """The norm between the last decoder layer and the head: the first one that is defined behind the layers."""
    parts = list(text_decoder(module).children())
    behind = parts[parts.index(decoder_layers(module)) :]
    return next((part for part in behind if "norm" in type(part).__name__.lower()), None)


def _decoder_and_layers(module: PreTrainedModel) -> tuple[nn.Module, nn.ModuleList]:
    count = layer_count(module.config.get_text_config())
    for name, part in chain(module.get_decoder().named_modules(), module.named_modules()):
        if not any(tower in name for tower in TOWERS):
            for layers in part.children():
                if isinstance(layers, nn.ModuleList) and len(layers) == count:
                    return part, layers
    return _refuse_taps(module, f"no list of its {count} decoder layers is found")


def _refuse_taps(module: PreTrainedModel, reason: str) -> NoReturn:
    raise ModelError(
        f"the hidden states of this {module.config.get_text_config().model_type} model cannot be tapped ({reason}): "
        "draft with a small language model or prompt lookup"
    )


@dataclass(frozen=True)
class ScoreRule:
    """How a layer turns the product of a query and a key into a score; ``softcap`` bounds it (Gemma 2)."""

    scaling: float
    softcap: float | None = None

    def __call__(self, products: Tensor) -> Tensor:
        scores = products * self.scaling
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def score_rule(module: PreTrainedModel, layer: int) -> ScoreRule:
    attention = _attention(module, layer)
    gemma2 = module.config.get_text_config().model_type == "gemma2"  # Gemma 3 names a softcap, and computes none
    return ScoreRule(attention.scaling, attention.attn_logit_softcapping if gemma2 else None)


def _attention(module: PreTrainedModel, layer: int) -> Any:
    attention: Any = getattr(decoder_layers(module)[layer], "self_attn", None)
    parts = all(hasattr(attention, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "scaling", "head_dim"))
    gated = parts and (  # a gate among the queries; of quantised linears some name no widths
        getattr(attention.q_proj, "out_features", None) != getattr(attention.o_proj, "in_features", None)
    )
    if not parts or gated:
        raise ModelError(
            f"layer {layer} of this {module.config.get_text_config().model_type} model has no projections of queries, "
            "keys and values of their own to compare with: choose a drafter that reads hidden states"
        )
    return attention


Part = Literal["queries", "keys", "values"]
_PROJECTIONS: Mapping[Part, tuple[str, str]] = {
    "queries": ("q_proj", "q_norm"),
    "keys": ("k_proj", "k_norm"),
    "values": ("v_proj", ""),
}


@contextmanager
def catching_heads(
    module: PreTrainedModel, layers: Sequence[int], parts: Sequence[Part]
) -> Iterator[dict[tuple[int, Part], Tensor]]:
    """While it lasts, every forward pass leaves heads ``[B, heads, T, D]`` of these layers in the mapping.

    Queries and keys are those before the rotary embedding, and after the norm of heads where the family has one.
    """
    caught: dict[tuple[int, Part], Tensor] = {}

    def catch(layer: int, part: Part, attention: Any, module: nn.Module, inputs: object, output: Tensor) -> None:
        heads = output.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        head_norm = getattr(attention, _PROJECTIONS[part][1] or "no norm", None)
        caught[layer, part] = heads if head_norm is None else head_norm(heads)

    with ExitStack() as hooks:
        for layer, part in product(layers, parts):
            attention = _attention(module, layer)
            projection = getattr(attention, _PROJECTIONS[part][0])
            hooks.enter_context(projection.register_forward_hook(partial(catch, layer, part, attention)))
        yield caught


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


FIRST_CAPACITY = 2048  # tokens that a model's buffers hold before they first double


def room_for(needed: int, held: int, first: int | None = None) -> int:
    """Places of a buffer that held so many and needs more: twice as many, or what is needed."""
    return max(needed, 2 * held, FIRST_CAPACITY if first is None else first)


def grown(buffer: Tensor, *shape: int) -> Tensor:
    """A larger buffer that begins with another one.

    New places are zeros: what is read behind a mask at full capacity must at least be numbers.
    """
    larger = buffer.new_zeros(shape)
    larger[tuple(slice(size) for size in buffer.shape)] = buffer
    return larger


def most_places(longest: int, context: int) -> int:
    """Places that a model's cache takes at once, at most, while it grows up to a text of ``longest`` tokens."""
    first = min(FIRST_CAPACITY, context)
    if longest <= first:
        return first
    outgrown = longest - 1
    return outgrown + min(2 * outgrown, context)


class HiddenStates:
    """The residual stream after some decoder layers, ``[positions, S, H]``, written in place beside a model's cache.

    A position's row is overwritten when the position is taken in again, so rolling the cache back needs nothing here.
    """

    def __init__(self, layers: Sequence[int], width: int, spec: ModelSpec) -> None:
        """An empty store for ``S`` decoder layers, counted from 0, and a residual stream of this width ``H``."""
        self.layers = tuple(layers)
        self._context = spec.context
        shape = (min(room_for(0, 0), spec.context), len(self.layers), width)
        self._rows = torch.zeros(shape, dtype=spec.dtype, device=spec.device)

    def rows(self, begin: int, end: int) -> Tensor:
        return self._rows[begin:end]

    def keep(self, begin: int, end: int) -> Callable[[int, Tensor], None]:
        """Takes a layer and the states ``[end - begin, H]`` that it gives at these positions."""
        places = dict(zip(self.layers, self.reserve(end)[begin:end].unbind(1), strict=True))

        def keep(layer: int, states: Tensor) -> None:
            if layer in places:
                places[layer].copy_(states)

        return keep

    def reserve(self, end: int) -> Tensor:
        """The whole store ``[positions, S, H]`` with room up to ``end``."""
        if end > (held := len(self._rows)):
            self._rows = grown(self._rows, min(room_for(end, held), self._context), *self._rows.shape[1:])
        return self._rows
