"""A drafter comes back from disk as it was, for its own target only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftgauge.core.errors import ModelError
from draftgauge.drafters.reuse.persistence import DRAFTER, is_drafter, load_drafter, read_description
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.taps import batch_features
from reuse_nets import saved_drafter, unroll
from tiny import save_tiny, tiny_model, tokens

KEPT = torch.tensor([1, 4, 7, 30])


@pytest.mark.parametrize("draft_tokens", [None, KEPT])
@pytest.mark.parametrize("design", ["kv", "hybrid"])
def test_there_and_back(tmp_path: Path, design: str, draft_tokens: torch.Tensor | None) -> None:
    target = wrap(tiny_model(num_hidden_layers=4))
    net = saved_drafter(tmp_path / "a" / "drafter", target.module, design, draft_tokens)
    loaded = load_drafter(tmp_path / "a" / "drafter", target)
    assert loaded.config == net.config
    assert read_description(tmp_path / "a" / "drafter")["extra"] == {"request": {"depths": 4}}
    assert loaded.embedding.data_ptr() == target.module.get_input_embeddings().weight.data_ptr()
    assert not any(weight.requires_grad for weight in loaded.parameters())
    text = tokens(12)[None]
    seen = batch_features(target.module, text, net.config.tap_plan)
    for ours, theirs in zip(unroll(net, text, seen, 3), unroll(loaded, text, seen, 3), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
    assert (loaded.d2t is None) == (draft_tokens is None)


def test_a_compressed_target_is_the_same_target(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", num_hidden_layers=4)
    net = saved_drafter(tmp_path / "drafter", load_model(folder).module)
    half = load_model(folder, compression="bf16")
    loaded = load_drafter(tmp_path / "drafter", half)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    exact = load_drafter(tmp_path / "drafter", half, torch.float32)
    assert torch.equal(exact.fuse.weight, net.fuse.weight)


def test_a_target_of_another_network_is_refused(tmp_path: Path) -> None:
    saved_drafter(tmp_path, tiny_model(num_hidden_layers=4))
    with pytest.raises(ModelError, match="another target, some/target: its vocabulary is 96, this one's 80"):
        load_drafter(tmp_path, wrap(tiny_model(num_hidden_layers=4, vocab_size=80)))


def test_weights_of_another_network_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model(num_hidden_layers=4)
    weights = dict(saved_drafter(tmp_path, target).state_dict())
    monkeypatch.setattr("draftgauge.drafters.reuse.persistence.read_weights", lambda _: weights)
    del weights["norm.weight"]
    with pytest.raises(ModelError, match="weight among them: another version of draftgauge trained it"):
        load_drafter(tmp_path, wrap(target))


def test_a_target_without_modules_is_refused(tmp_path: Path) -> None:
    """As the engine of GGUF files has it."""
    target = wrap(tiny_model(num_hidden_layers=4))
    saved_drafter(tmp_path, target.module)
    target.module = None
    with pytest.raises(ModelError, match="a GGUF or OpenVINO target hides it"):
        load_drafter(tmp_path, target)


def test_folders_that_hold_no_whole_drafter(tmp_path: Path) -> None:
    target = wrap(tiny_model(num_hidden_layers=4))
    assert not is_drafter(tmp_path)
    with pytest.raises(ModelError, match="holds no trained drafter"):
        load_drafter(tmp_path, target)
    saved_drafter(tmp_path, target.module)
    assert is_drafter(tmp_path)
    description = DRAFTER.read(tmp_path / "drafter.json")

    def write(changed: object) -> None:
        if isinstance(changed, str):
            (tmp_path / "drafter.json").write_text(changed)
        else:
            DRAFTER.write(tmp_path / "drafter.json", changed)

    for changed, message in [
        ("{", "not JSON"),
        ("[]", "is not a trained drafter"),
        ('{"format": "draftgauge-reuse-drafter", "version": 99}', "of version 99"),
        (description | {"weights_sha256": "0"}, "not the one that"),
        (description | {"config": description["config"] | {"design": "what"}}, "unknown design"),
        (description | {"config": description["config"] | {"wide": 1}}, "unknown key 'wide'"),
    ]:
        write(changed)
        with pytest.raises(ModelError, match=message):
            load_drafter(tmp_path, target)
    write(description)
    load_drafter(tmp_path, target)
    (tmp_path / "drafter.safetensors").unlink()
    with pytest.raises(ModelError, match="is missing"):
        load_drafter(tmp_path, target)
