"""How an artefact was made: the machine, the versions, the command; and measurements written with it."""

from __future__ import annotations

import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.core.artefacts import Artefact
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.verb import PYTHON_CALL, machine_load

PACKAGES = (
    *("draftgauge", "torch", "transformers", "tokenizers", "safetensors", "bitsandbytes"),
    *("llama-cpp-python", "xllamacpp", "openvino", "numpy", "pyarrow", "scikit-learn", "scipy"),
)

MEASUREMENT = Artefact("draftgauge-measurement", 1, "measurement", "measure again, with --json FILE", published=True)


@dataclass(frozen=True)
class Measurement:
    """What a verb measured: flat rows, the command line, the date (UTC, ISO 8601) and :func:`environment`."""

    command: str
    created: str
    environment: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]


def write_measurement(path: Path, command: str, rows: Iterable[Mapping[str, Any]]) -> None:
    flat = [{key: _scalar(value, key) for key, value in row.items()} for row in rows]
    MEASUREMENT.write(path, to_mapping(Measurement(command, timestamp(), environment(), tuple(flat))))


def read_measurement(path: Path) -> Measurement:
    """Read what :func:`write_measurement` wrote."""
    measurement = from_mapping(Measurement, MEASUREMENT.read(path), str(path))
    for row in measurement.rows:
        nested = [key for key, value in row.items() if isinstance(value, list | dict)]
        if nested:
            raise DraftgaugeError(f"{path}: rows are flat, and {nested[0]} is a {type(row[nested[0]]).__name__}")
    return measurement


def environment() -> dict[str, Any]:
    """The machine and the versions, as plain JSON values.

    Libraries are not imported for it: ``threads`` and ``gpu`` are known only where torch is in use already, and None
    elsewhere.
    """
    torch = sys.modules.get("torch")
    gpu = torch is not None and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads() if torch is not None else None,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch is not None and gpu else None,
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "revision": git_revision(Path(__file__).resolve().parents[3]),
        "load": machine_load(),
    }


def git_revision(checkout: Path) -> str | None:
    """The commit of a source checkout, with ``-dirty`` where files differ from it; None outside a git checkout."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git here, or no commit yet
        return None


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> str:
    """The command that runs, or, in a notebook or at Python's prompt, the call of a verb."""
    program = Path(sys.argv[0])
    if (hasattr(sys, "ps1") or sys.argv[0] in ("", "-c")) and (call := PYTHON_CALL.get("")):
        return call
    return shlex.join([program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()  # ARM names none


def _scalar(value: Any, key: str) -> str | int | float | bool | None:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, Path):
        return str(plain)
    if plain is not None and not isinstance(plain, str | int | float | bool):
        raise TypeError(f"rows are flat: {key} is {type(plain).__name__}")
    if isinstance(plain, float):
        return float(f"{plain:.8g}") if math.isfinite(plain) else None
    return plain
