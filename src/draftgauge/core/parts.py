"""Parts of what verbs, and what they call, can be asked: each option that several of them take is defined here once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.rendering import Rendering, template_arguments


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Where models run.

    Attributes:
        device: 'cpu', 'cuda', 'cuda:1' ...; a GPU if there is one.
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
        seed: seed of everything random.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise DraftgaugeError(f"seed must be a number of 64 bits, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TeacherSpec:
    """What drafters learn from.

    Attributes:
        target: target model: a Hugging Face id, a folder, or 'reference' (the bundled one).
        prompts: training prompts, which the target answers, those of the split 'train' where some are; generated for
            'reference' if left out.
    """

    target: str = "reference"
    prompts: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ChatSpec:
    """How conversations are put before the target.

    Attributes:
        chat_template_args: arguments of the target's chat template, a JSON object, e.g. '{"enable_thinking": false}'.
        system: a system message for conversations that have none.
    """

    chat_template_args: Mapping[str, Any] | str = ""
    system: str | None = None

    def __post_init__(self) -> None:
        template_arguments(self.chat_template_args)

    def rendering(self, chat: bool | None = None, turns: int = 1) -> Rendering:
        """What these come to."""
        return Rendering(template_arguments(self.chat_template_args), self.system, chat, turns)


@dataclass(frozen=True, kw_only=True)
class WorkersSpec:
    """Where jobs run.

    Attributes:
        executor: 'local', one job after the other in this process, or 'ray', on a cluster: the one that RAY_ADDRESS
            names, else this machine.
        cpus: CPUs that each job asks Ray for.
        gpus: GPUs that each job asks Ray for; a share such as 0.5 puts two jobs on one.
    """

    executor: str = "local"
    cpus: int = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        at_least_one(self, "cpus")
        if self.gpus < 0:
            raise DraftgaugeError(f"gpus must be at least 0, not {self.gpus:g}")


def at_least_one(spec: Any, *names: str) -> None:
    """Refuse a request whose fields of these names are given and below 1."""
    for name in names:
        value = getattr(spec, name)
        if value is not None and value < 1:
            raise DraftgaugeError(f"{name} must be at least 1, not {value}")


def positive(spec: Any, *names: str) -> None:
    """Refuse a request whose fields of these names are given and not above 0."""
    for name in names:
        value = getattr(spec, name)
        if value is not None and not value > 0:
            raise DraftgaugeError(f"{name} must be above 0, not {value:g}")
