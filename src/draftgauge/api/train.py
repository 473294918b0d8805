"""Train a drafter that reuses what its target computed, or say beforehand what that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.verb import verb
from draftgauge.requests import TrainRequest
from draftgauge.training.reuse.estimate import estimate
from draftgauge.training.reuse.train import train_drafter


@verb(TrainRequest)
def train(
    request: TrainRequest, *, progress: Progress = silent, report: Callable[[Mapping[str, float]], None] | None = None
) -> list[dict[str, Any]]:
    """Train a drafter into a folder; the same call goes on where an interrupted one stopped.

    For a plan without ``out`` the target's ``config.json`` is enough. ``report`` is told the figures of every few
    steps.

    Returns:
        One row: design, parameters, steps, tokens, seconds, tokens_per_second, loss, peak_memory_gib, folder. Of a
        plan, see :class:`~draftgauge.training.reuse.estimate.Estimate`; nothing is written.
    """
    if request.plan:
        return [asdict(estimate(request.training, request.out))]
    if request.out is None:
        raise DraftgaugeError("say where the drafter is to be kept: --out FOLDER")
    result = train_drafter(request.training, request.out, progress, report or (lambda row: None))
    return [{**asdict(result), "folder": str(result.folder)}]
