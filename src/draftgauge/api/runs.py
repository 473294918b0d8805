"""Recorded runs: which folder holds what, and what speaks against their figures. No model is loaded, and no torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.splits import design_of
from draftgauge.traces.costs import CostCurve, run_costs
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.reader import find_runs, read_trace
from draftgauge.traces.trace import Trace

ALL_SPLITS = "all"
_UNCOMPRESSED_FIRST = ("none", "fp32", "bf16", "fp16", "int8", "nf4")

Warn = Callable[[str], None]


def warn(message: str) -> None:
    """A Python warning at the call of a verb."""
    warnings.warn(message, stacklevel=6)


def select_runs(folder: Path) -> list[tuple[Path, Manifest]]:
    """The runs at a place with their manifests, uncompressed targets first, checkpoints that come quantised last."""
    order = {name: position for position, name in enumerate(_UNCOMPRESSED_FIRST)}
    runs = [(run, Manifest.load(run)) for run in find_runs(folder)]
    return sorted(runs, key=lambda r: (order.get(r[1].target.compression, len(order)), r[0].name))


def read_run(run: Path, tasks: Sequence[str] | None = None) -> tuple[Trace, CostCurve]:
    """Trace and cost curve of a run."""
    return read_trace(run, tasks), run_costs(run)


def best_gamma_of(run: Path) -> int:
    """The best fixed length of a run, 0 for none; chosen on training prompts where the run names any."""
    trace, costs = read_run(run)
    train = design_of(trace).train
    return best_fixed_gamma(trace if train is None else train, costs)


def fingerprints_of(manifest: Manifest) -> dict[str, str | None]:
    """Which models a run was recorded with; as :meth:`draftgauge.api.pair.Pair.fingerprints` of a loaded pair."""
    draft = None if manifest.draft is None else manifest.draft.fingerprint
    return {"target": manifest.target.fingerprint, "draft": draft}


def warn_of_doubt(run: Path, costs: CostCurve, on_warning: Warn) -> None:
    """Warn of costs that were measured too shortly, or beside other work."""
    if doubt := costs.doubt():
        on_warning(
            f"the costs in {run} are not to be trusted, {doubt}: run its `draftgauge profile` command again with "
            "--measure, a larger --cost-seconds and nothing else on the machine"
        )
