"""What must hold of the vLLM that draftgauge runs in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError

OLDEST = (0, 30)
_SAMPLER = "vllm.v1.sample.rejection_sampler"


def check_version() -> None:
    """Refuse a vLLM without the interface that the proposer is written for.

    Raises:
        DraftgaugeError: naming both versions.
    """
    vllm = sys.modules.get("vllm")
    version = str(getattr(vllm, "__version__", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        raise DraftgaugeError(
            f"vLLM {version} has no custom_class proposers as draftgauge needs them: install vLLM "
            f"{'.'.join(map(str, OLDEST))} or later"
        )


def refuse_broken_sampling() -> None:
    """Let requests with a temperature fail where vLLM's sampler would read temperatures that it never wrote.

    Without Triton, as on CPUs, vLLM 0.32 expands per-request values to tokens by writing into an integer copy, so a
    float tensor stays as it was allocated, and samples are drawn at random temperatures. Greedy requests do not use it.
    """
    sampler = sys.modules.get(_SAMPLER)
    expand = getattr(sampler, "expand_batch_to_tokens", None)
    if sampler is None or expand is None or getattr(expand, "guarded", False) or _expands_rightly(expand):
        return
    setattr(sampler, "expand_batch_to_tokens", _refusing(expand))  # noqa: B010 - of another package's module


def _expands_rightly(expand: Callable[..., Tensor]) -> bool:
    """Whether two requests' values come out as often as each has tokens; not asked where it needs an accelerator."""
    if torch.cuda.is_available():
        return True
    values, ends = torch.tensor([0.25, 0.5]), torch.tensor([3, 5], dtype=torch.int32)
    expected = torch.tensor([0.25, 0.25, 0.25, 0.5, 0.5])
    return all(torch.equal(expand(values, ends, 5), expected) for _ in range(2))


def _refusing(expand: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def guarded(x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if x.is_floating_point():
            raise DraftgaugeError(
                "this vLLM samples wrongly behind speculation on a machine without Triton (expand_batch_to_tokens "
                "leaves temperatures unwritten): send greedy requests (temperature 0), or serve without speculation"
            )
        return expand(x, *arguments, **named)

    guarded.guarded = True  # type: ignore[attr-defined]
    return guarded
