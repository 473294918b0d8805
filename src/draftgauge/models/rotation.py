"""Which numbers of a head rotate together: families rotate its halves against each other, neighbours, or a part."""

from __future__ import annotations

import inspect
import sys
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.models.engines.lean_families import FAMILIES
from draftgauge.models.hidden import text_decoder
from draftgauge.models.spec import rope_kind

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
