"""What the parts of a step cost on one machine, measured, for one pair, compression and device."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import TraceError
from draftgauge.core.files import atomic_write_text
from draftgauge.core.signals import DISTRIBUTION, NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.traces.batch_costs import BatchCosts
from draftgauge.traces.checks import are_seconds

CostTable = tuple[tuple[float, ...], ...]

TABLES = ("verify", "verify_low", "verify_high", "draft", "draft_low", "draft_high")
VERSION = 2
LEVEL = 0.01
"""A drafted token that costs less than minus this share of a verified one was not measured; one looked up costs nearly
nothing.
"""
VAGUE = 0.15
"""Half widths of a step's interval above this say that measuring was too short or the machine too busy."""
APART = 1.4
"""So do plain decoding and verifying one token that differ by more than this factor."""
"""Version of the format. Files of version 1, which name none, priced all signals together."""


@dataclass(frozen=True)
class SignalSeconds:
    """What signals cost in seconds: for each drafted token, but for the last two.

    Attributes:
        asking: handing a drafted token to the policy and asking whether to go on, whatever signals it reads. On an
            accelerator this is the wait for the device. A policy that reads text pays this and nothing else.
        distribution: the drafter's probabilities, shared by the three signals that take them.
        confidence, entropy, margin: each of them, once the probabilities are there.
        target_entropy: of the target's distribution behind the last committed token, for each step.
        first: how many later tokens' signals those of a step's first token cost beyond their own: the code that
            computes them has left the processor's caches while the target ran.
    """

    asking: float = 0.0
    distribution: float = 0.0
    confidence: float = 0.0
    entropy: float = 0.0
    margin: float = 0.0
    target_entropy: float = 0.0
    first: float = 0.0

    def of_draft(self, reads: Reads, gamma: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Seconds that reading these signals adds to drafts of ``gamma`` tokens."""
        tokens = np.asarray(gamma, np.float64)
        seconds: NDArray[np.float64] = self.of_token(reads) * (tokens + self.first * (tokens > 0))
        return seconds

    def of_token(self, reads: Reads) -> float:
        """Seconds that reading these signals adds to each drafted token but a step's first."""
        seconds = self.asking if reads & OF_DRAFTED_TOKENS else 0.0
        seconds += self.distribution if reads & DISTRIBUTION else 0.0
        return seconds + float(sum(getattr(self, name) for name in DISTRIBUTION & reads))

    def of_step(self, reads: Reads) -> float:
        """Seconds that each step takes longer for such a policy, however many tokens it drafts."""
        return self.target_entropy if SignalName.TARGET_ENTROPY in reads else 0.0


@dataclass(frozen=True)
class PolicySeconds:
    """What a policy takes to decide, in seconds.

    Attributes:
        policy: its registered name.
        token: for each drafted token that it is asked about.
        step: for each step besides.
        reading: for each token of the prompt.
    """

    policy: str
    token: float
    step: float
    reading: float = 0.0


@dataclass(frozen=True)
class RepeatSeconds:
    """What a step takes less, in seconds, where it drafts and verifies as many tokens as the step before it.

    On a processor, passes over another number of tokens than the last time find other code and other buffers, whatever
    the number; only the first step of a new length takes longer.

    Attributes:
        plain: a step that proposes nothing, after another one.
        proposing: one that proposes tokens, drafted or looked up in the text.
    """

    plain: float = 0.0
    proposing: float = 0.0


@dataclass(frozen=True)
class Uncertainty:
    """How sure a cost curve is: how it was measured, and what that leaves open.

    Attributes:
        seconds: that measuring took.
        samples: ``[G + 1]`` timed steps of each draft length, over all contexts.
        half_widths: ``[G + 1]`` half of the 95% interval of a whole step's seconds, as a share of them.
        undecided: chances of acceptance (the same at every depth) at which another draft length than the one that looks
            best could still be more than 2% faster; empty where the curve settles the advice.
    """

    seconds: float
    samples: tuple[int, ...]
    half_widths: tuple[float, ...]
    undecided: tuple[float, ...]


@dataclass(frozen=True)
class CostCurve:
    """Measured seconds of the parts of a step, by context length.

    ``C`` is the number of measured context lengths, ``G`` is ``gamma_max``. Each table has its medians and its lower
    and upper quartiles, all ``[C, columns]``.

    Attributes:
        contexts: ``[C]`` context lengths in tokens, increasing.
        verify: ``[C, G + 1]``; column ``k - 1`` is the target's pass over ``k`` tokens, reading off its choices and
            rolling back.
        draft: ``[C, G + 1]``; column ``n`` is proposing ``n`` tokens (column 0 is 0).
        overhead: seconds a step spends outside drafting and verifying (committing, the policy).
        plain: ``[C]`` seconds of one step of plain decoding.
        compression, device, dtype: what was measured on.
        signals: what each signal adds for the policies that read it.
        repeat: what a step takes less where the one before it proposed as much; the tables are of steps after others.
        catch_up: ``[K]`` what proposing takes longer where the drafter has 1, 2, ... ``K`` committed tokens to take in
            first, over 1; the last stands for all more. Empty where it makes no difference.
        keeps_drafted: whether the drafter keeps what it has taken in of its own accepted tokens, as a language model
            does, or takes in every committed token anew, as drafters do that read the target; see
            :meth:`backlog_after`.
        vocabulary: of the pair, see :func:`draftgauge.models.vocabulary.vocabulary_digest`; empty where it is not
            known. Policies that know tokens by their ids check that they mean the same ones.
        uncertainty: how sure the curve is; None where it was not measured as a whole.
        batched: what passes of several requests together take; None where that was not measured.
        decisions: what policies took to decide in the live loop, those that have their decisions timed.
    """

    contexts: tuple[int, ...]
    verify: CostTable
    verify_low: CostTable
    verify_high: CostTable
    draft: CostTable
    draft_low: CostTable
    draft_high: CostTable
    overhead: float
    plain: tuple[float, ...]
    compression: str
    device: str
    dtype: str
    signals: SignalSeconds = SignalSeconds()
    catch_up: tuple[float, ...] = ()
    repeat: RepeatSeconds = RepeatSeconds()
    keeps_drafted: bool = True
    vocabulary: str = ""
    uncertainty: Uncertainty | None = None
    version: int = VERSION
    batched: BatchCosts | None = None
    decisions: tuple[PolicySeconds, ...] = ()

    @property
    def gamma_max(self) -> int:
        """The longest draft measured."""
        return len(self.draft[0]) - 1

    def step_seconds(
        self,
        gamma: NDArray[np.int64] | int,
        context: NDArray[np.int64] | int,
        reads: Reads = NO_SIGNALS,
        appended: NDArray[np.int64] | int = 0,
    ) -> NDArray[np.float64]:
        """Modelled seconds of steps that draft ``gamma`` tokens at a context length, interpolated linearly, where the
        drafter has one committed token to take in and the step before proposed otherwise; :meth:`catch_up_seconds` says
        what more tokens add, :meth:`repeat_seconds` what a step like the one before it saves.

        Args:
            gamma: draft lengths, 0..gamma_max, any shape.
            context: context lengths in tokens, broadcast against ``gamma``; beyond the measured range the nearest
                counts.
            reads: the signals that the policy reads.
            appended: tokens looked up in the text, which are verified and not drafted, less drafted ones that are not
                verified; broadcast likewise.

        Raises:
            TraceError: if a draft length was not measured, for drafting or, with the appended tokens, for verifying.
        """
        gamma_, context_, appended_ = np.broadcast_arrays(
            np.asarray(gamma, np.int64), np.asarray(context, np.float64), np.asarray(appended, np.int64)
        )
        verified = gamma_ + appended_
        if gamma_.size and (int(verified.max()) > self.gamma_max or min(int(gamma_.min()), int(verified.min())) < 0):
            least = min(int(gamma_.min()), int(verified.min()))
            asked = least if least < 0 else int(verified.max())
            raise TraceError(
                f"the cost curve was measured for gamma 0..{self.gamma_max}, asked for {asked}: profile with a "
                "larger gamma_max"
            )
        draft, verify = np.asarray(self.draft), np.asarray(self.verify) + self.overhead
        nodes = np.asarray(self.contexts, np.float64)
        node = np.interp(context_, nodes, np.arange(len(nodes)))  # clamped to the ends
        below = np.floor(node).astype(np.int64)
        above = np.minimum(below + 1, len(nodes) - 1)
        share = node - below
        seconds: NDArray[np.float64] = (1 - share) * (draft[below, gamma_] + verify[below, verified])
        seconds = seconds + share * (draft[above, gamma_] + verify[above, verified])
        return seconds + self.signals.of_draft(reads, gamma_) + self.signals.of_step(reads)

    @property
    def backlog_max(self) -> int:
        """The most tokens to take in that are told apart, at least 1."""
        return max(1, len(self.catch_up))

    def backlog_after(
        self, backlog: NDArray[np.int64] | int, drafted: NDArray[np.int64] | int, accepted: NDArray[np.int64] | int
    ) -> NDArray[np.int64]:
        """How many committed tokens the drafter has to take in after a step, at most ``backlog_max``.

        A step that drafts takes in what there was and leaves the target's own token and, of the accepted ones, those
        that the drafter has not taken in while drafting: the last one after a full acceptance where it keeps them, else
        all. A step that drafts nothing leaves what there was and all that it commits.

        Args:
            backlog: before the step.
            drafted, accepted: tokens of the step, the accepted ones with those that were looked up in the text; all
                broadcast.
        """
        kept = np.minimum(accepted, np.asarray(drafted) - 1) if self.keeps_drafted else 0
        after = np.where(np.asarray(drafted) > 0, accepted + 1 - kept, np.asarray(backlog) + accepted + 1)
        return np.minimum(after, self.backlog_max).astype(np.int64)

    def catch_up_seconds(
        self, backlog: NDArray[np.int64] | int, drafted: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """Seconds that a backlog adds to steps, over one of a single token; 0 where nothing is drafted."""
        added = np.asarray(self.catch_up or (0.0,))[np.minimum(backlog, self.backlog_max) - 1]
        return np.where(np.asarray(drafted) > 0, added, 0.0)

    def repeat_seconds(
        self, drafted: NDArray[np.int64] | int, appended: NDArray[np.int64] | int = 0
    ) -> NDArray[np.float64]:
        """What steps take less that draft and verify as many tokens as the step before them; arguments as of
        :meth:`step_seconds`."""
        proposes = np.add(drafted, appended) > 0
        return np.where(proposes, self.repeat.proposing, self.repeat.plain)

    def fixed_seconds(self, gamma: NDArray[np.int64] | int, context: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Modelled seconds of a step among others that all draft as many tokens, with one token to take in."""
        return self.step_seconds(gamma, context) - self.repeat_seconds(gamma)

    def deciding(self, policy: str) -> tuple[float, float, float] | None:
        """Seconds that a policy takes to decide: a drafted token, a step, a prompt token; None if not measured."""
        decision = next((each for each in self.decisions if each.policy == policy), None)
        return None if decision is None else (decision.token, decision.step, decision.reading)

    def doubt(self) -> str:
        """Why a measured curve is not to be trusted, as one of a busy machine; empty where nothing speaks against it.

        Plain decoding and verifying one token are nearly the same pass, timed apart.
        """
        if self.uncertainty is None:
            return ""
        if self.cost_ratio() < -LEVEL:
            return "longer drafts were not measured to take longer"
        widest = max(self.uncertainty.half_widths)
        if widest > VAGUE:
            return f"a step's seconds are known to within {widest:.0%} only"
        apart = max((p / v[0] for p, v in zip(self.plain, self.verify, strict=True)), key=lambda r: abs(math.log(r)))
        if not 1 / APART <= apart <= APART:
            return f"plain decoding was measured at {apart:.2f} times verifying one token, nearly the same pass"
        return ""

    def cost_ratio(self) -> float:
        """Seconds of one more drafted token over those of verifying one, at the median context."""
        row = len(self.contexts) // 2
        lengths, seconds = np.arange(1, self.gamma_max + 1), self.draft[row][1:]
        per_token = float(np.polyfit(lengths, seconds, 1)[0]) if self.gamma_max > 1 else seconds[0]
        return per_token / self.verify[row][0]

    def of_batches(self, largest: int = 1) -> BatchCosts:
        """The costs of passes over up to ``largest`` requests together.

        Raises:
            TraceError: if that was not measured.
        """
        if self.batched is None or self.batched.largest < largest:
            measured = "single requests" if self.batched is None else f"batches of 1 to {self.batched.largest}"
            raise TraceError(
                f"the costs were measured for {measured}, asked for batches of {largest}: run `draftgauge profile "
                f"--batches ...,{largest}` with the same folder"
            )
        return self.batched

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first field whose shape or values cannot be."""
        contexts, columns = len(self.contexts), self.gamma_max + 1 if self.draft else 0
        if contexts < 1 or self.contexts[0] < 0 or any(later <= earlier for earlier, later in pairwise(self.contexts)):
            raise TraceError(f"contexts must be increasing lengths, at least one, not {list(self.contexts)}")
        if columns < 2:
            raise TraceError("draft must have the columns 0..gamma_max, with gamma_max at least 1")
        for name in TABLES:
            table = getattr(self, name)
            if len(table) != contexts or any(len(row) != columns for row in table):
                raise TraceError(f"{name} must have {contexts} rows (contexts) of {columns} columns (gamma_max + 1)")
        if len(self.plain) != contexts:
            raise TraceError(f"plain must have {contexts} values (contexts), not {len(self.plain)}")
        positive = {name: np.asarray(getattr(self, name)) for name in (*TABLES, "plain")}
        for name in TABLES[3:]:
            positive[name] = positive[name][:, 1:]  # proposing nothing takes no time
        for name, seconds in positive.items():
            if not are_seconds(seconds, positive=True):
                raise TraceError(f"{name} must be seconds greater than 0")
        numbers = {"overhead": self.overhead, **to_mapping(self.signals)}
        numbers |= {f"repeat.{name}": value for name, value in to_mapping(self.repeat).items()}
        for name, value in numbers.items():
            if not are_seconds(value):
                raise TraceError(f"{name} must be seconds, 0 or more, not {value}")
        if (least := float(np.min(self.verify)) + self.overhead) <= max(self.repeat.plain, self.repeat.proposing):
            raise TraceError(f"repeat must be less than a step's {least:g} seconds")
        if not are_seconds(self.catch_up) or any(self.catch_up[:1]):
            raise TraceError(f"catch_up must be seconds, 0 or more, the first of them 0, not {list(self.catch_up)}")
        for each in self.decisions:
            if not are_seconds((each.token, each.step, each.reading)):
                raise TraceError(f"decisions of {each.policy} must be seconds, 0 or more")
        if self.batched is not None:
            self.batched.validate()
        for name in ("verify", "draft"):
            low, middle, high = (np.asarray(getattr(self, name + end)) for end in ("_low", "", "_high"))
            if not ((low <= middle) & (middle <= high)).all():
                raise TraceError(f"{name} must lie between {name}_low and {name}_high")

    def save(self, path: Path) -> None:
        """Write as JSON, atomically.

        Raises:
            DraftgaugeError: if the file cannot be written.
        """
        atomic_write_text(path, json.dumps(to_mapping(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> CostCurve:
        """Read what :meth:`save` wrote.

        Raises:
            TraceError: if the file is missing or is not a cost curve that could have been measured.
        """
        again = "run `draftgauge profile` again"
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            _check_version(entry)
            curve = from_mapping(cls, entry, "cost curve")
            curve.validate()
        except OSError as error:
            raise TraceError(f"cannot read the cost curve {path} ({error.strerror}); {again}") from error
        except ValueError as error:  # not JSON, or as from_mapping and validate
            raise TraceError(f"{path} is not a cost curve: {error}; {again}") from error
        return curve


def _check_version(entry: object) -> None:
    """Raise :class:`TraceError` for what an earlier or later version measured."""
    version = entry.get("version", 1) if isinstance(entry, dict) and "contexts" in entry else VERSION
    if version != VERSION:
        raise TraceError(
            f"its format is {version}, this draftgauge reads format {VERSION}, which prices each signal by itself"
        )
