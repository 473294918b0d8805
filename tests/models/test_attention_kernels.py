"""The kernels that attention runs with: on a GPU every one but cuDNN's, in each engine."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftgauge.api.profile import profile
from draftgauge.models import (
    lean,
    lean_rows,
    modules_branches,
    modules_model,
    static_model,
    static_rows,
)
from draftgauge.models.attention_kernels import attention_kernels
from draftgauge.models.lean import LeanModel
from draftgauge.models.lean_rows import LeanRows
from draftgauge.models.loading import wrap
from draftgauge.models.static_rows import StaticRows
from draftgauge.traces.manifest import Manifest
from tiny import save_noisy, save_tiny, tiny_model, tokens

ENTERED: tuple[ModuleType, ...] = (lean, lean_rows, modules_branches, modules_model, static_model, static_rows)


class Attentions(TorchFunctionMode):
    """Notes at every attention whether cuDNN's kernels are allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.cudnn: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            self.cudnn.append(torch.backends.cuda.cudnn_sdp_enabled())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ENTERED:
        monkeypatch.setattr(module, "attention_kernels", lambda device: attention_kernels(torch.device("cuda")))


def test_cudnn_is_left_out_on_a_gpu_only() -> None:
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with attention_kernels(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled()
    with attention_kernels(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
def test_every_pass_of_an_engine_leaves_cudnn_out(engine: str) -> None:
    model = wrap(tiny_model("llama"), engine)
    with Attentions() as seen:
        model.forward(tokens(40))
        model.forward(tokens(1))
    assert seen.cudnn
    assert not any(seen.cudnn)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("masked", [True, False])
def test_branches_of_modules_leave_cudnn_out(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules_model, "takes_branch_masks", lambda _: masked)
    model = wrap(tiny_model("llama"), "modules")
    model.forward(tokens(8))
    with Attentions() as seen:
        model.branches(torch.tensor([3, 8])).step(tokens(2))
    assert seen.cudnn
    assert not any(seen.cudnn)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_rows_leave_cudnn_out() -> None:
    model = wrap(tiny_model("llama"), "static")
    assert isinstance(model, LeanModel)
    with Attentions() as seen:
        rows = StaticRows(model, 2, 16)
        rows.prefill(0, tokens(5).tolist())
        rows.step([0, 1], [1, 2], tokens(3))
        texts = LeanRows(model)
        opened = [texts.open(), texts.open()]
        texts.prefill(opened[0], tokens(5).tolist())
        texts.step(opened, [[1], [2, 3]])
    assert seen.cudnn
    assert not any(seen.cudnn)


def test_a_run_says_which_kernels_its_attention_took(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target")
    save_noisy(tmp_path / "draft")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one prompt"}\n')
    asked: dict[str, Any] = {"target": target, "draft": tmp_path / "draft", "prompts": tmp_path / "prompts.jsonl"}
    profile(**asked, out=tmp_path / "run", gamma_max=2, max_new_tokens=4, cost_seconds=0)
    manifest = Manifest.load(tmp_path / "run")
    assert manifest.draft is not None
    assert manifest.target.attention == wrap(tiny_model(), "lean").spec.attention
    assert manifest.target.attention
    assert manifest.draft.attention
