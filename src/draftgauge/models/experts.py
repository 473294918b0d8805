"""How many experts of a mixture a pass reads: its tokens go to different ones, so verifying more reads more weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from draftgauge.models.base import CachedModel, skeleton_of
from draftgauge.models.device import upload

LONGEST = 1024  # tokens of text that are looked at


@torch.inference_mode()
def experts_read(target: CachedModel, text: Sequence[int], most: int) -> tuple[float, ...]:
    """``[most]`` how many different experts a layer reads in a pass over 1, 2, ... consecutive tokens of a text.

    It is the mean over passes and layers with experts, and empty where no layer has any. The target's cache is emptied.
    Where a token goes follows from the text before it, however many tokens a pass takes in: one pass tells of all.
    """
    chosen: list[Tensor] = []  # [T, experts a token] of each layer

    def note(router: nn.Module, inputs: Any, output: Any) -> None:
        chosen.extend(part for part in output if isinstance(part, Tensor) and not part.is_floating_point())

    skeleton = skeleton_of(target)
    modules = () if skeleton is None else skeleton.modules()
    routers = [module for module in modules if type(module).__name__.endswith("Router")]
    tokens = text[: min(LONGEST, target.spec.context)]
    if not routers or len(tokens) < most:
        return ()
    with ExitStack() as hooks:
        for router in routers:
            hooks.enter_context(router.register_forward_hook(note))
        target.reset()
        target.forward(upload(list(tokens), target.spec.device), last_only=True)
        target.reset()
    used = [torch.zeros(len(ids), int(ids.max()) + 1).scatter_(1, ids.cpu(), 1) for ids in chosen if len(ids) >= most]
    counted = ([layer.unfold(0, count, 1).amax(-1).sum(-1).mean() for layer in used] for count in range(1, most + 1))
    return tuple(float(torch.stack(layers).mean()) for layers in counted if layers)
