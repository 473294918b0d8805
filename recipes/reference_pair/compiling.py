"""``torch.compile`` with a guard: a compiled function is used only where it gives what the function itself gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
TOLERANCE = 0.05  # mean difference: bfloat16 stays far below it, and a wrong result is far above


def compiled(function: Function) -> Function:
    """A function of tensors through ``torch.compile``, its result checked against the function's own for every
    combination of shapes.

    Where no compiler can be had, or where the result differs, the function runs as it is; both are said once.
    """
    fast = torch.compile(function)
    checked: set[tuple[torch.Size, ...]] = set()
    usable = True

    def give_up(why: str) -> None:
        nonlocal usable
        usable = False
        warnings.warn(f"{why}; training goes on without torch.compile", stacklevel=3)

    def call(*arguments: Tensor) -> Any:
        shapes = tuple(argument.shape for argument in arguments)
        if usable:
            try:
                result = fast(*arguments)
            except Exception as error:  # the compiler's own failures have no common base class
                give_up(f"torch.compile does not work here ({type(error).__name__})")
            else:
                if shapes in checked:
                    return result
                with torch.no_grad():
                    off = float((result - function(*arguments)).abs().mean())
                if off <= TOLERANCE:
                    checked.add(shapes)
                    return result
                give_up(f"the compiled function is {off:.2g} off")
        return function(*arguments)

    return call  # type: ignore[return-value]  # it takes and gives what the function does
