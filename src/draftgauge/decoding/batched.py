"""Speculative decoding of a batch whose requests take every step together, each committing what is accepted of its own.

A request that had four tokens accepted moves on by five, its neighbour by one. One that ends leaves its slot to the
next prompt. Decoding is greedy, and every output is that of plain decoding of its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import SignalName
from draftgauge.decoding.settings import DecodingSettings, Stopper
from draftgauge.drafters.language_model import until_end
from draftgauge.models.device import seconds, upload
from draftgauge.models.engines.static import StaticRows
from draftgauge.policies.base import Signal, Step, asks_after_each_token
from draftgauge.policies.batch import BatchPolicy
from draftgauge.verification import accept_greedy, best_tokens, check_finite
from draftgauge.verification.sampling import read_signals

NAN = float("nan")


class Pass(NamedTuple):
    """One pass of a step.

    Attributes:
        widest: most tokens of one of them.
        context: tokens of the longest request of the batch, before the step.
        signals: whether signals of drafted tokens were computed and read.
        seconds: of the pass, its tokens chosen and, where they are read at once, read.
        records: whether its CUDA graph was recorded in it, once for all passes of its shape.
    """

    kind: Literal["draft", "verify"]
    rows: int
    tokens: int
    widest: int
    context: int
    signals: bool
    seconds: float
    records: bool

    @property
    def even(self) -> bool:
        return self.tokens == self.rows * self.widest


@dataclass
class BatchOutput:
    """What became of one prompt.

    Attributes:
        prompt: its place in the list of prompts.
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
        return sum(len(output.tokens) for output in self.outputs)

    @property
    def tokens_per_second(self) -> float:
        return self.committed / sum(self.seconds)


class BatchPlan(NamedTuple):
    """How a batch is decoded.

    Attributes:
        drain: go on until every output has ended; else stop where a slot finds no further prompt: all steps are then
            of a full batch.
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
        prompts: token ids; each takes the first slot that becomes free.
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
    loop, run = _BatchLoop(target, draft, policy, settings, plan), BatchRun()
    waiting, admitted = list(enumerate(prompts))[::-1], False
    free = list(range(plan.batch))
    while True:
        for slot in free:
            if waiting:
                index, prompt = waiting.pop()
                run.outputs.append(BatchOutput(index))
                loop.admit(slot, prompt, run.outputs[-1])
                admitted = True
        if not loop.requests or (len(loop.requests) < plan.batch and not plan.drain):
            return run
        # A step begins once the devices are done with the prompts taken in before it, and ends with a read.
        began = seconds(*loop.devices) if admitted else time.perf_counter()
        admitted, loop.passes = False, []
        free = loop.step()
        run.seconds.append(time.perf_counter() - began)
        if plan.timed:
            run.passes.append(loop.passes)
        for slot in free:
            del loop.requests[slot]


@dataclass
class _Request:
    """One request in its slot: the text so far, and where its output ends."""

    text: list[int]
    stopper: Stopper
    output: BatchOutput


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
        self.devices = {target.spec.device, draft.spec.device}
        self.capacity = min(target.capacity, draft.capacity)
        self.requests: dict[int, _Request] = {}
        self.passes: list[Pass] = []

    def admit(self, slot: int, prompt: list[int], output: BatchOutput) -> None:
        request = _Request(list(prompt), Stopper(self.settings), output)
        self.requests = dict(sorted({**self.requests, slot: request}.items()))
        self.target.prefill(slot, prompt[:-1])
        self.draft.prefill(slot, self.readable(prompt[:-1]))
        self.policy.begin(slot, prompt)

    def step(self) -> list[int]:
        """One step of all requests, each committing what is accepted of its own; the slots whose outputs ended."""
        shown: dict[int, list[Signal]] = {slot: [] for slot in self.requests}
        depths = self.propose(shown)
        counts = [1 + sum(slot in each.slots for each in depths) for slot in self.requests]
        tokens, best = self.verify(depths, counts)
        row, free = 0, []
        for count, (slot, request) in zip(counts, self.requests.items(), strict=True):
            proposed = until_end(tokens[row + 1 : row + count], self.settings.end_tokens)
            accepted, token = accept_greedy(proposed, best[row : row + count])
            row += count
            committed, finish = request.stopper.cut([*proposed[:accepted], token])
            kept = len(request.text) + accepted
            request.text += committed
            self.target.truncate(slot, kept)
            self.draft.truncate(slot, min(kept, self.draft.length(slot)))
            text, signals = committed if SignalName.TEXT in self.policy.reads else (), shown[slot][: len(proposed)]
            step = Step(len(proposed), min(accepted, len(committed)), len(committed), signals, NAN, text)
            self.policy.observe(slot, step)
            request.output.tokens += committed
            request.output.steps.append(step)
            if finish is not None:
                request.output.finished = True
                free.append(slot)
        return free

    def propose(self, shown: dict[int, list[Signal]]) -> list[_Drafted]:
        """Draft by depth, as far as the policy wants; signals that no policy reads are not computed or fetched."""
        requests, depths, caps = self.requests, list[_Drafted](), {}
        for slot, request in requests.items():
            room = min(self.capacity - len(request.text), request.stopper.remaining - 1)
            caps[slot] = max(0, min(self.plan.gamma_max, room))
        slots = self.policy.first(caps)
        reads = self.policy.reads  # which may differ from step to step
        asks = asks_after_each_token(reads)
        while slots:
            texts = [requests[slot].text[self.draft.length(slot) :] for slot in slots] if not depths else []
            counts = [len(text) for text in texts] or [1] * len(slots)
            with self.timed("draft", counts, asks):
                if texts:
                    fed = upload(self.readable([token for text in texts for token in text]), self.draft.spec.device)
                else:
                    kept = [depths[-1].slots.index(slot) for slot in slots]
                    fed = depths[-1].tokens.index_select(0, upload(kept, depths[-1].tokens.device))
                logits = self.draft.step(slots, counts, fed)
                ends = upload([end - 1 for end in accumulate(counts)], logits.device)
                logits = logits.index_select(0, ends)[:, : self.target.spec.vocabulary]
                tokens = logits.argmax(-1)
                columns = read_signals(logits, tokens, reads) if asks else [(NAN, NAN, NAN, -1)] * len(slots)
            depths.append(_Drafted(slots, tokens))
            able = {}
            for slot, (confidence, entropy, margin, token) in zip(slots, columns, strict=True):
                signal = Signal(len(depths), confidence, entropy, margin, int(token))
                if asks:
                    shown[slot].append(signal)
                if len(depths) < caps[slot] and not (asks and signal.token in self.settings.end_tokens):
                    able[slot] = signal
            slots = self.policy.onward(able) if able else []
        return depths

    def verify(self, depths: list[_Drafted], counts: list[int]) -> tuple[list[int], list[int]]:
        """All tokens that the target took in, row by row, and its own choice after each: the step's one read."""
        slots, device = list(self.requests), self.target.spec.device
        with self.timed("verify", counts, False):
            last = upload([self.requests[slot].text[-1] for slot in slots], device)
            pool = torch.cat((last, *(each.tokens.to(device) for each in depths)))
            starts = list(accumulate((len(each.slots) for each in depths), initial=len(slots)))
            order = []  # places in the pool, row by row
            for row, slot in enumerate(slots):
                order.append(row)
                order += [starts[depth] + depths[depth].slots.index(slot) for depth in range(counts[row] - 1)]
            fed = pool.index_select(0, upload(order, device))
            best = best_tokens(self.target.step(slots, counts, fed))
            tokens, own = torch.stack((fed, best)).tolist()
        check_finite(own, f"target ({self.target.spec.dtype})")
        return tokens, own

    def readable(self, tokens: list[int]) -> list[int]:
        """Tokens as the drafter takes them in: its last one stands for those that it does not have."""
        last = self.draft.spec.vocabulary - 1
        return [min(token, last) for token in tokens]

    @contextmanager
    def timed(self, kind: Literal["draft", "verify"], counts: list[int], signals: bool) -> Iterator[None]:
        """Time a pass over so many tokens of each request, if the plan says so."""
        if not self.plan.timed:
            yield
            return
        recorded, began = self.target.recorded + self.draft.recorded, seconds(*self.devices)
        yield
        spent = seconds(*self.devices) - began
        records = self.target.recorded + self.draft.recorded > recorded
        context = max(len(request.text) for request in self.requests.values())
        self.passes.append(Pass(kind, len(counts), sum(counts), max(counts), context, signals, spent, records))
