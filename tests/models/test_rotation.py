"""Keys in Llama's order: rotating them by a drafter's tables is the family's own rotation."""

from __future__ import annotations

import sys

import pytest
import torch

from draftgauge.core.errors import ModelError
from draftgauge.drafters.reuse.rotary import RotaryTables, rotate, target_rotary, window
from draftgauge.models.base import text_decoder
from draftgauge.models.taps import ordered
from tiny import tiny_model


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "glm4", "cohere2", "ernie4_5", "nemotron", "stablelm"])
def test_reordered_keys_rotate_as_the_family_rotates_them(kind: str) -> None:
    model = tiny_model(kind)
    width, apply = 16, sys.modules[type(text_decoder(model)).__module__].apply_rotary_pos_emb
    tables = RotaryTables(target_rotary(model, {}, "", width), width)(9, torch.empty(0))
    heads = torch.randn(1, 2, 9, width)
    cos, sin = model.model.rotary_emb(heads, torch.arange(9)[None])
    part = cos.shape[-1] if kind in ("nemotron", "stablelm") else width  # the part that turns
    turned = torch.cat((apply(heads[..., :part], heads[..., :part], cos, sin)[1], heads[..., part:]), -1)
    torch.testing.assert_close(rotate(ordered(model, heads), window(tables, 0, 9)), ordered(model, turned))
    assert kind in ("llama", "gpt_oss") or not torch.equal(ordered(model, heads), heads)


def test_keys_whose_rotation_is_not_known_are_refused() -> None:
    with pytest.raises(ModelError, match="not known how this gpt2 model tells the positions of its keys"):
        ordered(tiny_model("gpt2", attention="mha", intermediate_size=None), torch.ones(1, 16))
