"""What a drafter is: it follows the committed text and proposes what comes next.

Kinds of drafter are registered by name: how each loads, what it needs of its target, how it is recorded and metered. A
new kind is one file or folder in this one: a :class:`Drafter`, and a :class:`DraftSource` decorated with
:func:`register_drafter`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Generator, Tensor
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError, meant
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.models.base import CachedModel
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.folder import BUNDLED, REFERENCE
from draftgauge.models.taps import TapPlan, Taps
from draftgauge.policies.base import DropsLast, Extends, Policy, Signal, import_others
from draftgauge.verification import Sampling

KeepDrafting = Callable[[Signal], bool]


class Draft(NamedTuple):
    """Proposed tokens.

    Attributes:
        probabilities: ``[drafted, vocabulary]`` float32, the distributions the tokens were *sampled from*, which
            accepting sampled tokens needs. None for greedy drafting, and one-hot for drafters without a distribution.
        signals: one per drafted token; empty if the drafter was not asked after each token.
        appended: how many of the tokens, the last ones, a policy looked up in the text
            (:class:`~draftgauge.policies.base.Extends`); they have neither distribution nor signal.
        dropped: how many drafted tokens a policy dropped (:class:`~draftgauge.policies.base.DropsLast`): they are no
            longer among ``tokens``, but have a signal.

    A drafter itself returns 0 for ``appended`` and ``dropped``.
    """

    tokens: list[int]
    probabilities: Tensor | None = None
    signals: Sequence[Signal] = ()
    appended: int = 0
    dropped: int = 0

    @property
    def kept(self) -> int:
        return len(self.tokens) - self.appended

    @property
    def drafted(self) -> int:
        """Tokens that the drafter drafted, dropped ones included."""
        return self.kept + self.dropped


class UnreadDraft(NamedTuple):
    """Proposed tokens ``[g]`` int64, at least one, still on the device; those after an end token are ignored.

    ``probabilities`` are as of :class:`Draft`, ``[g, vocabulary]``.
    """

    tokens: Tensor
    probabilities: Tensor | None = None


class Drafter(Protocol):
    """Follows one sequence: ``prefill``, then ``propose`` and ``commit`` in turn."""

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence with the prompt's tokens."""

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Draft up to ``limit`` tokens after the committed text, fewer after an end token.

        ``keep_drafting`` is asked after each token except the last possible one. With None the draft goes up to the
        limit and has no signals, which saves computing them and, on an accelerator, waiting for each token. Signals
        hold what ``reads`` names; other values are NaN, and -1 for the token.
        """

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """The step committed ``tokens``: ``accepted`` drafted ones, then looked-up ones and the target's own."""


@runtime_checkable
class DraftsUnread(Protocol):
    """A drafter whose tokens can stay on the device until the step is over, if no policy reads their signals."""

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        """Draft ``limit`` tokens; None where ``propose`` must be called instead."""


@runtime_checkable
class CatchesUp(Protocol):
    """A drafter that must process the committed tokens it has not seen yet (its backlog) before it can propose.

    The backlog follows from the steps before, so replay can charge for it.
    """

    def keeps_drafted(self) -> bool:
        """Whether accepted tokens stay in its cache from drafting, and are not processed again."""

    def backlog(self) -> int:
        """Committed tokens that it must process before the next proposal."""


@runtime_checkable
class RunsModel(Protocol):
    model: CachedModel


@runtime_checkable
class Records(Protocol):
    """A drafter that records what it runs."""

    def record_passes(self, most: int, longest: int) -> None:
        """Record what drafts of up to ``most`` tokens run in texts of up to ``longest``."""


def record_passes(target: CachedModel, drafter: Drafter | None, gamma_max: int, longest: int) -> None:
    """Record on a GPU what steps with drafts of up to ``gamma_max`` tokens run, before something is timed.

    The caches are empty afterwards.
    """
    for model in (target, drafter.model if isinstance(drafter, RunsModel) else None):
        if isinstance(model, StaticModel):
            model.record(gamma_max + 1, longest)
    if isinstance(drafter, Records):
        drafter.record_passes(gamma_max, longest)


def completed(policy: Policy, draft: Draft, asked: int, room: int) -> Draft:
    """The draft that the target verifies.

    The policy may drop its last token (:class:`~draftgauge.policies.base.DropsLast`), and append tokens that it looks
    up in the text (:class:`~draftgauge.policies.base.Extends`). It has seen the first ``asked`` signals while drafting.
    At most ``room`` tokens may be proposed in all.
    """
    for signal in draft.signals[asked:]:
        policy.keep_drafting(signal)  # the drafter ended the draft; the policy still sees its last token
    tokens = draft.tokens
    drops = isinstance(policy, DropsLast) and bool(tokens) and draft.probabilities is None and policy.drops_last()
    kept = tokens[:-1] if drops else tokens
    room -= len(kept)
    appended = list(policy.extend(room))[:room] if room > 0 and isinstance(policy, Extends) else []
    if not drops and not appended:
        return draft
    return Draft([*kept, *appended], draft.probabilities, draft.signals, len(appended), int(drops))


def device_of(drafter: Drafter, default: torch.device) -> torch.device:
    return drafter.model.spec.device if isinstance(drafter, RunsModel) else default


def keeps_drafted(drafter: Drafter) -> bool:
    return drafter.keeps_drafted() if isinstance(drafter, CatchesUp) else True


def backlog_of(drafter: Drafter) -> int:
    return drafter.backlog() if isinstance(drafter, CatchesUp) else 0


Source = str | Path | None
SHORT_NAMES = {"lookup": "prompt_lookup"}
LANGUAGE_MODEL = "language_model"  # which drafts where no other kind recognises a source


@dataclass(frozen=True)
class LoadOptions:
    """How models of a pair are loaded (:func:`~draftgauge.models.loading.load_model`), and where the ``target`` lies.

    ``compression`` is the target's: a draft model is held in the same half precision, and never quantised.
    """

    compression: str = UNCOMPRESSED
    device: str | torch.device | None = None
    engine: str = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False
    target: str = ""


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
    if named in BUNDLED:
        return LANGUAGE_MODEL, kinds[LANGUAGE_MODEL].resolve(named)
    for kind in kinds.values():
        if kind.recognises(named):
            return kind.name, named
    if "/" not in str(named) and not Path(named).exists():
        short = {kind: name for name, kind in SHORT_NAMES.items()}
        names = ", ".join(short.get(kind.name, kind.name) for kind in kinds.values() if not kind.takes)
        sources = " or ".join(kind.takes for kind in kinds.values() if kind.takes)
        alike = meant(named, (REFERENCE, *kinds, *SHORT_NAMES))
        raise DraftgaugeError(f"unknown drafter {str(named)!r}: {alike}choose {names}, or give {sources}")
    return LANGUAGE_MODEL, kinds[LANGUAGE_MODEL].resolve(named)
