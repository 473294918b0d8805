"""What a run did, as it is kept with the drafter, and its figures: a log of its own and the tracker asked for.

Figures of gradients and weights are by parameter group. Of a hybrid drafter they say how far its gate is open, padding
left out: KVShot's third bottleneck (arXiv 2604.26412).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftgauge.core.artefacts import parse_json
from draftgauge.core.errors import MissingLibraryError, ModelError, warn
from draftgauge.core.files import atomic_write_text, explained
from draftgauge.drafters.reuse.attention import Attention
from draftgauge.drafters.reuse.blocks import GatedDelta
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


Groups = dict[str, list[tuple[Tensor, slice]]]


def parameter_groups(net: nn.Module) -> Groups:
    """Rows of parameters by group: every module's weight is one, and the fused query, key and value projections are
    taken apart.

    A name is the place of the module in the drafter, e.g. ``blocks.0.chain_attention.keys``.
    """
    groups: Groups = {}
    taken: set[int] = set()
    for name, module in net.named_modules():
        if not isinstance(module, Attention):
            continue
        for linear in (module.from_token, module.from_state):
            if linear is None:
                continue
            for part, rows in module.parts().items():
                groups.setdefault(f"{name}.{part}", []).append((linear.weight, rows))
            taken.add(id(linear.weight))
    for name, parameter in net.named_parameters():
        if parameter.requires_grad and id(parameter) not in taken:
            groups.setdefault(name.removesuffix(".weight"), []).append((parameter, slice(None)))
    return groups


@torch.no_grad()
def gradient_row(groups: Groups) -> dict[str, float]:
    """``{"gradient_norm/GROUP", "gradient_rms/GROUP", "weight_rms/GROUP"}`` of the gradients before clipping."""
    row: dict[str, float] = {}
    for name, parts in groups.items():
        count = sum(parameter[rows].numel() for parameter, rows in parts)
        gradient = _norm([parameter.grad[rows] for parameter, rows in parts if parameter.grad is not None])
        row[f"gradient_norm/{name}"] = gradient
        row[f"gradient_rms/{name}"] = gradient / count**0.5
        row[f"weight_rms/{name}"] = _norm([parameter[rows] for parameter, rows in parts]) / count**0.5
    return row


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()) ** 0.5 if tensors else 0.0


OPEN = 0.5


def gates_of(net: nn.Module) -> list[nn.Linear]:
    return [module.gate for module in net.modules() if isinstance(module, GatedDelta)]


class GateWatch:
    """Openness of a drafter's gates (0 shut, 1 open) by depth, over units and counted positions.

    Attributes:
        sums: depth -> float64 ``[3]``: summed openness, entries above one half, entries. They may be added up over
            processes in place.
    """

    def __init__(self, net: nn.Module) -> None:
        self._gates = gates_of(net)
        self._rows: Sequence[Tensor] = ()
        self._calls = dict.fromkeys(self._gates, 0)
        self.sums: dict[int, Tensor] = {}

    @contextmanager
    def watching(self, on: bool = True) -> Iterator[None]:
        self.sums = {}
        with ExitStack() as hooks:
            for gate in self._gates if on else ():
                hooks.enter_context(gate.register_forward_hook(self._take))
            yield

    def count_rows(self, rows: Sequence[Tensor]) -> None:
        """Which rows of the next unroll count, ``[B, R]`` bool for each of its depths."""
        self._rows = rows
        self._calls = dict.fromkeys(self._gates, 0)

    def row(self, depth: int | None = None) -> dict[str, float]:
        """``gate_mean`` and ``gate_open`` (share above one half) of a depth, or of all; empty where none was seen."""
        sums = [self.sums[one] for one in self.sums if depth in (None, one)]
        openness, above, count = (float(value) for value in sum(sums, start=torch.zeros(3, dtype=torch.float64)))
        return {"gate_mean": openness / count, "gate_open": above / count} if count else {}

    @torch.no_grad()
    def _take(self, gate: nn.Linear, inputs: object, output: Tensor) -> None:
        depth = self._calls[gate]
        self._calls[gate] += 1
        openness = output.detach()[self._rows[depth].to(output.device)].double().sigmoid()
        seen = torch.stack((openness.sum(), (openness > OPEN).sum(), openness.new_tensor(openness.numel()))).cpu()
        self.sums[depth] = self.sums.get(depth, 0) + seen
