"""What a run did, as it is kept with the drafter, and its figures: a log of its own and the tracker asked for."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from draftgauge.core.artefacts import parse_json
from draftgauge.core.errors import MissingLibraryError, ModelError, warn
from draftgauge.core.files import atomic_write_text, explained
from draftgauge.drafters.reuse.persistence import is_drafter, read_description, read_weights
from draftgauge.training.checkpoints import LATEST

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class TrainResult:
    """What a run did.

    Attributes:
        parameters: trained ones.
        tokens: answer positions that were trained on, each from all K depths.
        seconds: spent in steps, over all parts of an interrupted run.
        loss: mean over the rows of the log that end in the last tenth of the steps, in nats.
        peak_memory_gib: of the process on a CPU, of the device on a GPU.
    """

    folder: Path
    design: str
    parameters: int
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: float
    loss: float
    peak_memory_gib: float

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "folder"}


def finished(folder: Path) -> TrainResult | None:
    """The result of a finished run, else None, also where weights are lost or damaged, so that the last checkpoint must
    write them again."""
    if not is_drafter(folder):
        return None
    try:
        read_weights(folder)
    except ModelError as error:
        if not (folder / CHECKPOINTS / LATEST).is_file():
            raise
        warn(f"{error}; it is written again from the last checkpoint")
        return None
    result = dict(read_description(folder)["extra"]["result"])
    return TrainResult(**{**result, "folder": folder})


LOG_NAME = "log.jsonl"
PROJECT = "draftgauge"
POINTS = 16  # of a history


class Tracker(Protocol):
    """Takes the figures of a step."""

    def log(self, step: int, row: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class LogFile:
    """One JSON object a line.

    Rows after ``step``, which an interrupted run wrote beyond its last checkpoint, are cut off.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        kept = [line for line in _whole_lines(path) if parse_json(line, str(path))["step"] <= step]
        atomic_write_text(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, row: Mapping[str, float]) -> None:
        figures = {key: float(f"{value:.6g}") for key, value in row.items()}
        with explained(self._path):
            self._file.write(json.dumps({"step": step, **figures}) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


class _TensorBoard:
    def __init__(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self._writer.add_text("request", json.dumps(settings, indent=1))

    def log(self, step: int, row: Mapping[str, float]) -> None:
        for key, value in row.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _Runs:
    """Weights & Biases and trackio, which has the same interface."""

    def __init__(self, library: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self._library: Any = importlib.import_module(library)
        self._library.init(project=PROJECT, name=folder.name, config=dict(settings))

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._library.log(dict(row), step=step)

    def close(self) -> None:
        self._library.finish()


def check_tracker(name: str | None) -> None:
    if name is not None and importlib.util.find_spec(name) is None:
        raise MissingLibraryError(f"tracking with {name} needs that library: pip install {name}")


def open_trackers(name: str | None, folder: Path, settings: Mapping[str, Any], step: int) -> list[Tracker]:
    """The run's own log, resumed after ``step``, and the tracker that is asked for."""
    trackers: list[Tracker] = [LogFile(folder / LOG_NAME, step)]
    if name == "tensorboard":
        trackers.append(_TensorBoard(folder, settings, step))
    elif name is not None:
        trackers.append(_Runs(name, folder, settings))
    return trackers


def read_history(folder: Path) -> list[dict[str, float]]:
    """Gradients and gate from a run's log, at up to ``POINTS`` steps, first and last included; empty without a log.
    Rows hold ``step``, ``gradient_norm/GROUP``, ``gradient_rms/GROUP``, ``weight_rms/GROUP`` and ``gate_*``."""
    rows = [parse_json(line, str(folder / LOG_NAME)) for line in _whole_lines(folder / LOG_NAME)]
    last = max(0, len(rows) - 1)
    chosen = sorted({round(last * point / (POINTS - 1)) for point in range(POINTS)}) if rows else []
    kept = ("gradient_norm/", "gradient_rms/", "weight_rms/", "gate_")
    return [{key: rows[i][key] for key in rows[i] if key == "step" or key.startswith(kept)} for i in chosen]


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
