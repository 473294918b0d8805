"""Recorded runs: which folder holds what, and what speaks against their figures. No model is loaded, and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftgauge.core.compressions import COMPRESSIONS
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.traces.costs import CostCurve, run_costs
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.reader import find_runs, read_trace
from draftgauge.traces.trace import Trace


def select_runs(folder: Path) -> list[tuple[Path, Manifest]]:
    order = {name: position for position, name in enumerate(COMPRESSIONS)}
    runs = [(run, Manifest.load(run)) for run in find_runs(folder)]
    return sorted(runs, key=lambda r: (order.get(r[1].target.compression, len(order)), r[0].name))


def only_run(folder: Path) -> tuple[Path, Manifest]:
    """The run of a folder; refuses a folder of several."""
    runs = select_runs(folder)
    if len(runs) > 1:
        names = ", ".join(str(run) for run, _ in runs)
        raise DraftgaugeError(f"{folder} holds {len(runs)} runs: name one of them ({names})")
    return runs[0]


def read_run(run: Path, tasks: Sequence[str] | None = None) -> tuple[Trace, CostCurve]:
    """The trace and the costs of a run; warns of costs that were measured on another device or engine."""
    trace, costs, manifest = read_trace(run, tasks), run_costs(run), Manifest.load(run)
    measured, recorded = f"{costs.engine} on {costs.device}", f"{manifest.target.engine} on {manifest.device}"
    if measured != recorded:
        warn(f"the costs in {run} are of {measured}, its trace is of {recorded}: seconds are those of {measured}")
    return trace, costs


def warn_of_other_costs(run: Path, asked: Manifest) -> None:
    """Warn where a finished run keeps costs of another engine or device than what is asked for now."""
    costs = run_costs(run)
    kept, now = f"{costs.engine} on {costs.device}", f"{asked.target.engine} on {asked.device}"
    if kept != now:
        warn(f"the costs in {run} stay those of {kept}: pass --measure for those of {now}")


def fingerprints_of(manifest: Manifest) -> dict[str, str | None]:
    draft = None if manifest.draft is None else manifest.draft.fingerprint
    return {"target": manifest.target.fingerprint, "draft": draft}
