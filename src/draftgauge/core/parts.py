"""Parts of what verbs can be asked, where packages below ``api`` take them too: each option is defined here once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import kept_pipe
from draftgauge.core.rendering import Rendering, template_arguments
from draftgauge.core.settings import option


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Where models run."""

    device: str | None = option(None, help="'cpu', 'cuda', 'cuda:1' ...; a GPU if there is one.")


@dataclass(frozen=True, kw_only=True)
class CodeSpec:
    """Whether a checkpoint's own code is run."""

    trust_remote_code: bool = option(False, help="run model code that comes with a checkpoint.")


@dataclass(frozen=True, kw_only=True)
class SeedSpec:
    """Randomness."""

    seed: int = option(0, help="seed of everything random.")

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise DraftgaugeError(f"seed must be a number of 64 bits, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TeacherSpec:
    """What drafters learn from."""

    target: str = option("reference", help="target model: an id, a folder, or 'reference' (bundled).")
    prompts: Path | None = option(
        None, help="training prompts, which the target answers; bundled ones for 'reference'."
    )

    def __post_init__(self) -> None:
        if self.prompts is not None:
            object.__setattr__(self, "prompts", Path(kept_pipe(str(self.prompts)) or self.prompts))


@dataclass(frozen=True, kw_only=True)
class ChatSpec:
    """How conversations are put before the target."""

    chat_template_args: Mapping[str, Any] | str = option(
        "", help="arguments of the chat template as JSON, e.g. '{\"enable_thinking\": false}'."
    )
    system: str | None = option(None, help="a system message for conversations that have none.")

    def __post_init__(self) -> None:
        template_arguments(self.chat_template_args)

    def rendering(self, chat: bool | None = None, turns: int = 1) -> Rendering:
        return Rendering(template_arguments(self.chat_template_args), self.system, chat, turns)


@dataclass(frozen=True, kw_only=True)
class WorkersSpec:
    """Where jobs run."""

    executor: str = option("local", help="'local' (in this process), or 'ray', on the cluster that RAY_ADDRESS names.")
    cpus: int = option(1, help="CPUs that each job asks Ray for.")
    gpus: float = option(0, help="GPUs that each job asks Ray for; a share such as 0.5 puts two jobs on one.")

    def __post_init__(self) -> None:
        at_least_one(self, "cpus")
        if self.gpus < 0:
            raise DraftgaugeError(f"gpus must be at least 0, not {self.gpus:g}")


def at_least_one(spec: Any, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if value is not None and not value >= 1:
            raise DraftgaugeError(f"{name} must be at least 1, not {value}")


def positive(spec: Any, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if value is not None and not value > 0:
            raise DraftgaugeError(f"{name} must be above 0, not {value:g}")
