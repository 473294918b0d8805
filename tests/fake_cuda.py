"""CUDA devices without a GPU: fake tensors check devices, dtypes and shapes, and every launch and read is counted.

PyTorch's ``FakeTensorMode`` gives tensors that claim to lie on a GPU and hold nothing. A build without CUDA refuses a
few operations on them; those are done here by operators that it takes. What is read from the device is ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
# Operators that launch nothing: they make views, or memory.
FREE = {"view", "_unsafe_view", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "split"}
FREE |= {"split_with_sizes", "unbind", "empty", "detach", "alias", "as_strided", "_reshape_alias", "narrow", "chunk"}
FREE |= {"reshape", "lift_fresh", "t", "new_empty", "empty_like", "empty_strided", "unflatten", "flatten", "diagonal"}
FREE |= {"device"}  # which a fake slice asks for


@dataclass
class Counts:
    """What a stretch of code asked of the device.

    Attributes:
        launches: operators that launch at least one kernel, by name; the replay of a graph is one.
        reads: times the host waited for a value, by method.
        uploads: copies from the host that do not wait, and those that do.
        captures: graphs recorded.
    """

    launches: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    captures: int = 0


class FakeCuda:
    """The counters, and whether they run."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._counting = False
        self._recording = False

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count what happens inside, from zero."""
        self.counts, self._counting = Counts(), True
        try:
            yield self.counts
        finally:
            self._counting = False

    def launched(self, name: str) -> None:
        if self._counting and not self._recording and name not in FREE:
            self.counts.launches[name] += 1

    def read(self, name: str) -> None:
        assert not self._recording, f"{name} waits for the device, which ends the recording of a graph"
        if self._counting:
            self.counts.reads[name] += 1

    @property
    def tolist(self) -> Any:
        def tolist(x: Tensor) -> Any:
            if x.device.type == "cuda":
                self.read("tolist")
            return _ones(x)

        return tolist

    def uploaded(self, waits: bool) -> None:
        assert not self._recording, "an upload is not repeated by a recording"
        if self._counting:
            self.counts.uploads["waits" if waits else "goes on"] += 1

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A graph is captured: its launches are recorded, not made."""
        self.counts.captures += self._counting
        self._recording = True
        try:
            yield
        finally:
            self._recording = False


class _Launches(TorchDispatchMode):
    def __init__(self, fake: FakeCuda) -> None:
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        device = result.device if isinstance(result, Tensor) else None
        if device is None or device.type == "cuda":
            self._fake.launched(func._schema.name.split("::")[1])
        return result


class _Methods(TorchFunctionMode):
    """Does by other operators what a build without CUDA cannot do, and notes reads and uploads."""

    def __init__(self, fake: FakeCuda) -> None:
        super().__init__()
        self._fake = fake
        self._instead = {Tensor.__getitem__: _get, Tensor.__setitem__: self._set, Tensor.copy_: self._copy}
        self._instead |= {Tensor.contiguous: _contiguous, Tensor.__invert__: ATEN.bitwise_not}
        ones: dict[str, Any] = {"item": _ones, "cpu": lambda x: torch.ones(x.shape, dtype=x.dtype)}
        ones |= {"__int__": lambda x: 1, "__index__": lambda x: 1}
        ones |= {"__float__": lambda x: 1.0, "__bool__": lambda x: True}
        self._reads = {getattr(Tensor, name): value for name, value in ones.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        on_gpu = isinstance(first, Tensor) and first.device.type == "cuda"
        if func is functional.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if func is torch.rand:
            kwargs.pop("generator", None)  # a generator of a GPU cannot be had
        if func is Tensor.pin_memory:
            return first
        if on_gpu and func in self._reads:
            self._fake.read(func.__name__)
            return self._reads[func](first)
        if func is Tensor.__bool__:  # of fake tensors that stayed on the host
            return False
        if on_gpu and func in self._instead:
            return self._instead[func](*args, **kwargs)
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            self._fake.uploaded(waits=True)
            host = np.asarray(args[0])
            kind = {"i": torch.int64, "f": torch.float32, "b": torch.bool}[host.dtype.kind]
            return torch.empty(host.shape, dtype=kwargs.get("dtype") or kind, device=kwargs["device"])
        if func is Tensor.to and not on_gpu and len(args) > 1 and str(args[1]).startswith("cuda"):
            self._fake.uploaded(waits=not kwargs.get("non_blocking", False))
            return torch.empty(first.shape, dtype=first.dtype, device=args[1])
        return func(*args, **kwargs)

    def _set(self, x: Tensor, key: Any, value: Any) -> None:
        x, indices = _narrowed(x, key)
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
        if any(index is not None for index in indices):
            ATEN.index_put_(x, indices, value)
        else:
            self._copy(x, value)

    def _copy(self, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        assert torch.broadcast_shapes(source.shape, x.shape) == x.shape
        assert source.device == x.device, (source.device, x.device)
        self._fake.launched("copy_")
        return x

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, enable_gqa: bool = False, **_: Any
    ) -> Tensor:
        """One kernel; what goes in must belong together."""
        assert q.device == k.device == v.device
        assert q.dtype == k.dtype == v.dtype
        assert enable_gqa or q.shape[1] == k.shape[1]
        if attn_mask is not None and not isinstance(attn_mask, CausalBias):
            assert attn_mask.device == q.device
            assert attn_mask.dtype in (q.dtype, torch.bool)
            seen = (*q.shape[:-1], k.shape[-2])
            assert torch.broadcast_shapes(attn_mask.shape, seen) == seen
        self._fake.launched("attention")
        return q.new_empty(*q.shape[:-1], v.shape[-1])


def _ones(x: Tensor) -> Any:
    value = True if x.dtype == torch.bool else 1.0 if x.dtype.is_floating_point else 1
    for size in reversed(x.shape):
        value = [value] * size
    return value


def _contiguous(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else ATEN.clone(x, memory_format=torch.contiguous_format)


def _get(x: Tensor, key: Any) -> Tensor:
    x, indices = _narrowed(x, key)
    return ATEN.index(x, indices) if any(index is not None for index in indices) else x


def _narrowed(x: Tensor, key: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The view that the slices and numbers of an index select, and its tensors by dimension."""
    keys = list(key) if isinstance(key, tuple) else [key]
    taken = sum(1 for part in keys if part is not None and part is not Ellipsis)
    place = next((i for i, part in enumerate(keys) if part is Ellipsis), len(keys))
    keys[place : place + 1] = [slice(None)] * (x.ndim - taken)
    indices: list[Tensor | None] = []
    for part in keys:
        dim = len(indices)
        if part is None:
            x = ATEN.unsqueeze(x, dim)
            indices.append(None)
        elif isinstance(part, slice):
            if part != slice(None):  # most are whole, and every operator takes its time here
                x = ATEN.slice(x, dim, part.start, part.stop, part.step or 1)
            indices.append(None)
        elif isinstance(part, Tensor):
            assert part.ndim, "indexing by a tensor without dimensions waits for the device"
            indices.append(part)
        else:
            x = ATEN.select(x, dim, int(part))
    return x, indices


Module = TypeVar("Module", bound=nn.Module)


class _Graph:
    """A graph whose replay is one launch."""

    fake: FakeCuda

    def replay(self) -> None:
        self.fake.launched("graph")


class _Stream:
    """A class, as it is in the annotations of what is imported meanwhile."""

    def __init__(self, device: torch.device) -> None:
        pass


def _real_bias(new: int, length: int) -> CausalBias:
    """A tensor of a class of its own, which no fake can be."""
    with no_dispatch():
        return causal_lower_right(new, length)


def on_gpu(model: Module, device: str, dtype: torch.dtype) -> Module:
    """A model whose weights are fake ones on a device."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            made = torch.empty(parameter.shape, dtype=dtype, device=device)
            module._parameters[name] = nn.Parameter(made, requires_grad=False)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return model


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Everything created inside with ``device="cuda"`` is fake."""
    fake = FakeCuda()
    monkeypatch.setattr(FakeTensor, "tolist", fake.tolist)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (_Graph,), {"fake": fake}))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: fake.recording())
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda *_: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: fake.read("synchronize"))
    monkeypatch.setattr("draftgauge.models.engines.lean_weights.PLAIN_TENSORS", (FakeTensor, nn.Parameter))
    monkeypatch.setattr("draftgauge.models.engines.lean.causal_lower_right", _real_bias)
    with FakeTensorMode(allow_non_fake_inputs=True), _Launches(fake), _Methods(fake):
        yield fake
