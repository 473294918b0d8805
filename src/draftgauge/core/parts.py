"""Parts of what verbs, and what they call, can be asked: each option that several of them take is defined here once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Where models run.

    Attributes:
        device: cpu, cuda, cuda:1 ...; a GPU if there is one.
    """

    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class CodeSpec:
    """Whether a checkpoint's own code is run.

    Attributes:
        trust_remote_code: run model code that comes with a checkpoint.
    """

    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class SeedSpec:
    """Randomness.

    Attributes:
        seed: of everything random.
    """

    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TeacherSpec:
    """What drafters learn from.

    Attributes:
        target: target model: a Hugging Face id, a folder, or 'reference' (the bundled one).
        prompts: training prompts, which the target answers; generated for 'reference' if left out.
    """

    target: str = "reference"
    prompts: Path | None = None


def at_least_one(spec: Any, *names: str) -> None:
    """Refuse a request whose fields of these names are given and below 1."""
    for name in names:
        value = getattr(spec, name)
        if value is not None and value < 1:
            raise DraftgaugeError(f"{name} must be at least 1, not {value}")
