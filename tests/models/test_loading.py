"""Loading: from folders, with errors that say what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, Gemma2PreTrainedModel

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.models import loading
from draftgauge.models.folder import PARTS, reference_path, resolve_source
from draftgauge.models.loading import OWN_ENGINES, load_model, load_tokenizer
from models.test_folder import edit
from tiny import save_tiny, tiny_model, tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model", chat=True)


@pytest.mark.parametrize("engine", ["auto", *OWN_ENGINES])
def test_a_folder_loads_with_its_weights(folder: Path, engine: str) -> None:
    cached = load_model(str(folder), device="cpu", engine=engine)
    assert cached.spec.engine == ("lean" if engine == "auto" else engine)
    assert cached.length == 0
    with torch.no_grad():
        expected = tiny_model()(tokens(5)[None]).logits[0]
    torch.testing.assert_close(cached.forward(tokens(5)), expected, rtol=1e-4, atol=2e-4)


def test_other_architectures_take_the_modules(tmp_path: Path) -> None:
    assert load_model(save_tiny(tmp_path, "stablelm"), device="cpu").spec.engine == "modules"


def test_a_type_that_writes_no_text_is_named(tmp_path: Path) -> None:
    CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"of the type clip, for which transformers has no language model.{,120}$"):
        load_model(tmp_path)


def test_an_error_of_our_own_is_not_blamed_on_the_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(loading, "wrap", fail)
    with pytest.raises(KeyError, match="a mistake"):
        load_model(folder)


def test_bounded_scores_are_bounded_by_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where transformers chooses PyTorch's kernels for Gemma 2, as it does before 5.21."""
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    folder = save_tiny(tmp_path, "gemma2", attn_logit_softcapping=0.5)
    lean, modules = (
        load_model(folder, device="cpu", engine=engine).forward(tokens(20)) for engine in ("lean", "modules")
    )
    torch.testing.assert_close(lean, modules, rtol=1e-4, atol=2e-4)


def test_a_folder_without_a_tokenizer_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "special*", "vocab*"))
    with pytest.raises(
        ModelError, match=r"holds no tokenizer: copy tokenizer\.json .* there \(or --tokenizer FOLDER\)"
    ):
        load_tokenizer(tmp_path / "bare")
    with pytest.raises(ModelError, match=r"there$"):
        load_tokenizer(tmp_path / "bare", role="draft")


def test_unknown_engine(folder: Path) -> None:
    with pytest.raises(DraftgaugeError, match=r"'fast'.*auto, lean, static, modules"):
        load_model(folder, engine="fast")


@pytest.mark.parametrize("source", [Path("no/such"), "/no/such/model", "./missing", "a/b/c", __file__])
@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_missing_folder(load, source: str | Path) -> None:
    with pytest.raises(ModelError, match=r"no model folder.*: give (the|a) folder"):
        load(source)


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_model_id_that_cannot_be_fetched(load) -> None:
    with pytest.raises(ModelError, match="cannot load nobody/nothing: "):
        load("nobody/nothing")


def test_weights_that_are_not_safetensors_are_not_read(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="only safetensors weights are read"):
        load_model(folder, device="cpu")


def test_truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load"):
        load_model(folder, device="cpu")


def test_weights_that_lack_a_tensor_are_not_filled_at_random(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(folder, device="cpu")


def test_code_that_comes_with_a_model_does_not_run_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    (folder / "custom.py").write_text(f"from pathlib import Path\nPath({str(trap)!r}).touch()\n")
    auto_map = {"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"}
    edit(folder, model_type="custom", auto_map=auto_map)
    with pytest.raises(ModelError, match="runs only where trust_remote_code is asked for"):
        load_model(folder, device="cpu")
    assert not trap.exists()


def test_the_bundled_pair_by_name(tmp_path: Path) -> None:
    for part in PARTS:
        (tmp_path / part).mkdir()
        with pytest.raises(ModelError, match="reinstall draftgauge"):
            reference_path(part, tmp_path)
        (tmp_path / part / "model.safetensors").touch()
        assert reference_path(part, tmp_path) == tmp_path / part
    with pytest.raises(ModelError, match=r"no part 'teacher'.*target, draft"):
        resolve_source("reference/teacher")
    assert resolve_source("some/model") == "some/model"
