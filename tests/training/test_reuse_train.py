"""A training learns, is alike for every design but for the design, and if killed ends as an uninterrupted one."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.files import FOLDER_LOCK, only_writer
from draftgauge.drafters.reuse.config import DESIGNS
from draftgauge.drafters.reuse.persistence import load_drafter
from draftgauge.models.device import release_freed, torch_threads
from draftgauge.models.loading import load_model
from draftgauge.training import checkpoints
from draftgauge.training import optimise as loop
from draftgauge.training.reuse.data import DataOrder
from draftgauge.training.reuse.estimate import estimate
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.tracking import TrainResult
from draftgauge.training.reuse.train import train_drafter
from small_trainings import log, small_training
from tiny import save_tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    prompts = [f"Count to {n * n}: " for n in range(12)]
    settings = {"reuse": "hidden", "steps": 9, "batch": 4, "checkpoint_every": 4, "log_every": 3, "precision": "fp32"}
    return small_training(tmp_path_factory.mktemp("training"), prompts, **settings)


@pytest.fixture(scope="module")
def finished(base: TrainingSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, train_drafter(base, folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "drafter.safetensors")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not Linux")
@pytest.mark.usefixtures("finished")  # the answers are there: several threads in a tiny model wait for each other
def test_a_training_gives_threads_and_freed_memory_back(base: TrainingSpec, tmp_path: Path) -> None:
    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def look(row: Any, size: int = 2**27) -> None:
        release_freed()  # or pages of the heap that are free already would hold it
        before = pages()
        torch.ones(size, dtype=torch.uint8)  # freed at once
        seen.append((torch.get_num_threads(), pages() - before > 2**14))

    seen: list[tuple[int, bool]] = []
    with torch_threads(3):
        train_drafter(replace(base, threads=2, steps=1), tmp_path / "out", report=look)
        look(None, 2**29)  # more than any hole that the training left in the heap
    assert [seen[0], seen[-1]] == [(2, True), (3, False)]


class KilledError(Exception):
    """Stands for a kill at any moment."""


@pytest.mark.parametrize(
    ("change", "killed_at"),
    [
        ({}, 2),
        ({"reuse": "hybrid", "cache": True, "accumulation": 2}, 7),
        ({"reuse": "kv", "layers": 2, "draft_vocabulary": 40, "precision": "bf16"}, 5),
        ({"recipe": "block", "reuse": "hybrid", "depths": 4, "anchors": 5, "loss": "tv", "markov_rank": 4}, 6),
        ({"reuse": "mtp"}, 5),
        ({"reuse": "mtp", "recipe": "block", "anchors": 5, "cache": True, "loss": "hard"}, 3),
    ],
)
def test_a_killed_run_ends_bit_for_bit_where_another_does(
    base: TrainingSpec,
    finished: tuple[Path, TrainResult],
    tmp_path: Path,
    change: dict[str, Any],
    killed_at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = replace(base, **(change | {"cache": tmp_path / "features" if change.get("cache") else None}))
    folders = [tmp_path / "straight" if change else finished[0], tmp_path / "killed"]
    straight = train_drafter(request, folders[0]) if change else finished[1]
    _kill_after(monkeypatch, killed_at)
    with pytest.raises(KilledError):
        train_drafter(request, folders[1])
    monkeypatch.undo()
    torch.manual_seed(killed_at)  # what another process would have
    resumed = train_drafter(request, folders[1])

    one, other = map(weights, folders)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (resumed.tokens, resumed.steps, resumed.loss) == (straight.tokens, straight.steps, straight.loss)
    timed = {"tokens_per_second", "seconds_left"}
    rows = [
        [{key: value for key, value in row.items() if key not in timed} for row in log(folder)] for folder in folders
    ]
    assert rows[0] == rows[1]
    optimizers = [load_file(next((folder / "checkpoints").glob("step-*/optimizers.safetensors"))) for folder in folders]
    assert all(torch.equal(value, optimizers[1][name]) for name, value in optimizers[0].items())


def _kill_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Kill the run in the middle of a step, after the gradient of that many is known."""
    clip, calls = torch.nn.utils.clip_grad_norm_, 0

    def killing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > steps:
            raise KilledError
        return clip(*arguments)

    monkeypatch.setattr(loop.nn.utils, "clip_grad_norm_", killing)


def test_a_finished_run_is_not_repeated(
    base: TrainingSpec, finished: tuple[Path, TrainResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    _kill_after(monkeypatch, 0)
    assert train_drafter(base, finished[0]) == finished[1]


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_finished_drafter_whose_weights_are_damaged_is_written_again(
    base: TrainingSpec, finished: tuple[Path, TrainResult], tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "drafter.safetensors"
    content = path.read_bytes()
    path.write_bytes({"gone": b"", "cut": content[:900], "flipped": content[:-9] + b"x" + content[-8:]}[damage])
    _kill_after(monkeypatch, 0)  # no step is taken
    with pytest.warns(UserWarning, match="written again from the last checkpoint"):
        again = train_drafter(base, tmp_path)
    assert path.read_bytes() == content
    assert again.loss == finished[1].loss
    path.unlink()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ModelError, match="is missing"):
        train_drafter(base, tmp_path)


def test_a_checkpoint_is_on_the_disk_before_the_one_before_it_goes(
    base: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses what was not flushed: names that are not, and files whose content is not."""
    events: list[str] = []
    sync, remove = checkpoints.sync_tree, checkpoints.shutil.rmtree
    monkeypatch.setattr(checkpoints, "sync_tree", lambda path: events.append(f"sync {path.name}") or sync(path))
    monkeypatch.setattr(
        checkpoints.shutil,
        "rmtree",
        lambda path, **_: path.exists() and (events.append(f"drop {path.name}"), remove(path)),
    )
    train_drafter(base, tmp_path)
    order = ("sync 4", "sync 8", "drop 4", "sync 9", "drop 8")
    assert events == [event.replace(" ", " step-000000") for event in order]


def test_a_full_disk_is_said_and_the_checkpoint_before_stays(
    base: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = checkpoints.save_file, 0

    def full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(DraftgaugeError, match="no space left on the disk while writing"):
        train_drafter(base, tmp_path)
    monkeypatch.undo()
    assert train_drafter(base, tmp_path).steps == base.steps


def test_it_learns_what_the_target_says(base: TrainingSpec, tmp_path: Path) -> None:
    request = replace(base, reuse="hybrid", steps=60, log_every=15, learning_rate=5e-3)
    result = train_drafter(request, tmp_path)
    rows = log(tmp_path)
    assert result.loss < 0.4 * rows[0]["loss"]
    assert rows[0]["agreement/0"] < 0.3
    assert rows[-1]["agreement/0"] > 0.8
    assert rows[-1]["agreement/2"] > 0.8


def data_order(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Which conversations the steps take that follow."""
    seen: list[list[int]] = []
    step = DataOrder.step

    def recorded(self: DataOrder, number: int) -> torch.Tensor:
        seen.append(step(self, number).tolist())
        return step(self, number)

    monkeypatch.setattr(DataOrder, "step", recorded)
    return seen


@pytest.fixture(scope="module")
def order_of_hidden(base: TrainingSpec, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with pytest.MonkeyPatch.context() as patch:
        seen = data_order(patch)
        train_drafter(replace(base, steps=2), tmp_path_factory.mktemp("hidden"))
    return seen


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_sees_the_same_data_and_can_be_loaded(
    base: TrainingSpec, order_of_hidden: list[list[int]], tmp_path: Path, design: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = data_order(monkeypatch)
    result = train_drafter(replace(base, reuse=design, steps=2), tmp_path)
    assert seen == order_of_hidden != []
    net = load_drafter(tmp_path, load_model(base.target))
    assert net.config.design == design == result.design
    assert (
        sum(p.numel() for p in net.parameters())
        == result.parameters
        == estimate(replace(base, reuse=design)).parameters
    )
    assert math.isfinite(result.loss)


@pytest.mark.parametrize("change", [{}, {"recipe": "block", "depths": 4, "anchors": 5}])
def test_accumulating_parts_is_the_whole_batch(base: TrainingSpec, tmp_path: Path, change: dict[str, Any]) -> None:
    for parts in (1, 2):  # queries that start at their keys have gradients so small that AdamW takes rounding for them
        request = replace(base, **change, accumulation=parts, steps=2, attention_start="random", optimizer="adamw")
        train_drafter(request, tmp_path / str(parts))
    one, other = weights(tmp_path / "1"), weights(tmp_path / "2")
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=2e-5, rtol=1e-4)


def test_a_warm_start_begins_where_the_hidden_drafter_ended(base: TrainingSpec, tmp_path: Path) -> None:
    train_drafter(replace(base, steps=60, learning_rate=5e-3), tmp_path / "hidden")
    first = {}
    for name, start in (("warm", tmp_path / "hidden"), ("random", None)):
        train_drafter(replace(base, reuse="hybrid", warm_start=start, steps=1), tmp_path / name)
        first[name] = log(tmp_path / name)[0]["loss"]
    assert first["warm"] < 0.8 * first["random"]


def test_the_log_measures_gradients_and_the_gate(
    base: TrainingSpec, finished: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    train_drafter(replace(base, reuse="hybrid"), tmp_path)
    rows = log(tmp_path)
    assert [row["step"] for row in rows] == [1, 3, 4, 6, 8, 9]
    groups = ("blocks.0.self_attention.queries", "blocks.0.chain_attention.keys", "blocks.0.injection.values")
    groups += ("fuse", "head", "blocks.0.mlp.down", "blocks.0.join.gate")
    for row in rows:
        assert 0.3 < row["gate_mean"] < 0.7
        assert all(row[f"gradient_norm/{group}"] > 0 and row[f"gradient_rms/{group}"] > 0 for group in groups)
        norms = [value for key, value in row.items() if key.startswith("gradient_norm/")]
        assert math.sqrt(sum(value**2 for value in norms)) == pytest.approx(row["gradient_norm"], rel=1e-4)
    assert not any(key.startswith("gate_") for row in log(finished[0]) for key in row)


def test_answers_that_begin_too_late_are_told(base: TrainingSpec, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "a" * length}) + "\n" for length in (9, 9, 9, 9, 50, 60)))
    with pytest.warns(UserWarning, match="2 of 6 answers are not trained on"):
        train_drafter(replace(base, prompts=prompts, answers=None, length=40, steps=1), tmp_path / "run")


def test_a_second_training_in_one_folder_is_refused(base: TrainingSpec, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with only_writer(out), pytest.raises(DraftgaugeError, match="another process is writing into"):
        train_drafter(base, out)
    assert [path.name for path in out.iterdir()] == [FOLDER_LOCK]
    assert train_drafter(base, out).steps == base.steps


@pytest.mark.parametrize(("design", "cached"), [("hidden", False), ("control", False), ("hidden", True)])
def test_designs_that_read_no_keys_train_where_every_layer_slides(
    base: TrainingSpec, tmp_path: Path, design: str, cached: bool
) -> None:
    target = save_tiny(tmp_path / "target", "mistral-sliding", num_hidden_layers=4, eos_token_id=95)
    request = replace(base, target=str(target), answers=None, reuse=design, steps=2)
    request = replace(request, cache=tmp_path / "features" if cached else None)
    assert math.isfinite(train_drafter(request, tmp_path / "run").loss)
    with pytest.raises(ModelError, match="attends within a window"):
        train_drafter(replace(request, reuse="kv"), tmp_path / "kv")
