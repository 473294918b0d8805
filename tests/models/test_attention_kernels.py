"""The kernels that attention runs with: on a GPU every one but cuDNN's, in each engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftgauge.models import lean, modules_branches, modules_model, rows, static_model
from draftgauge.models.lean import LeanModel
from draftgauge.models.loading import wrap
from draftgauge.models.rows import StaticRows
from draftgauge.models.transformers_calls import attention_kernels
from tiny import tiny_model, tokens

ENTERED: tuple[ModuleType, ...] = (lean, modules_branches, modules_model, rows, static_model)


class Attentions(TorchFunctionMode):
    """Notes at every attention whether cuDNN's kernels are allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.cudnn: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            self.cudnn.append(torch.backends.cuda.cudnn_sdp_enabled())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("engine", ["lean", "static", "modules", "modules one by one", "rows"])
def test_on_a_gpu_every_pass_leaves_cudnn_out(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.backends.cuda.cudnn_sdp_enabled()
    for module in ENTERED:
        monkeypatch.setattr(module, "attention_kernels", lambda device: attention_kernels(torch.device("cuda")))
    monkeypatch.setattr(modules_model, "takes_branch_masks", lambda _: engine == "modules")
    model = wrap(tiny_model("llama"), "lean" if engine == "rows" else engine.split()[0])
    with Attentions() as seen:
        if engine == "rows":
            assert isinstance(model, LeanModel)
            texts = StaticRows(model, 2, 16)
            texts.prefill(0, tokens(5).tolist())
            texts.step([0, 1], [1, 2], tokens(3))
        else:
            model.forward(tokens(40))
            model.forward(tokens(1))
        if engine.startswith("modules"):
            model.branches(torch.tensor([3, 8])).step(tokens(2))
    assert seen.cudnn
    assert not any(seen.cudnn)
