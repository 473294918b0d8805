"""The cost curve: what the parts of a step cost for one pair, compression, engine and device, measured.

Steps of single requests, and of batches whose requests take every step together. What a pass costs by the length of the
texts is a law, fitted and extended: ``f(tokens) + c * sum of context lengths``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import map_coordinates

from draftgauge.core.artefacts import Artefact
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.parts import Compression
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads

BatchTable = tuple[tuple[tuple[float, ...], ...], ...]
Counts = NDArray[np.int64] | int
Floats = NDArray[np.float64]
Numbers = NDArray[np.float64] | NDArray[np.int64] | float


@dataclass(frozen=True)
class BatchCosts:
    """Seconds of the parts of a step that several requests take together, interpolated linearly between the measured
    batch sizes, context lengths and tokens a request.

    Attributes:
        batches: ``[B]`` requests at once, increasing from 1.
        contexts: ``[C]`` tokens of the longest request, increasing; outside them the nearest counts.
        verify: ``[B, C, G + 1]``; column ``k - 1`` is a step that verifies ``k`` tokens of every request.
        draft: ``[B, C, K]``; column ``k - 1`` is a pass of the drafter over ``k`` tokens of every request; the last
            stands for all more.
        signals: ``[B]`` what a pass of the drafter takes longer where a policy looks at its tokens.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    verify: BatchTable
    draft: BatchTable
    signals: tuple[float, ...]

    @property
    def gamma_max(self) -> int:
        return len(self.verify[0][0]) - 1

    @property
    def largest(self) -> int:
        return self.batches[-1]

    def verify_seconds(self, batch: Numbers, tokens: Numbers, context: Numbers) -> NDArray[np.float64]:
        """Seconds of steps that verify ``tokens`` tokens of ``batch`` requests together and draft none."""
        each = np.asarray(tokens, np.float64) / batch
        if each.size and (each.min() < 1 or each.max() > self.gamma_max + 1):
            raise TraceError(
                f"costs were measured for 1 to {self.gamma_max + 1} tokens a request, asked for {float(each.max()):g}: "
                "profile with a larger gamma_max"
            )
        return self._interpolated(self.verify, batch, each, context)

    def draft_seconds(self, batch: Numbers, tokens: Numbers, context: Numbers) -> NDArray[np.float64]:
        return self._interpolated(self.draft, batch, np.asarray(tokens, np.float64) / batch, context)

    def signal_seconds(self, batch: Numbers) -> NDArray[np.float64]:
        return np.asarray(np.interp(batch, self.batches, self.signals))

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first field whose shape or values cannot be."""
        for name in ("batches", "contexts"):
            values = getattr(self, name)
            if not values or values[0] < 1 or any(later <= earlier for earlier, later in pairwise(values)):
                raise TraceError(f"{name} must be increasing numbers from 1 on, at least one, not {list(values)}")
        if self.batches[0] != 1:
            raise TraceError(f"batches must begin with 1, not {self.batches[0]}: drafts end at different lengths")
        for name in ("verify", "draft"):
            table = getattr(self, name)
            widths = {len(row) for each in table for row in each}
            if len(table) != len(self.batches) or any(len(each) != len(self.contexts) for each in table):
                raise TraceError(f"{name} must have a row for each batch size and context length")
            if len(widths) != 1 or not widths.pop():
                raise TraceError(f"{name} must have as many columns everywhere, at least one")
            if not are_seconds(table, positive=True):
                raise TraceError(f"{name} must be seconds greater than 0")
        if len(self.signals) != len(self.batches) or not are_seconds(self.signals):
            raise TraceError("signals must be seconds, 0 or more, one for each batch size")

    def _interpolated(
        self, table: BatchTable, batch: Numbers, each: NDArray[np.float64], context: Numbers
    ) -> NDArray[np.float64]:
        """Linear in batch, context and tokens a request, ``each``."""
        batches, contexts, tokens = np.broadcast_arrays(np.asarray(batch, np.float64), context, each)
        if batches.size and not 1 <= batches.min() <= batches.max() <= self.largest:
            asked = f"asked for {batches.min():g} to {batches.max():g}: profile larger batches"
            raise TraceError(f"costs were measured for batches of 1 to {self.largest}, {asked}")
        row = np.interp(batches, self.batches, np.arange(len(self.batches)))
        return between(table, row, np.interp(contexts, self.contexts, np.arange(len(self.contexts))), tokens - 1)


def between(table: ArrayLike, *places: ArrayLike) -> NDArray[np.float64]:
    """Values of a table at ``places`` along each of its axes, linearly between its entries, and the last one beyond."""
    along = np.broadcast_arrays(*places)
    values = map_coordinates(np.asarray(table), np.reshape(along, (len(along), -1)), order=1, mode="nearest")
    return np.asarray(values.reshape(along[0].shape))


def are_seconds(values: ArrayLike, positive: bool = False) -> bool:
    seconds = np.asarray(values, np.float64)
    return bool((np.isfinite(seconds) & (seconds > 0 if positive else seconds >= 0)).all())


CostTable = tuple[tuple[float, ...], ...]

VERSION = 3
FAR = 1 << 20  # tokens of context that laws of costs are drawn to
MAX_HALF_WIDTH = 0.15  # a step's interval wider than this: measured too briefly, or on a busy machine
MAX_PLAIN_RATIO = 1.4  # plain decoding vs verifying one token, nearly the same pass; beyond this the machine was busy
AGAIN = "run `draftgauge profile` again"
ARTEFACT = Artefact("draftgauge-costs", VERSION, "cost curve", AGAIN, error=TraceError)


@dataclass(frozen=True)
class Measurement:
    """How a cost curve was measured.

    Attributes:
        samples: ``[G + 1]`` timed steps of each draft length, 0 where interpolated.
        half_width: half of the 95% interval of a whole step's seconds, as a share, of the length known worst.
        note: what was left out to keep the time given.
        drafts: ``[G + 1]`` timed drafts of each length, fewer than steps where drafts were filled up; empty if unknown.
    """

    seconds: float
    samples: tuple[int, ...]
    half_width: float
    note: str = ""
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True)
class CostCurve:
    """Seconds of the parts of a step by context length.

    ``C`` is the number of measured context lengths, ``G`` is ``gamma_max``.

    Attributes:
        contexts: ``[C]`` context lengths in tokens, increasing.
        verify: ``[C, G + 1]``; column ``k - 1`` is a step that verifies ``k`` tokens, without drafting: the target's
            pass, reading off its choices, rolling back, committing.
        draft: ``[C, G + 1]``; column ``n`` is proposing ``n`` tokens (column 0 is 0).
        plain: ``[C]`` seconds of one step of plain decoding.
        compression, device, dtype: of the target that was measured.
        signals: what each drafted token takes longer where a policy looks at it before the next one is drafted.
        catch_up: ``[K]`` what drafting takes longer where the drafter must first take in 1, 2, ... ``K`` committed
            tokens, over 1; the last stands for all more. Empty where it makes no difference.
        rollback: ``[K]`` what rolling recurrent states back takes where 1, 2, ... ``K`` tokens of a pass are kept and
            others are not; the last stands for all more. Empty of attention, whose cache is cropped.
        keeps_drafted: whether the drafter keeps what it has taken in of its own accepted tokens, as a language model
            does. Drafters that read the target take in every committed token anew.
        vocabulary: of the pair, see :func:`draftgauge.models.tokenizer.vocabulary_digest`; empty if not known.
        pair: fingerprints of target and drafter, ``engine``: of the target; empty if not known.
        experts: of a mixture of experts, how many different ones a layer reads on average to verify 1, 2, ... tokens;
            empty where not counted.
        peak_memory_gib: most memory in use from loading the pair on, libraries and caches among it; None if not known.
    """

    contexts: tuple[int, ...]
    verify: CostTable
    draft: CostTable
    plain: tuple[float, ...]
    compression: Compression
    device: str
    dtype: str
    signals: float = 0.0
    catch_up: tuple[float, ...] = ()
    rollback: tuple[float, ...] = ()
    keeps_drafted: bool = True
    vocabulary: str = ""
    pair: str = ""
    engine: str = ""
    measured: Measurement | None = None
    batched: BatchCosts | None = None
    experts: tuple[float, ...] = ()
    peak_memory_gib: float | None = None

    def __repr__(self) -> str:
        held = f"compression={self.compression!r}, engine={self.engine!r}, device={self.device!r}"
        return f"CostCurve(contexts={self.contexts}, gamma_max={self.gamma_max}, {held})"

    @property
    def gamma_max(self) -> int:
        return len(self.draft[0]) - 1

    def verify_seconds(self, tokens: Counts, context: Counts) -> NDArray[np.float64]:
        return self._interpolated(self.verify, np.asarray(tokens, np.int64) - 1, context)

    def draft_seconds(self, tokens: Counts, context: Counts) -> NDArray[np.float64]:
        return self._interpolated(self.draft, np.asarray(tokens, np.int64), context)

    def step_seconds(
        self, gamma: Counts, context: Counts, reads: Reads = NO_SIGNALS, appended: Counts = 0
    ) -> NDArray[np.float64]:
        """Seconds of a step: ``draft(gamma) + verify(gamma + appended + 1)``. A policy that reads signals of drafted
        tokens waits for each of them. :meth:`catch_up_seconds` and :meth:`rollback_seconds` come on top.

        Args:
            gamma: draft lengths, 0..gamma_max, any shape.
            context: context lengths in tokens, broadcast.
            appended: tokens looked up in the text, which are verified and not drafted, less drafted ones that are not
                verified; broadcast.
        """
        drafted = np.asarray(gamma, np.int64)
        seconds = self.draft_seconds(drafted, context) + self.verify_seconds(drafted + appended + 1, context)
        return seconds + self.signals * drafted if reads & OF_DRAFTED_TOKENS else seconds

    def _interpolated(self, table: CostTable, column: NDArray[np.int64], context: Counts) -> NDArray[np.float64]:
        if column.size and not (int(column.min()) >= 0 and int(column.max()) <= self.gamma_max):
            asked = int(column.min()) if column.min() < 0 else int(column.max())
            raise TraceError(
                f"the cost curve was measured for gamma 0..{self.gamma_max}, asked for {asked}: profile with a "
                "larger gamma_max"
            )
        return between(table, np.interp(context, self.contexts, np.arange(len(self.contexts))), column)

    @property
    def backlog_max(self) -> int:
        return max(1, len(self.catch_up))

    def backlog_after(self, backlog: Counts, drafted: Counts, accepted: Counts) -> NDArray[np.int64]:
        kept = np.minimum(accepted, np.asarray(drafted) - 1) if self.keeps_drafted else 0
        after = np.where(np.asarray(drafted) > 0, accepted + 1 - kept, np.asarray(backlog) + accepted + 1)
        return np.minimum(after, self.backlog_max).astype(np.int64)

    def catch_up_seconds(self, backlog: Counts, drafted: Counts) -> NDArray[np.float64]:
        added = np.asarray(self.catch_up or (0.0,))[np.minimum(backlog, self.backlog_max) - 1]
        return np.where(np.asarray(drafted) > 0, added, 0.0)

    def rollback_seconds(self, proposed: Numbers, accepted: Numbers) -> NDArray[np.float64]:
        """What a step takes longer where some of the tokens proposed are rejected."""
        longest = max(1, len(self.rollback))
        seconds = np.asarray(self.rollback or (0.0,))[np.minimum(np.asarray(accepted, np.int64), longest - 1)]
        return np.where(np.asarray(accepted) < proposed, seconds, 0.0)

    def doubt(self) -> str:
        """Why a measured curve is not to be trusted, as one of a busy machine; empty if nothing speaks against it."""
        if self.measured is None:
            return ""
        if self.measured.half_width > MAX_HALF_WIDTH:
            return f"a step's seconds are known to within {self.measured.half_width:.0%} only"
        apart = max((p / v[0] for p, v in zip(self.plain, self.verify, strict=True)), key=lambda r: abs(math.log(r)))
        if not 1 / MAX_PLAIN_RATIO <= apart <= MAX_PLAIN_RATIO:
            return f"plain decoding was measured at {apart:.2f} times verifying one token, nearly the same pass"
        return ""

    def cost_ratio(self) -> float:
        """Drafting one token over verifying one."""
        row = len(self.contexts) // 2
        return self.draft[row][1] / self.verify[row][0]

    def of_batches(self, largest: int = 1) -> BatchCosts:
        """The costs of passes over up to ``largest`` requests together."""
        if self.batched is None or self.batched.largest < largest:
            measured = "single requests" if self.batched is None else f"batches of 1 to {self.batched.largest}"
            raise TraceError(
                f"the costs were measured for {measured}, asked for batches of {largest}: `draftgauge profile "
                f"--batches ...,{largest}` with the same folder measures a run's; a file of an engine has to hold them"
            )
        return self.batched

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first field whose shape or values cannot be."""
        contexts, columns = len(self.contexts), self.gamma_max + 1 if self.draft else 0
        if contexts < 1 or self.contexts[0] < 0 or any(later <= earlier for earlier, later in pairwise(self.contexts)):
            raise TraceError(f"contexts must be increasing lengths, at least one, not {list(self.contexts)}")
        if columns < 2 or any(row[:1] != (0,) for row in self.draft):
            raise TraceError("draft must have the columns 0..gamma_max, with gamma_max at least 1 and 0 in column 0")
        for name in ("verify", "draft"):
            table = getattr(self, name)
            if len(table) != contexts or any(len(row) != columns for row in table):
                raise TraceError(f"{name} must have {contexts} rows (contexts) of {columns} columns (gamma_max + 1)")
        if len(self.plain) != contexts:
            raise TraceError(f"plain must have {contexts} values (contexts), not {len(self.plain)}")
        drafting = np.asarray(self.draft)[:, 1:]  # proposing nothing takes no time
        for name, seconds in (("verify", self.verify), ("draft", drafting), ("plain", self.plain)):
            if not are_seconds(seconds, positive=True):
                raise TraceError(f"{name} must be seconds greater than 0")
        if not are_seconds(self.signals):
            raise TraceError(f"signals must be seconds, 0 or more, not {self.signals}")
        if not are_seconds(self.catch_up) or any(self.catch_up[:1]):
            raise TraceError(f"catch_up must be seconds, 0 or more, the first of them 0, not {list(self.catch_up)}")
        if not are_seconds(self.rollback):
            raise TraceError(f"rollback must be seconds, 0 or more, not {list(self.rollback)}")
        if self.batched is not None:
            self.batched.validate()

    def save(self, path: Path) -> None:
        ARTEFACT.write(path, to_mapping(self))

    @classmethod
    def load(cls, path: Path) -> CostCurve:
        """Read what :meth:`save` wrote."""
        content = ARTEFACT.read(path)
        try:
            curve = from_mapping(cls, content)
            curve.validate()
        except DraftgaugeError as error:
            raise TraceError(f"{path} is not a cost curve: {error}; {AGAIN}") from error
        return curve


@dataclass(frozen=True)
class ContextLaw:
    """Seconds of passes that read every token of their texts once.

    Attributes:
        fixed: ``[groups]`` seconds of each group of passes without any text.
        slope: seconds a token of the texts of all requests together.
        error: the largest deviation of a measured pass from the law, as a share of it.
    """

    fixed: Floats
    slope: float
    error: float

    def seconds(self, texts: ArrayLike) -> Floats:
        """``[groups, ...]`` seconds at sums of context lengths."""
        return self.fixed.reshape(-1, *(1,) * np.ndim(texts)) + self.slope * np.asarray(texts, np.float64)


def fit_law(texts: ArrayLike, seconds: ArrayLike) -> ContextLaw:
    """The law of passes ``[groups, contexts]``, two contexts or more, by least squares with one slope for all groups.

    Args:
        texts: sums of the context lengths of the requests of a pass, broadcast.
        seconds: of the passes.
    """
    y = np.asarray(seconds, np.float64)
    x = np.broadcast_to(np.asarray(texts, np.float64), y.shape)
    apart = x - x.mean(axis=1, keepdims=True)
    slope = max(0.0, float((apart * y).sum() / (apart**2).sum()))  # a longer text is not read in less time
    fixed = (y - slope * x).mean(axis=1)
    return ContextLaw(fixed, slope, float(np.abs((fixed[:, None] + slope * x) / y - 1).max()))


def laws_of(costs: CostCurve) -> tuple[ContextLaw, ContextLaw] | None:
    """Laws of verification, plain decoding in its last group, and of drafting one token; None of a single context."""
    if len(costs.contexts) < 2:
        return None
    verify = np.vstack([np.asarray(costs.verify).T, costs.plain])
    tokens = np.arange(1, costs.gamma_max + 1)
    return fit_law(costs.contexts, verify), fit_law(costs.contexts, np.asarray(costs.draft)[:, 1:].T / tokens[:, None])


def extended(costs: CostCurve) -> CostCurve:
    """The curve with its law beyond the longest context measured; as it is if there is one context only."""
    laws = laws_of(costs)
    if laws is None or costs.contexts[-1] >= FAR:
        return costs
    further, tokens = FAR - costs.contexts[-1], np.arange(costs.gamma_max + 1)
    verify = np.asarray(costs.verify[-1]) + laws[0].slope * further
    draft = np.asarray(costs.draft[-1]) + laws[1].slope * further * tokens
    return replace(
        costs,
        contexts=(*costs.contexts, FAR),
        verify=(*costs.verify, tuple(verify.tolist())),
        draft=(*costs.draft, tuple(draft.tolist())),
        plain=(*costs.plain, costs.plain[-1] + laws[0].slope * further),
    )
