"""``torch.compile`` with a guard: a compiled function is used only where it gives what the function itself gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
Distance = Callable[[Any, Any], float]


def mean_distance(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).abs().mean())


def compiled(
    function: Function, distance: Distance = mean_distance, tolerance: float = 0.05, every_shape: bool = True
) -> Function:
    """A function of tensors through ``torch.compile``, its result checked against the function's own.

    Where no compiler can be had, or where the result differs, the function runs as it is; both are said once.

    Args:
        function: of tensors, without side effects.
        distance: of a result from the expected one; by default the mean difference, which bfloat16 keeps far below the
            tolerance and a wrong result far above it.
        tolerance: the largest distance at which the compiled function is used.
        every_shape: compile and check anew for every combination of shapes; else compile for shapes that vary, and
            check the first result only.
    """
    fast = torch.compile(function) if every_shape else torch.compile(function, dynamic=True)
    checked: set[tuple[torch.Size, ...]] = set()
    usable = True

    def give_up(why: str) -> None:
        nonlocal usable
        usable = False
        warnings.warn(f"{why}; training goes on without torch.compile", stacklevel=3)

    def call(*arguments: Tensor) -> Any:
        shapes = tuple(argument.shape for argument in arguments) if every_shape else ()
        if usable:
            try:
                result = fast(*arguments)
            except Exception as error:  # the compiler's own failures have no common base class
                give_up(f"torch.compile does not work here ({type(error).__name__})")
            else:
                if shapes in checked:
                    return result
                with torch.no_grad():
                    off = distance(result, function(*arguments))
                if off <= tolerance:
                    checked.add(shapes)
                    return result
                give_up(f"the compiled function is {off:.2g} off")
        return function(*arguments)

    return call  # type: ignore[return-value]  # it takes and gives what the function does
