"""What a step costs in a serving engine, by how many sequences decode together: measured there, or given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from draftgauge.core.artefacts import read_json
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.files import atomic_write_text
from draftgauge.traces.costs import FAR, MAX_PLAIN_RATIO, BatchCosts, CostCurve, CostTable, Measurement, are_seconds

FORMAT = "draftgauge engine costs"
BY_ENGINE, BY_DRAFTGAUGE = "engine", "draftgauge"
MOST_APART = 10  # steps that verify no draft and plain ones: beyond, they are not of one engine or in one unit
LONGEST = 16  # that lines through served lengths reach
MIN_DRAFT = 1e-6  # seconds of drafting a token: a cost must be greater than 0
LOOPS = ("draftgauge", "transformers", "gguf")  # engines in which draftgauge's own loop decodes


@dataclass(frozen=True)
class EngineCosts:
    """Seconds of the parts of a step of an engine, for batches in which all sequences draft alike. The file may be
    written or edited by hand, and so carries no digest.

    Attributes:
        batches: ``[B]`` sequences that decode together, increasing.
        plain: ``[B]`` seconds of a step without speculation.
        verify: ``[B][K + 1]``; column ``k`` is a step that verifies ``k`` drafted tokens of each sequence, all that the
            engine does besides drafting included.
        draft: ``[B][K + 1]``; column ``n`` is drafting ``n`` tokens for each sequence.
        drafted_by: "engine", or "draftgauge" where its proposer drafted: policies run only there.
        context: the length of the texts in tokens, 0 if not known.
        context_seconds, draft_context_seconds: what a further token of one request's text costs a step, and a pass of
            the drafter; 0 if not known. ``context_error`` is the largest deviation from such a law.
        half_width: half of what servers of one setting differ by, as a share of a step; 0 if not known.
    """

    engine: str
    batches: tuple[int, ...]
    plain: tuple[float, ...]
    verify: CostTable
    draft: CostTable
    drafted_by: str = BY_ENGINE
    context: int = 0
    context_seconds: float = 0.0
    draft_context_seconds: float = 0.0
    context_error: float = 0.0
    half_width: float = 0.0
    provenance: str = ""
    format: str = FORMAT
    version: int = 1

    def curve(self, batch: int | None = None) -> CostCurve:
        """The cost curve at a batch size; of the smallest if None."""
        row = 0 if batch is None else self.batches.index(batch)
        plain = min(self.plain[row], self.verify[row][0])  # it does no more than a step without drafts
        contexts, texts = self._contexts(self.context, self.batches[row])
        drafting = [self.draft_context_seconds * n for n in range(len(self.draft[row]))]
        return CostCurve(
            contexts=contexts,
            verify=tuple(tuple(s + self.context_seconds * more for s in self.verify[row]) for more in texts),
            draft=tuple(tuple(s + d * more for s, d in zip(self.draft[row], drafting, strict=True)) for more in texts),
            plain=tuple(plain + self.context_seconds * more for more in texts),
            compression="",  # an engine may serve any checkpoint
            device=self.engine,
            dtype="",
            measured=Measurement(0.0, (), self.half_width) if self.half_width else None,
            batched=self.of_batches() if self.batches[0] == 1 else None,
        )

    def of_batches(self) -> BatchCosts:
        """What passes take in which requests draft and verify different numbers of tokens: by their mean."""
        verify, draft = [], []
        for batch, plain, row, drafted in zip(self.batches, self.plain, self.verify, self.draft, strict=True):
            contexts, texts = self._contexts(max(1, self.context), batch)
            steps, token = (min(plain, row[0]), *row[1:]), max(drafted[-1] / max(1, len(drafted) - 1), 1e-9)
            verify.append(tuple(tuple(s + self.context_seconds * more for s in steps) for more in texts))
            draft.append(tuple((token + self.draft_context_seconds * more,) for more in texts))
        return BatchCosts(self.batches, contexts, tuple(verify), tuple(draft), (0.0,) * len(self.batches))

    def _contexts(self, first: int, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Context lengths that costs are given at, and what texts they add up to beyond the first."""
        if not (self.context_seconds or self.draft_context_seconds):
            return (first,), (0,)
        return (first, FAR), (0, (FAR - first) * batch)

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first field that cannot be."""
        if self.format != FORMAT or self.version != 1:
            raise TraceError(f"format must be {FORMAT!r} and version 1, not {self.format!r} and {self.version}")
        if self.drafted_by not in (BY_ENGINE, BY_DRAFTGAUGE):
            raise TraceError(f"drafted_by must be {BY_ENGINE!r} or {BY_DRAFTGAUGE!r}, not {self.drafted_by!r}")
        if not are_seconds([self.context_seconds, self.draft_context_seconds, self.context_error, self.half_width]):
            raise TraceError("context_seconds, draft_context_seconds, context_error and half_width must be 0 or more")
        if not 0 <= self.context < FAR:
            raise TraceError(f"context must be a length in tokens from 0 to {FAR}, not {self.context}")
        rising = all(later > earlier for earlier, later in pairwise(self.batches))
        if not self.batches or self.batches[0] < 1 or not rising:
            raise TraceError(f"batches must be increasing numbers of sequences, at least one, not {list(self.batches)}")
        for name in ("plain", "verify", "draft"):
            if len(getattr(self, name)) != len(self.batches):
                raise TraceError(f"{name} must have one entry for each of the {len(self.batches)} batches")
        widths = {len(row) for row in (*self.verify, *self.draft)}
        if len(widths) > 1 or min(widths) < 2:
            raise TraceError(f"verify and draft must all have columns 0..K, two or more, not {sorted(widths)} of them")
        for batch, plain, verify in zip(self.batches, self.plain, self.verify, strict=True):
            self.curve(batch).validate()
            if plain * MOST_APART < verify[0] or max(plain, verify[0]) > min(verify) * MAX_PLAIN_RATIO:
                raise TraceError(
                    f"at batch {batch} plain decoding takes {plain:g} s, verifying no draft {verify[0]:g} s and the "
                    f"shortest verification {min(verify):g} s, which contradict each other: give all in seconds, "
                    "measured on the same quiet machine"
                )

    def save(self, path: Path) -> None:
        atomic_write_text(path, json.dumps(to_mapping(self), indent=1) + "\n")


def read_costs(path: Path, engine: str, own: bool = False) -> dict[int, CostCurve]:
    """Cost curves by batch size: of an engine, or where draftgauge's loop decodes (or if ``own``) those of a run."""
    costs = load_engine_costs(path, engine)
    if costs is None and not own and engine not in LOOPS:
        raise TraceError(f"{path} holds what a step costs in draftgauge's own loop, not in {engine}: measure it there")
    return {1: CostCurve.load(path)} if costs is None else {batch: costs.curve(batch) for batch in costs.batches}


def load_engine_costs(path: Path, engine: str) -> EngineCosts | None:
    """Engine costs from a file; None where it holds something else."""
    document = read_json(path, "file of costs", error=TraceError)
    if not isinstance(document, dict) or "batches" not in document:
        return None
    try:
        costs = from_mapping(EngineCosts, document, "engine costs")
        costs.validate()
    except DraftgaugeError as error:
        raise TraceError(f"{path} does not hold the costs of an engine: {error}") from error
    if costs.engine != engine:
        raise TraceError(f"{path} holds the costs of {costs.engine}, not of {engine}: measure them there")
    return costs


def fitted_line(seconds: dict[int, list[float]], gamma_max: int) -> tuple[float, ...]:
    """``[gamma_max + 1]`` medians by number of tokens; numbers that were not timed are interpolated, or extended."""
    seen = sorted(count for count, timings in seconds.items() if timings)
    if len(seen) < 2:
        raise TraceError(f"at least two numbers of tokens must be timed, not {seen or 'none'}")
    medians = [float(np.median(seconds[count])) for count in seen]
    slope = (medians[-1] - medians[-2]) / (seen[-1] - seen[-2])
    inside = np.interp(np.arange(gamma_max + 1), seen, medians)
    beyond = np.maximum(np.arange(gamma_max + 1) - seen[-1], 0) * max(slope, 0.0)
    return tuple((inside + beyond).tolist())


def costs_of_steps(
    engine: str, plain: Sequence[float], steps: Mapping[int, Sequence[float]], draft: Sequence[float] = ()
) -> EngineCosts:
    """Costs of single sequences; lengths between and beyond those served are on lines through their medians.

    Args:
        plain: seconds of a step without speculation, one for each output.
        steps: fixed length -> seconds of a step that drafts and verifies so many tokens, one for each output.
        draft: seconds of a token of the draft model served by itself, which may take longer than one within a step. So
            drafting is at most what a step takes beyond a plain one, and both parts add up to the step. Without it all
            of that counts as drafting, which is right for fixed lengths only.
    """
    if not steps:
        raise TraceError("costs need a server at a fixed length or more: name one, e.g. fixed:4=URL")
    whole = np.array(fitted_line({0: list(plain)} | {n: list(seconds) for n, seconds in steps.items()}, LONGEST))
    beyond = np.maximum.accumulate(np.maximum(whole - whole[0], np.arange(LONGEST + 1) * MIN_DRAFT))
    alone = np.arange(LONGEST + 1) * float(np.median(draft)) if len(draft) else beyond
    verifying = beyond - np.minimum(alone, beyond)
    timed = slice(max(steps) + 1)  # what lies beyond says nothing of the lengths served
    verifying[timed] = np.minimum.accumulate(verifying[timed][::-1])[::-1]  # a pass of more tokens is not shorter
    verifying = np.maximum.accumulate(verifying)
    drafting, verify = beyond - verifying, whole[0] + verifying
    return EngineCosts(
        engine=engine,
        batches=(1,),
        plain=(float(whole[0]),),
        verify=(tuple(verify.tolist()),),
        draft=(tuple(drafting.tolist()),),
        drafted_by=BY_ENGINE,
        provenance=f"servers at fixed lengths {', '.join(map(str, sorted(steps)))}",
    )
