"""What a step costs inside vLLM, measured by a proposer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from draftgauge.drafters.base import Draft
from draftgauge.drafters.rows import Asked
from draftgauge.integrations.vllm import Proposer, Request
from draftgauge.traces.engine_costs import BY_DRAFTGAUGE, EngineCosts, fitted_line

Timings = dict[int, list[float]]  # tokens of a draft -> seconds


class CostProbe(Proposer):
    """Drafts every length from 0 to K in turn, whatever becomes of them, and times the engine around it.

    The costs by batch size are written to ``costs_out`` as they come in, for ``draftgauge advise --costs`` and for the
    policies of the proposer. Plain decoding counts as a step that drafts nothing, which leaves out what speculation
    itself costs the engine. To have that, put the seconds of a step without ``--speculative-config`` into ``plain``.
    """

    WRITE_EVERY = 25
    LEAST = 3  # timings that a length needs to count

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._verify: dict[int, Timings] = {}
        self._draft: dict[int, Timings] = {}
        self._calls = 0
        self._length = 0
        self._stride = next(stride for stride in (5, 3, 2, 1) if math.gcd(stride, self.longest + 1) == 1)
        self._returned: tuple[int, int, float] | None = None  # batch, length, when

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *arguments: Any, **named: Any) -> list[list[int]]:
        started = time.perf_counter()
        batch, decoding = len(sampled_token_ids), all(len(tokens) > 0 for tokens in sampled_token_ids)
        self._length = self._calls * self._stride % (self.longest + 1)
        self._calls += 1
        before = {id(request) for request in self.requests}
        proposals = super().propose(sampled_token_ids, *arguments, **named)
        all_running = all(id(request) in before for request in self.requests)  # no prompt was taken in
        alike = decoding and all(len(draft) == self._length for draft in proposals)
        ended = time.perf_counter()
        if self._returned is not None and decoding and all_running and self._returned[0] == batch:
            _, length, returned = self._returned
            self._verify.setdefault(batch, {}).setdefault(length, []).append(started - returned)
        if alike and all_running:
            self._draft.setdefault(batch, {}).setdefault(self._length, []).append(ended - started)
        if self._calls % self.WRITE_EVERY == 0 and (costs := self.measured()) is not None:
            costs.save(self.options.costs_out)
        self._returned = (batch, self._length, time.perf_counter()) if alike else None
        return proposals

    def ask(self, request: Request) -> Asked:
        return Asked(min(self._length, self.room(request)))

    def completed(self, request: Request, draft: Draft) -> Draft:
        return draft

    def measured(self) -> EngineCosts | None:
        """The costs so far, of the batch sizes timed at two lengths or more; None if there are none."""
        verify = {batch: self._enough(timed) for batch, timed in self._verify.items()}
        draft = {batch: self._enough(timed) for batch, timed in self._draft.items()}
        batches = sorted(b for b in verify if 0 in verify[b] and len(verify[b]) > 1 and len(draft.get(b, {})) > 1)
        if not batches:
            return None
        lines = [fitted_line(verify[batch], self.longest) for batch in batches]
        return EngineCosts(
            engine="vllm",
            batches=tuple(batches),
            plain=tuple(line[0] for line in lines),
            verify=tuple(lines),
            draft=tuple(fitted_line(draft[batch] | {0: [0.0]}, self.longest) for batch in batches),
            drafted_by=BY_DRAFTGAUGE,
            provenance="draftgauge.integrations.vllm_costs.CostProbe",
        )

    def _enough(self, timed: Timings) -> Timings:
        return {length: seconds for length, seconds in timed.items() if len(seconds) >= self.LEAST}
