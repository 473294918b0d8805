"""What must hold of the vLLM that draftgauge runs in."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError

OLDEST = (0, 30)
_SAMPLER = "vllm.v1.sample.rejection_sampler"
_EXPAND = "expand_batch_to_tokens"


def check_version() -> None:
    """Refuse a vLLM without the interface that the proposer is written for."""
    version = str(getattr(sys.modules.get("vllm"), "__version__", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        raise DraftgaugeError(
            f"vLLM {version} has no custom_class proposers as draftgauge needs them: install vLLM "
            f"{'.'.join(map(str, OLDEST))} or later"
        )


def fix_sampling() -> None:
    """Replace an ``expand_batch_to_tokens`` that leaves temperatures unwritten.

    Without Triton, as on CPUs, vLLM 0.32 expands per-request values to tokens by writing into an integer copy. A float
    tensor stays uninitialised, and samples after speculation are drawn at random temperatures. An error raised there
    would end the whole server, greedy requests included.
    """
    sampler = sys.modules.get(_SAMPLER)
    expand = getattr(sampler, _EXPAND, None)
    if sampler is not None and expand is not None and not _expands_rightly(expand):
        setattr(sampler, _EXPAND, expand_batch_to_tokens)


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """vLLM's function of this name: each request's value ``x[i]`` as often as it has tokens, with a value replaced."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def _expands_rightly(expand: Callable[..., Tensor]) -> bool:
    """Whether two requests' values come out as often as each has tokens; not asked where it needs an accelerator."""
    if torch.cuda.is_available():
        return True
    values, ends = torch.tensor([0.25, 0.5]), torch.tensor([3, 5], dtype=torch.int32)
    expected = torch.tensor([0.25, 0.25, 0.25, 0.5, 0.5])
    return all(torch.equal(expand(values, ends, 5), expected) for _ in range(2))
