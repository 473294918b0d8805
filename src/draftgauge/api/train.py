"""Train a drafter that reuses what its target computed, or say beforehand what that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftgauge.training.reuse.estimate import estimate
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter

Progress = Callable[[str, int, int], None]


def train(
    request: TrainingSpec,
    out: str | Path,
    progress: Progress = lambda what, done, total: None,
    report: Callable[[Mapping[str, float]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Train a drafter into a folder; the same call goes on where an interrupted one stopped.

    Args:
        request: what to train, see :class:`~draftgauge.training.reuse.request.TrainingSpec`.
        out: folder of the run; afterwards ``--drafter OUT`` names the drafter.
        progress: told (what, done, total).
        report: told the figures of every few steps.

    Returns:
        One row: design, parameters, steps, tokens, seconds, tokens_per_second, loss, peak_memory_gib, folder.

    Raises:
        DraftgaugeError: for whatever cannot be, before any work.
    """
    result = train_drafter(request, Path(out), progress, report)
    return [{**asdict(result), "folder": str(result.folder)}]


def plan(request: TrainingSpec, out: str | Path | None = None) -> list[dict[str, Any]]:
    """What a training takes: one row, see :class:`~draftgauge.training.reuse.estimate.Estimate`. Nothing is written.

    Args:
        request: what to train. Without ``out`` the target's ``config.json`` is enough.
        out: folder of the run; given, the request is checked as a training checks it.

    Raises:
        DraftgaugeError: if the training could not be started.
    """
    return [estimate(request, None if out is None else Path(out)).row()]
