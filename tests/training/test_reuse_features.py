"""Features kept on disk are those computed in the step, up to their precision, and never those of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftgauge.core.errors import DraftgaugeError
from draftgauge.models.taps import Features, TapPlan, batch_features
from draftgauge.training.reuse import features as module
from draftgauge.training.reuse.answers import Answers, Conversation
from draftgauge.training.reuse.data import collate
from draftgauge.training.reuse.features import CachedFeatures, OnlineFeatures, cache_identity, make_cache
from tiny import tiny_model, tokens

HELD = TapPlan((0, 2), (1, 2))


def conversations(count: int = 7) -> list[Conversation]:
    return [Conversation(tokens(6 + 3 * n % 11, n).numpy().astype(np.int32), 3) for n in range(count)]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_CONVERSATIONS", 3)
    monkeypatch.setattr(module, "PASS_TOKENS", 24)


def identity(**changes: object) -> dict[str, Any]:
    answers = Answers((), {"target_fingerprint": "target"}, "answers")
    return cache_identity(answers, conversations(), 64, HELD, None) | changes


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
@pytest.mark.parametrize("plan", [HELD, TapPlan((2,), ()), TapPlan((), (2, 1)), TapPlan()])
def test_cached_features_are_the_online_ones(tmp_path: Path, plan: TapPlan, family: str) -> None:
    target = tiny_model(family, num_hidden_layers=4)
    make_cache(tmp_path / "cache", target, conversations(), identity())
    batch = collate(conversations(), (6, 0, 3, 4), depths=3)
    cached, online = CachedFeatures(tmp_path / "cache", target, plan)(batch), OnlineFeatures(target, plan)(batch)
    assert len(cached.logits) == len(online.logits) == sum((batch.length - batch.prompt).tolist())
    _assert_alike("logits", cached.logits, online.logits)
    for row, length in enumerate(batch.length.tolist()):
        found, wanted = (_parts(features, row, length) for features in (cached, online))
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            _assert_alike(name, found[name], value)


def _assert_alike(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, atol=0.02 * scale, rtol=0, msg=lambda text: f"{name}: {text}")


def _parts(features: Features, row: int, length: int) -> dict[str, torch.Tensor]:
    along = {"hidden": 0, "keys": 2, "values": 2}
    return {
        name: part[row].narrow(dim, 0, length)
        for name, dim in along.items()
        if (part := getattr(features, name)) is not None
    }


@pytest.mark.parametrize("plan", [HELD, TapPlan()])
def test_logits_of_some_positions_are_those_of_all(plan: TapPlan) -> None:
    for family in ("qwen3", "gemma2"):  # gemma2 caps its logits behind the head
        target = tiny_model(family, num_hidden_layers=4)
        batch = collate(conversations(), (6, 0, 3, 4), depths=3)
        some, all_ = OnlineFeatures(target, plan)(batch), batch_features(target, batch.tokens, plan)
        torch.testing.assert_close(some.logits, all_.logits[batch.taught()], atol=1e-5, rtol=1e-5)
        assert some.logits.shape[0] < all_.logits[..., 0].numel() / 2


def test_an_interrupted_cache_goes_on(tmp_path: Path) -> None:
    target = tiny_model(num_hidden_layers=4)
    folder = tmp_path / "cache"

    def killed(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cache(folder, target, conversations(), identity(), killed)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert len(before) == 2
    (folder / ".features-00002.safetensors.draftgauge-tmp").write_bytes(b"half")
    make_cache(folder, target, conversations(), identity())
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    assert sorted(after) == [*(f"features-0000{shard}.safetensors" for shard in range(3)), "features.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answers_sha256": "others"}, "other answers sha256"),
        ({"target_fingerprint": "another"}, "other target fingerprint"),
        ({"length": 32}, "other length"),
        ({"arithmetic": "bfloat16"}, "other arithmetic"),
        ({"hidden_layers": (1,)}, "other hidden layers"),
        ({"kv_layers": (0, 1)}, "other kv layers"),
        ({"compression": "int8"}, "other compression"),
    ],
)
def test_the_cache_of_another_run_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    target = tiny_model(num_hidden_layers=4)
    make_cache(tmp_path, target, conversations(), identity())
    with pytest.raises(DraftgaugeError, match=words):
        make_cache(tmp_path, target, conversations(), identity(**change))


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(DraftgaugeError, match="no cache of features"):
            make_cache(place, tiny_model(num_hidden_layers=4), conversations(), identity())


def test_a_cache_by_the_former_name_of_no_compression_is_taken(tmp_path: Path) -> None:
    make_cache(tmp_path, tiny_model(num_hidden_layers=4), conversations(), identity(compression="none"))
    assert module.check_cache_folder(tmp_path, identity())
