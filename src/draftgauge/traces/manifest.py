"""What a run recorded and how: the file beside the shards of a trace."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftgauge.core.artefacts import Artefact
from draftgauge.core.compressions import UNCOMPRESSED, Compression
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.rendering import Rendering
from draftgauge.traces.shards import GREEDY_VERSION, SAMPLED_VERSION

MANIFEST_NAME = "manifest.json"
COSTS_NAME = "costs.json"
CODE_OPTIONS = ("allow_pickle", "trust_remote_code")
MANIFEST = Artefact(
    "draftgauge-trace",
    1,
    "manifest of a trace",
    "move the folder away and record the trace again with `draftgauge profile`",
    error=TraceError,
)


@dataclass(frozen=True)
class ModelEntry:
    """A model of the run: ``source`` as it was asked for, ``fingerprint`` of its files, ``family`` the ``model_type``
    of its configuration. ``dtype`` is of its activations, ``attention`` the kernels if they were asked for."""

    source: str
    fingerprint: str
    compression: Compression
    family: str
    engine: str
    dtype: str
    attention: str = ""


@dataclass(frozen=True)
class PromptsEntry:
    """The prompt file as it was given, and the prompts to record (recorded, in a complete run) with their tasks."""

    path: str
    sha256: str
    count: int
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class OutputsEntry:
    """The file of answers that were recorded in place of outputs decoded by the target."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One run of recording.

    Attributes:
        draftgauge, command, created, environment: the version, command line, date (UTC, ISO 8601) and machine.
        target, draft: the models; ``draft`` is None for a drafter without one.
        temperature, top_k, top_p: that output and drafts were drawn with; temperature 0 is greedy decoding.
        outputs: the answers that were recorded; None where the target decoded.
        tokenizer: folder or id of the tokenizer, where it is not the target's own.
        rule: of a drafter without a model, what it does; runs of earlier versions do not say.
        allowed: which of ``CODE_OPTIONS`` the pair was loaded with; None in runs of earlier versions.
    """

    draftgauge: str
    command: str
    created: str
    environment: Mapping[str, Any]
    target: ModelEntry
    draft: ModelEntry | None
    drafter: str
    device: str
    gamma_max: int
    max_new_tokens: int
    seed: int
    prompts: PromptsEntry
    complete: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    rendering: Rendering = field(default_factory=Rendering)
    outputs: OutputsEntry | None = None
    tokenizer: str | None = None
    rule: str = ""
    allowed: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (("gamma_max", 1), ("max_new_tokens", 1), ("top_k", 0)):
            if not least <= getattr(self, name) < 2**31:
                raise TraceError(f"{name} of a trace is {getattr(self, name)}, must be {least} or more")
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1):
            raise TraceError(f"a trace was not drawn at temperature {self.temperature} and top_p {self.top_p}")

    @property
    def code_options(self) -> tuple[str, ...]:
        """The options that let a checkpoint's code run, as the command line spells them."""
        allowed = self.command.replace("-", "_") if self.allowed is None else self.allowed
        return tuple(f"--{name.replace('_', '-')}" for name in CODE_OPTIONS if name in allowed)

    @property
    def pair(self) -> str:
        """Fingerprints of target and drafter, as a cost curve has them."""
        draft = self.drafter if self.draft is None else self.draft.fingerprint
        return f"{self.target.fingerprint}+{draft}"

    @property
    def drafts_with(self) -> str:
        """What drafted, as ``--drafter`` takes it."""
        return self.drafter if self.draft is None else self.draft.source

    def identity(self) -> dict[str, Any]:
        """What makes rows comparable: two runs that agree in it would record the same rows for the same prompt."""
        identity: dict[str, Any] = {
            "schema_version": SAMPLED_VERSION if self.temperature > 0 else GREEDY_VERSION,
            "drafter": self.drafter,
            "gamma_max": self.gamma_max,
            "max_new_tokens": self.max_new_tokens,
            "prompts.sha256": self.prompts.sha256,
            "rendering": to_mapping(self.rendering),
        }
        for role, model in (("target", self.target), ("draft", self.draft)):
            for name in ("fingerprint", "compression", "dtype"):
                identity[f"{role}.{name}"] = None if model is None else getattr(model, name)
        if self.temperature > 0:
            identity |= {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "seed")}
        if self.outputs is not None:
            identity["outputs.sha256"] = self.outputs.sha256
        return identity | ({"rule": self.rule} if self.rule else {})

    def fingerprint(self) -> str:
        # Shards carry this digest; in those of earlier versions it is of the name that ``uncompressed`` had.
        identity = {key: "none" if value == UNCOMPRESSED else value for key, value in self.identity().items()}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def refuse_other(self, other: Manifest, where: str) -> None:
        """Raise :class:`TraceError` naming what differs, if another run would not record the same rows of the same
        texts.

        A tokenizer that is not the target's own counts too: by its place, which is no part of the fingerprint.
        """
        mine, theirs = (each.identity() | {"tokenizer": _place(each.tokenizer)} for each in (self, other))
        if (self.temperature > 0) != (other.temperature > 0):
            mine, theirs = {"temperature": self.temperature}, {"temperature": other.temperature}
        listed = [
            f"{name}: {mine.get(name)!r}, not {theirs.get(name)!r}"
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        ]
        if listed:
            raise TraceError(f"{where} of another run ({'; '.join(listed)}); choose another folder, or remove it")

    def save(self, folder: Path) -> None:
        MANIFEST.write(folder / MANIFEST_NAME, to_mapping(self))

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read ``manifest.json`` of a run folder."""
        path = folder / MANIFEST_NAME
        if not path.exists():
            raise TraceError(f"{folder} holds no trace (no {MANIFEST_NAME}); record one with `draftgauge profile`")
        values = MANIFEST.read(path)
        try:
            return from_mapping(cls, values, str(path))
        except DraftgaugeError as error:
            raise TraceError(str(error)) from error


def _place(tokenizer: str | None) -> str | None:
    return str(Path(tokenizer).resolve()) if tokenizer and Path(tokenizer).exists() else tokenizer
