"""What a training run did, as it is kept with the drafter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.errors import ModelError, warn
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
