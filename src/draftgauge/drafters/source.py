"""Kinds of drafter, registered by name: how each loads, what it needs of its target, how it is recorded and metered.

A new kind is one file or folder in this one: a :class:`~draftgauge.drafters.base.Drafter`, and a :class:`DraftSource`
decorated with :func:`register_drafter`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Generator
from transformers import PreTrainedTokenizerBase

from draftgauge.core.compressions import UNCOMPRESSED
from draftgauge.core.errors import DraftgaugeError, meant
from draftgauge.core.extensions import import_others
from draftgauge.drafters.base import Drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.folder import REFERENCE
from draftgauge.models.taps import TapPlan, Taps
from draftgauge.verification import Sampling

Source = str | Path | None
SHORT_NAMES = {"lookup": "prompt_lookup"}
LANGUAGE_MODEL = "language_model"  # which drafts where no other kind recognises a source


@dataclass(frozen=True)
class LoadOptions:
    """How the models of a pair are loaded; see :func:`~draftgauge.models.loading.load_model`.

    ``compression`` is the target's: a draft model is held in the same half precision, and never quantised.
    """

    compression: str = UNCOMPRESSED
    device: str | torch.device | None = None
    engine: str = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False


class Drafting(NamedTuple):
    """Tokens that end a draft, and how its tokens are drawn: greedily without a sampling."""

    end_tokens: frozenset[int]
    sampling: Sampling | None = None
    generator: Generator | None = None


class DraftSource(ABC):
    """What a pair drafts with, loaded once; each decoded output gets a new drafter from it.

    Attributes:
        name: of the kind, as ``--drafter`` and manifests have it.
        takes: what ``--drafter`` names for this kind, in words; empty if it takes nothing but its name.
        self_describing: the files of a source show that it is of this kind.
        drafter_type: class of its drafters. Whether it is a :class:`~draftgauge.drafters.dense.DraftsEverywhere` or
            :class:`~draftgauge.drafters.dense.DraftsRefused` decides how traces are recorded.
        model: its language model, with which transformers' assisted generation can draft too, or None.
        family, engine: of the network that drafts, for manifests; empty if there is none.
        longest: tokens of a draft at most; None if the context alone limits it.
        context: the longest text in tokens that it drafts for; None if only the target's context limits it.
        tap_plan: the layers of the target whose hidden states, keys or values it reads; None if it reads none.
    """

    name: ClassVar[str]
    takes: ClassVar[str] = ""
    self_describing: ClassVar[bool] = False
    drafter_type: ClassVar[type[Any]]
    model: CachedModel | None = None
    family: str = ""
    engine: str = ""
    longest: int | None = None
    context: int | None = None
    tap_plan: TapPlan | None = None

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        """Whether a source is of this kind, for those that are self-describing."""
        return False

    @classmethod
    def resolve(cls, source: Source) -> Source:
        """The source as this kind takes it; None for a kind that takes none."""
        if not cls.self_describing:
            return None
        if source is None or not cls.recognises(source):
            raise DraftgaugeError(
                f"drafter {cls.name} needs {cls.takes}{'' if source is None else f'; {source} is not one'}"
            )
        return source

    @classmethod
    def trained_for(cls, source: Source) -> str | None:
        """The target that a source itself names; None if it names none."""
        return None

    @classmethod  # noqa: B027 - most kinds have nothing to check
    def check(cls, source: Source, tokenizer: PreTrainedTokenizerBase, options: LoadOptions) -> None:
        """Refuse a source that cannot draft for a target with this tokenizer, before any weights are loaded."""

    @classmethod
    @abstractmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> DraftSource:
        """Load it for a loaded target."""

    @abstractmethod
    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> Drafter:
        """A new drafter; ``taps`` are the target's by ``tap_plan``, None if that is None."""

    def fingerprint(self) -> str | None:
        """Fingerprint of the weights that draft, or of the rule of a drafter without weights, or None."""
        return None


Kind = TypeVar("Kind", bound=type[DraftSource])
_KINDS: dict[str, type[DraftSource]] = {}


def register_drafter(kind: Kind) -> Kind:
    assert kind.name not in _KINDS, f"drafter {kind.name} is registered twice"
    _KINDS[kind.name] = kind
    return kind


@cache
def _import_kinds() -> None:
    package = importlib.import_module("draftgauge.drafters")
    for module in pkgutil.walk_packages(package.__path__, "draftgauge.drafters."):
        importlib.import_module(module.name)
    import_others("draftgauge.drafters")


def drafter_kinds() -> dict[str, type[DraftSource]]:
    _import_kinds()
    return dict(sorted(_KINDS.items()))


def drafter_kind(name: str) -> type[DraftSource]:
    kinds = drafter_kinds()
    if name not in kinds:
        raise DraftgaugeError(f"unknown drafter {name!r}: choose one of {', '.join(kinds)}")
    return kinds[name]


def choose_drafter(drafter: str | Path | None) -> tuple[str, Source]:
    """The name of the kind that is to draft, and the model or folder that it takes.

    ``drafter`` is a kind by name or a source: of the kind that recognises it, else a draft model. None is the bundled
    one.
    """
    kinds, named = drafter_kinds(), SHORT_NAMES.get(str(drafter), REFERENCE if drafter is None else drafter)
    if str(named) in kinds:
        return str(named), kinds[str(named)].resolve(None)
    for kind in kinds.values():
        if kind.recognises(named):
            return kind.name, named
    if "/" not in str(named) and named != REFERENCE and not Path(named).exists():
        names = ", ".join(kind.name for kind in kinds.values() if not kind.takes)
        sources = " or ".join(kind.takes for kind in kinds.values() if kind.takes)
        alike = meant(named, (REFERENCE, *kinds, *SHORT_NAMES))
        raise DraftgaugeError(f"unknown drafter {str(named)!r}: {alike}choose {names}, or give {sources}")
    return LANGUAGE_MODEL, kinds[LANGUAGE_MODEL].resolve(named)
