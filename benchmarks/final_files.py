"""Where the final benchmark keeps what: written by ``final.py``, read by ``figures.py``.

``runs/COMPRESSION/`` holds a recorded run with the cost curve that was measured with it, ``stopping.json`` and
``two-source.json`` the fitted policies, and ``sittings/WHEN/`` the live measurements of each compression with cost
curves measured before and after, for every time that the benchmark was sat, and the fitted policies that it decoded
with if others have been fitted since.
"""

from __future__ import annotations

from pathlib import Path

from draftgauge.api.runs import read_run
from draftgauge.traces.costs import CostCurve

COMPRESSIONS = ("none", "int8", "nf4")
FITTED = ("stopping", "two-source")  # policies that are fitted on the training prompts
RUNS, SITTINGS = "runs", "sittings"


def fitted_file(folder: Path, policy: str) -> Path:
    """A policy fitted on the training prompts of all runs."""
    return folder / f"{policy}.json"


def decoded_with(folder: Path, sitting: Path, policy: str) -> Path:
    """The fitted policy that a sitting decoded with."""
    own = fitted_file(sitting, policy)
    return own if own.exists() else fitted_file(folder, policy)


def runs_of(folder: Path) -> list[Path]:
    """The recorded runs, a folder for each compression."""
    return [folder / RUNS / compression for compression in COMPRESSIONS]


def sittings_of(folder: Path) -> list[Path]:
    """The sittings so far, the oldest first; their names are dates."""
    return sorted(path for path in (folder / SITTINGS).glob("*") if path.is_dir())


def curve_file(sitting: Path, compression: str) -> Path:
    """The cost curve that a sitting measured, and its policies weighed."""
    return sitting / f"costs-{compression}.json"


def later_curve_file(sitting: Path, compression: str) -> Path:
    """The one that it measured after decoding live."""
    return sitting / f"costs-{compression}-after.json"


def live_file(sitting: Path, compression: str) -> Path:
    """What a sitting measured live."""
    return sitting / f"live-{compression}.json"


def finished(sitting: Path) -> bool:
    """Whether everything of a sitting is measured."""
    return all(live_file(sitting, compression).exists() for compression in COMPRESSIONS)


def curves_of(folder: Path, run: Path) -> list[CostCurve]:
    """All cost curves that were measured of a run: the one of its recording, then those of the sittings."""
    later = (curve_file(sitting, run.name) for sitting in sittings_of(folder))
    return [read_run(run)[1], *(CostCurve.load(path) for path in later if path.exists())]
