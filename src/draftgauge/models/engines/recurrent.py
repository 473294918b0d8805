"""The engine for hybrids: transformers' modules whose recurrent and convolution states can be rolled back.

Every token overwrites a state, so nothing of it can be cropped. The engine keeps copies of the states at two places of
the text (anchors). Of the tokens since, it keeps what the linear layers beside the states gave. Rolling back restores
an anchor and runs the recurrence alone over the kept tokens. Projections, experts and attention are not run again; keys
and values are cropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.base import BranchSession
from draftgauge.models.engines.delta_rule import stateful_alone
from draftgauge.models.engines.modules import (
    MOST_APART,
    STATES,
    ModulesModel,
    SequentialBranches,
    crop,
    holds_states,
    rollback_cache,
    shared_prefix,
)
from draftgauge.models.spec import check_starts

REPLAYED = 64  # a pass of more tokens is a prefill: a cut inside of it runs the model again
STRIDE = 32  # single tokens after which the states are copied again
MOST_WRONG = 0.1  # of the norm of float32 logits after a rollback: one that is wrong comes to more
_HOLDERS: WeakKeyDictionary[PreTrainedModel, list[nn.Module]] = WeakKeyDictionary()  # of models that were checked

States = list[dict[str, dict[int, Any]]]


@dataclass(frozen=True)
class Anchor:
    """Copies of all states after the first ``length`` tokens."""

    length: int
    states: States


@dataclass
class Call:
    """One call of a module that holds states, and what its linear layers gave, in order."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    projected: list[Tensor]


@dataclass
class Pass:
    """The calls of a pass over ``taken`` tokens from ``begin`` on, of which ``count`` are kept."""

    begin: int
    taken: int
    count: int
    calls: list[Call]


class RecurrentModel(ModulesModel):
    """:class:`~draftgauge.models.base.CachedModel` of a model with recurrent or convolution states."""

    gives_positions: ClassVar[bool] = True  # some hybrids count from 0 in every pass otherwise

    def __init__(self, model: PreTrainedModel) -> None:
        self._forget()
        self._holders = _HOLDERS.get(model, [])
        self._linears = [part for module in self._holders for part in module.modules() if isinstance(part, nn.Linear)]
        super().__init__(model)
        self.spec = replace(self.spec, branches=1, recurrent=True)  # every branch has states of its own

    def reset(self) -> None:
        super().reset()
        self._forget()

    def _forget(self) -> None:
        self._text = torch.empty(0, dtype=torch.int64)
        self._anchors: list[Anchor] = []  # at most two, the later one last; the empty cache needs none
        self._passes: list[Pass] = []  # since the first anchor, as far as they are short
        self._branched: Anchor | None = None  # where the last branch began

    @torch.inference_mode()
    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        since = self._length - (self._anchors[-1].length if self._anchors else 0)
        if since >= STRIDE or (len(tokens) > 1 and since > 0):  # several tokens: likely drafted ones
            self._keep_anchor()
        calls: list[Call] = []
        with self._keeping(calls) if len(tokens) <= REPLAYED else ExitStack():
            logits = super().forward(tokens, last_only)
        if len(tokens) <= REPLAYED:
            self._passes.append(Pass(self._length - len(tokens), len(tokens), len(tokens), calls))
        self._text = torch.cat((self._text.to(tokens.device), tokens))
        return logits

    @torch.inference_mode()
    def run(self, tokens: Tensor, cache: DynamicCache, begin: int, last_only: bool = False) -> Tensor:
        with self._convolutions():
            return super().run(tokens, cache, begin, last_only)

    def _convolutions(self) -> AbstractContextManager[object]:
        half = self.spec.device.type == "cpu" and self.spec.dtype != torch.float32
        return WideConvolutions() if half else nullcontext()

    @torch.inference_mode()
    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length, (length, self._length)
        if length == self._length:
            return
        self._anchors = [anchor for anchor in self._anchors if anchor.length <= length]
        if self._branched is not None and self._branched.length > length:
            self._branched = None
        begin = self._anchors[-1].length if self._anchors else 0
        passes = [done for done in self._passes if begin <= done.begin < length]
        replayed = begin + sum(done.count for done in passes) >= length
        text = self._text[begin:length]
        self._cut(begin, length if replayed else begin)
        if not replayed:
            self.forward(text, last_only=True)
        elif passes:
            passes[-1].count = length - passes[-1].begin
            self._replay(passes)
            self._keep_anchor()

    def _cut(self, begin: int, length: int) -> None:
        """Drop the text from ``length`` on, with states as they were at ``begin``."""
        if length == 0:
            self.reset()
            return
        crop(self._cache, self._length - length)
        if begin:
            put(self._cache, self._anchors[-1].states)
        else:
            for layer in filter(holds_states, self._cache.layers):
                layer.has_previous_state = dict.fromkeys(layer.has_previous_state, False)
        self._text, self._length = self._text[:length], length
        self._passes = [done for done in self._passes if done.begin < length]

    def branches(self, starts: Tensor) -> BranchSession:
        check_starts(int(starts.min()), int(starts.max()), self._length)
        return SequentialBranches(self.run, self.spec, [self._fork(start) for start in starts.tolist()], starts)

    @torch.inference_mode()
    def _fork(self, start: int) -> DynamicCache:
        """A cache of the first tokens: the states of the last known place, and a pass over the tokens from there on."""
        if start == self._length:
            self._branched = Anchor(start, states_of(self._cache))
        places = [place for place in (*self._anchors, self._branched) if place is not None and place.length <= start]
        place = max(places, key=lambda place: place.length, default=None)
        cache, begin = rollback_cache(self.module), 0
        if place is not None:
            cache, begin = shared_prefix(self._cache, place.length), place.length
            put(cache, place.states)
        if begin < start:
            self.run(self._text[begin:start], cache, begin, last_only=True)
            self._branched = Anchor(start, states_of(cache))
        return cache

    def _keep_anchor(self) -> None:
        self._anchors = [*self._anchors[-1:], Anchor(self._length, states_of(self._cache))]
        self._passes = [done for done in self._passes if done.begin >= self._anchors[0].length]

    @contextmanager
    def _keeping(self, calls: list[Call]) -> Iterator[None]:
        def begin(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            calls.append(Call(module, arguments, keywords, []))

        def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
            calls[-1].projected.append(output)

        with ExitStack() as hooks:
            for module in self._holders:
                hooks.enter_context(module.register_forward_pre_hook(begin, with_kwargs=True))
            for linear in self._linears:
                hooks.enter_context(linear.register_forward_hook(keep))
            yield

    def _replay(self, passes: list[Pass]) -> None:
        """Run the modules that hold states over the kept tokens of these passes, their linear layers left out."""
        # Token by token is what plain decoding does; a GPU would wait for every launch.
        walks = self.spec.device.type == "cpu"
        projected: Iterator[Tensor] = iter(())
        with (
            self._convolutions(),
            _replaced(self._linears, lambda *inputs: next(projected)),
            stateful_alone(self._holders) as together,
        ):
            step = REPLAYED if together or not walks else 1
            for done in passes:
                for begin in range(0, done.count, step):
                    piece = partial(_piece, taken=done.taken, begin=begin, end=min(begin + step, done.count))
                    for call in done.calls:
                        projected = map(piece, call.projected)
                        call.module(*piece(call.arguments), **{name: piece(v) for name, v in call.keywords.items()})

    @torch.inference_mode()
    def _check_cache(self) -> None:
        first, second = self._probe()
        with self._refusing_errors():
            self._holders = _state_holders(self.module, self._cache, lambda: self.run(first, self._cache, 0))
            continued = self.run(second, self._cache, len(first))
            self.reset()
            self.run(first, self._cache, 0)
            layers = [layer for layer in self._cache.layers if holds_states(layer)]
            for name in ("recurrent_states", "conv_states"):
                states = [state for layer in layers for state in getattr(layer, name).values() if state is not None]
                if states:
                    break
            filled = any(bool(state.any()) for state in states)
            for state in states:
                state.zero_()
            ignored = filled and torch.equal(continued, self.run(second, self._cache, len(first)))
            self.reset()
        name = f"this {self.spec.family} model ({type(self.module).__name__})"
        if not self._holders:
            raise ModelError(f"{name} keeps its state outside of its cache, where it cannot be rolled back: {CHOOSE}")
        if ignored:
            raise ModelError(
                f"{name} cannot verify drafts, as transformers ignores its state where it takes in several tokens at "
                f"once: {CHOOSE}"
            )
        super()._check_cache()
        self._linears = [part for module in self._holders for part in module.modules() if isinstance(part, nn.Linear)]
        with self._refusing_errors():
            self.forward(first)
            expected = self.forward(second)[-1]
            self.truncate(len(first) + 1)
            self.truncate(len(first) - 1)
            again = self.forward(torch.cat((first[-1:], second)))[-1]
            self.reset()
        most = MOST_WRONG if self.spec.dtype == torch.float32 else MOST_APART
        if (expected - again).norm() > most * expected.norm():
            raise ModelError(f"the state of {name} cannot be rolled back, for a reason unknown here: {CHOOSE}")
        _HOLDERS[self.module] = self._holders

    def _cached(self) -> int:
        states = [layer.has_previous_state for layer in self._cache.layers if holds_states(layer)]
        return super()._cached() or self._length * any(any(state.values()) for state in states)


CHOOSE = "choose another model"


class WideConvolutions(TorchFunctionMode):
    """Convolutions in float32: by channel, a CPU takes hundreds of times as long in half precision."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.conv1d:
            return func(*args, **(kwargs or {}))
        wide: list[Any] = [held.float() if isinstance(held, Tensor) else held for held in args]
        options: dict[str, Any] = {
            n: held.float() if isinstance(held, Tensor) else held for n, held in (kwargs or {}).items()
        }
        given = next(held for held in (*args, *(kwargs or {}).values()) if isinstance(held, Tensor))
        return func(*wide, **options).to(given.dtype)


def states_of(cache: DynamicCache) -> States:
    """Copies of all states of a cache, one entry a layer that has some."""
    return [
        {name: {i: _copy(held) for i, held in getattr(layer, name).items()} for name in STATES}
        for layer in filter(holds_states, cache.layers)
    ]


def put(cache: DynamicCache, states: States) -> None:
    """Overwrite the states of a cache, in place where it has some."""
    for layer, kept in zip(filter(holds_states, cache.layers), states, strict=True):
        for name, by_index in kept.items():
            own = getattr(layer, name)
            for index, held in by_index.items():
                if isinstance(held, Tensor) and isinstance(own[index], Tensor):
                    own[index].copy_(held)
                else:
                    own[index] = _copy(held)


def _copy(held: Any) -> Any:
    return held.clone() if isinstance(held, Tensor) else held


def _piece(value: Any, taken: int, begin: int, end: int) -> Any:
    """Of whatever runs along ``taken`` tokens those from ``begin`` to ``end``; all of everything else."""
    if isinstance(value, tuple):
        return tuple(_piece(part, taken, begin, end) for part in value)
    if isinstance(value, Tensor) and taken > 1 and taken in value.shape:
        return value.narrow(value.shape.index(taken), begin, end - begin)
    return value


def _state_holders(model: PreTrainedModel, cache: DynamicCache, run: Callable[[], object]) -> list[nn.Module]:
    """The modules that write a state of a new cache while ``run`` runs the model with it."""
    running: list[nn.Module] = []
    holders: dict[nn.Module, None] = {}

    def entered(module: nn.Module, *_: object) -> None:
        running.append(module)

    def left(*_: object) -> None:
        running.pop()

    def noting(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        holders[running[-1]] = None
        return call(*arguments, **keywords)

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(entered))
            hooks.enter_context(module.register_forward_hook(left))
        for name in ("update_conv_state", "update_recurrent_state"):
            setattr(cache, name, partial(noting, getattr(cache, name)))
            hooks.callback(delattr, cache, name)
        run()
    within = {part for module in holders for part in module.modules() if part is not module}
    return [module for module in holders if module not in within]  # the outer ones run the others


@contextmanager
def _replaced(modules: list[nn.Linear], forward: Callable[..., Tensor]) -> Iterator[None]:
    """Inside the block these modules compute something else; what stood for their own ``forward`` comes back."""
    before = [module.__dict__.get("forward") for module in modules]
    for module in modules:
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own
