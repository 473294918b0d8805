"""Speculative decoding of a batch whose requests take every step together, each committing what stands of its own.

Acceptance is ragged: a request that had four tokens accepted moves on by five, its neighbour by one. A request that
ends leaves its slot to the next prompt. Decoding is greedy, and every output is that of plain decoding of its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.decoding.clock import seconds
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.stopping import Stopper
from draftgauge.drafters.draft_builder import until_end
from draftgauge.models.device import upload
from draftgauge.models.rows import StaticRows
from draftgauge.policies.base import Signal, Step, asks_after_each_token
from draftgauge.policies.batch import BatchPolicy
from draftgauge.verification import accept_greedy, best_tokens, check_finite
from draftgauge.verification.signals import read_signals

NAN = float("nan")


class Pass(NamedTuple):
    """One pass of a step.

    Attributes:
        kind: of the drafter or of the target.
        rows: requests that took part.
        tokens: that they took in together.
        span: rows of the cache that the pass saw: from the first of them to the last.
        widest: most tokens of one of them.
        context: tokens of the longest of them, before the step.
        signals: whether signals of drafted tokens were computed and read.
        seconds: of the pass, its tokens chosen and, where they are read at once, read.
        records: whether its CUDA graph was recorded in it, once for all passes of its shape.
    """

    kind: Literal["draft", "verify"]
    rows: int
    tokens: int
    span: int
    widest: int
    context: int
    signals: bool
    seconds: float
    records: bool = False

    @property
    def gap(self) -> int:
        """Rows between the first and the last that take no part."""
        return self.span - self.rows

    @property
    def padded(self) -> int:
        """Places of attention that no token fills: every row of the span is as wide as the widest."""
        return self.span * self.widest - self.tokens


@dataclass
class BatchOutput:
    """What became of one prompt.

    Attributes:
        prompt: its place in the list of prompts.
        tokens: committed.
        steps: in order.
        finished: False where decoding ended before the output did.
    """

    prompt: int
    tokens: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished: bool = False


@dataclass
class BatchRun:
    """What a batch did.

    Attributes:
        outputs: in the order in which their prompts began.
        seconds: ``[steps]`` of every step; taking in prompts is not part of it.
        passes: of every step, if they were timed; else empty.
    """

    outputs: list[BatchOutput] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    passes: list[list[Pass]] = field(default_factory=list)

    @property
    def committed(self) -> int:
        """Tokens of all outputs."""
        return sum(len(output.tokens) for output in self.outputs)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens over seconds of decoding."""
        return self.committed / sum(self.seconds)


class BatchPlan(NamedTuple):
    """How a batch is decoded.

    Attributes:
        batch: requests at once.
        gamma_max: longest draft.
        drain: go on until every output has ended; else stop where a slot finds no further prompt, so that every step
            is of a full batch.
        timed: time every pass; on an accelerator this waits for it each time.
    """

    batch: int
    gamma_max: int
    drain: bool = True
    timed: bool = False


@torch.inference_mode()
def batched_decode(
    target: StaticRows,
    draft: StaticRows,
    policy: BatchPolicy,
    prompts: Sequence[list[int]],
    settings: DecodingSettings,
    plan: BatchPlan,
) -> BatchRun:
    """Decode prompts in batches, greedily.

    Args:
        target, draft: with at least ``plan.batch`` rows each, and room for the longest prompt and its output.
        policy: how far to draft.
        prompts: token ids; each takes the first slot that becomes free.
        settings: limit, end tokens and what else ends an output.
        plan: how many at once, and until when.

    Raises:
        DraftgaugeError: if sampling is asked for, a prompt is empty or longer than there is room for, or there are no
            prompts.
    """
    if not settings.sampling.greedy:
        raise DraftgaugeError("batches are decoded greedily: leave out the temperature")
    if plan.batch < 1 or not prompts:
        raise DraftgaugeError("a batch needs at least one request and one prompt")
    room = min(target.capacity, draft.capacity) - settings.max_new_tokens
    long = [index for index, prompt in enumerate(prompts) if not 0 < len(prompt) <= room]
    if long:
        raise DraftgaugeError(
            f"prompt {long[0]} has {len(prompts[long[0]])} tokens, and the batch has room for 1 to {room} beside "
            f"max_new_tokens {settings.max_new_tokens}"
        )
    return _BatchLoop(target, draft, policy, settings, plan).run(prompts)


class _Request:
    """One request in its slot: the text so far, and where its output ends."""

    def __init__(self, prompt: list[int], settings: DecodingSettings, output: BatchOutput) -> None:
        self.text = list(prompt)
        self.stopper = Stopper(settings)
        self.output = output


class _Drafted(NamedTuple):
    """One pass of the drafter: the slots that took part, and the tokens ``[n]`` that they drafted."""

    slots: list[int]
    tokens: Tensor


class _BatchLoop:
    """Between steps the target's rows hold each text but for its last token."""

    def __init__(
        self, target: StaticRows, draft: StaticRows, policy: BatchPolicy, settings: DecodingSettings, plan: BatchPlan
    ) -> None:
        self.target, self.draft, self.policy = target, draft, policy
        self.settings, self.plan = settings, plan
        self.device = target.spec.device
        self.devices = {self.device, draft.spec.device}
        self.requests: dict[int, _Request] = {}
        self.passes: list[Pass] = []
        self.admitted = False  # a prompt since the last step
        self.run_ = BatchRun()

    def run(self, prompts: Sequence[list[int]]) -> BatchRun:
        waiting = iter(enumerate(prompts))
        for slot in range(self.plan.batch):
            self.admit(slot, waiting)
        while self.requests and (self.plan.drain or len(self.requests) == self.plan.batch):
            began = self.begin()
            self.passes = []
            free = self.step()
            self.run_.seconds.append(time.perf_counter() - began)  # it ended with a read, so the device is done
            if self.plan.timed:
                self.run_.passes.append(self.passes)
            for slot in free:
                del self.requests[slot]
                self.admit(slot, waiting)
        return self.run_

    def admit(self, slot: int, waiting: Iterable[tuple[int, list[int]]]) -> None:
        """Give a slot to the next prompt, if there is one."""
        for index, prompt in waiting:
            output = BatchOutput(index)
            self.run_.outputs.append(output)
            self.requests[slot] = _Request(prompt, self.settings, output)
            self.requests = dict(sorted(self.requests.items()))
            self.target.prefill(slot, prompt[:-1])
            self.draft.prefill(slot, self.readable(prompt[:-1]))
            self.policy.begin(slot, prompt)
            self.admitted = True
            return

    def begin(self) -> float:
        """When a step begins: once the devices are done with the prompts that were taken in before it."""
        admitted, self.admitted = self.admitted, False
        return seconds(*self.devices) if admitted else time.perf_counter()

    def step(self) -> list[int]:
        """One step of all requests; the slots whose outputs ended."""
        shown: dict[int, list[Signal]] = {slot: [] for slot in self.requests}
        depths = self.propose(shown)
        drafted = {slot: sum(slot in each.slots for each in depths) for slot in self.requests}
        tokens, best = self.verify(depths, drafted)
        row, free = 0, []
        for slot, request in self.requests.items():
            count = drafted[slot]
            own = slice(row + 1, row + count + 1)
            row += count + 1
            proposed = until_end(tokens[own], self.settings.end_tokens)
            if self.commit(slot, request, proposed, best[own.start - 1 : own.stop], shown[slot]):
                free.append(slot)
        return free

    def propose(self, shown: dict[int, list[Signal]]) -> list[_Drafted]:
        """Draft by depth, as far as the policy wants."""
        caps = {slot: self.cap(slot) for slot in self.requests}
        slots = self.policy.first(caps)
        reads = self.policy.reads
        depths: list[_Drafted] = []
        while slots:
            depths.append(self.draft_pass(slots, depths[-1] if depths else None, reads, shown))
            able = {
                slot: shown[slot][-1]
                for slot in slots
                if len(depths) < caps[slot] and not self.ended(shown[slot][-1], reads)
            }
            slots = self.policy.onward(able) if able else []
        if not asks_after_each_token(reads):
            for signals in shown.values():
                signals.clear()
        return depths

    def draft_pass(
        self, slots: list[int], before: _Drafted | None, reads: Reads, shown: dict[int, list[Signal]]
    ) -> _Drafted:
        """One token of each slot."""
        asks = asks_after_each_token(reads)
        with _Timing(self, "draft", slots, asks) as timing:
            if before is None:
                texts = [self.requests[slot].text[self.draft.length(slot) :] for slot in slots]
                counts = [len(text) for text in texts]
                fed = upload(self.readable([token for text in texts for token in text]), self.draft.spec.device)
            else:
                counts, fed = [1] * len(slots), before.tokens
                if len(slots) < len(before.slots):
                    kept = [before.slots.index(slot) for slot in slots]
                    fed = fed.index_select(0, upload(kept, fed.device))
            timing.counts = counts
            logits = self.draft.step(slots, counts, fed)
            if max(counts) > 1:
                ends = [end - 1 for end in accumulate(counts)]
                logits = logits.index_select(0, upload(ends, logits.device))
            if logits.shape[1] > self.target.spec.vocabulary:
                logits = logits[:, : self.target.spec.vocabulary]
            tokens = logits.argmax(-1)
            for slot, signal in zip(slots, _signals(logits, tokens, reads, len(shown[slots[0]]) + 1), strict=True):
                shown[slot].append(signal)
        return _Drafted(slots, tokens)

    def verify(self, depths: list[_Drafted], drafted: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """All tokens that the target took in, row by row, and its own choice after each: the step's one read."""
        slots = list(self.requests)
        counts = [drafted[slot] + 1 for slot in slots]
        with _Timing(self, "verify", slots, False) as timing:
            last = upload([self.requests[slot].text[-1] for slot in slots], self.device)
            pool = torch.cat((last, *(each.tokens.to(self.device) for each in depths)))
            starts = [len(slots)]
            for each in depths:
                starts.append(starts[-1] + len(each.slots))
            order = []
            for row, slot in enumerate(slots):
                order.append(row)
                order += [starts[depth] + depths[depth].slots.index(slot) for depth in range(drafted[slot])]
            fed = pool.index_select(0, upload(order, self.device))
            timing.counts = counts
            best = best_tokens(self.target.step(slots, counts, fed))
            tokens, own = torch.stack((fed, best)).tolist()
        check_finite(own, f"target ({self.target.spec.dtype})", self.context())
        return tokens, own

    def commit(self, slot: int, request: _Request, proposed: list[int], best: list[int], shown: list[Signal]) -> bool:
        """Commit what stands; whether the output has ended."""
        accepted, token = accept_greedy(proposed, best)
        tokens, finish = request.stopper.cut([*proposed[:accepted], token])
        committed = len(request.text)
        request.text += tokens
        self.target.truncate(slot, committed + accepted)
        if self.draft.length(slot) > committed + accepted:
            self.draft.truncate(slot, committed + accepted)
        text = tokens if SignalName.TEXT in self.policy.reads else ()
        step = Step(len(proposed), min(accepted, len(tokens)), len(tokens), shown[: len(proposed)], NAN, text)
        self.policy.observe(slot, step)
        request.output.tokens += tokens
        request.output.steps.append(step)
        request.output.finished = finish is not None
        return finish is not None

    def cap(self, slot: int) -> int:
        """The most tokens that a slot may draft."""
        request = self.requests[slot]
        room = min(self.target.capacity, self.draft.capacity) - len(request.text)
        return max(0, min(self.plan.gamma_max, request.stopper.remaining - 1, room))

    def readable(self, tokens: list[int]) -> list[int]:
        """Tokens as the drafter takes them in: its last one stands for those that it does not have."""
        last = self.draft.spec.vocabulary - 1
        return [min(token, last) for token in tokens]

    def recorded(self) -> int:
        return self.target.recorded + self.draft.recorded

    def context(self) -> int:
        return max(len(request.text) for request in self.requests.values())

    def ended(self, signal: Signal, reads: Reads) -> bool:
        """Whether a drafted token that was read ends the text."""
        return asks_after_each_token(reads) and signal.token in self.settings.end_tokens


class _Timing:
    """Times one pass, if the plan says so."""

    counts: Sequence[int]  # tokens of each slot

    def __init__(self, loop: _BatchLoop, kind: Literal["draft", "verify"], slots: Sequence[int], signals: bool) -> None:
        self._loop, self._kind, self._slots, self._signals = loop, kind, slots, signals

    def __enter__(self) -> _Timing:
        if self._loop.plan.timed:
            self._recorded = self._loop.recorded()
            self._context, self._began = self._loop.context(), seconds(*self._loop.devices)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._loop.plan.timed and kind is None:
            spent = seconds(*self._loop.devices) - self._began
            rows, span = len(self._slots), self._slots[-1] + 1 - self._slots[0]
            shape = (rows, sum(self.counts), span, max(self.counts), self._context)
            records = self._loop.recorded() > self._recorded
            self._loop.passes.append(Pass(self._kind, *shape, self._signals, spent, records))


def _signals(logits: Tensor, tokens: Tensor, reads: Reads, depth: int) -> list[Signal]:
    """The signals of one drafted token of each row; what no policy reads is not computed or fetched."""
    if not asks_after_each_token(reads):
        return [Signal(depth, NAN, NAN, NAN)] * len(tokens)
    columns = read_signals(logits, tokens, reads)
    return [Signal(depth, confidence, entropy, margin, int(token)) for confidence, entropy, margin, token in columns]
