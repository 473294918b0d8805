"""A compiled function stands in for the function only where it gives the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recipes.reference_pair.compiling import compiled


def double(x: Tensor) -> Tensor:
    return 2 * x


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Tensor]], None]:
    """Puts a function in place of what ``torch.compile`` would make."""
    return lambda fast: monkeypatch.setattr(torch, "compile", lambda function, **_: fast)


def test_a_right_result_is_checked_once_for_every_shape(compiler: Callable[..., None]) -> None:
    calls = {"fast": 0, "plain": 0}

    def fast(x: Tensor) -> Tensor:
        calls["fast"] += 1
        return x + x

    def plain(x: Tensor) -> Tensor:
        calls["plain"] += 1
        return double(x)

    compiler(fast)
    call = compiled(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (3, 3, 4, 3):
            assert torch.equal(call(torch.ones(length)), torch.full((length,), 2.0))
    assert calls == {"fast": 4, "plain": 2}


def test_gradients_flow_through_what_is_used(compiler: Callable[..., None]) -> None:
    compiler(lambda x: x + x)
    x = torch.ones(3, requires_grad=True)
    compiled(double)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_a_wrong_result_or_none_is_not_used(compiler: Callable[..., None]) -> None:
    def raising(x: Tensor) -> Tensor:
        raise OSError("no compiler")

    for broken, words in ((raising, "does not work here"), (lambda x: x, "off")):
        compiler(broken)
        call = compiled(double)
        with pytest.warns(UserWarning, match=words):
            assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            assert torch.equal(call(torch.ones(4)), torch.full((4,), 2.0))
