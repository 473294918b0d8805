"""What the passes of a batch cost on this machine, measured inside the batched loop.

As for single requests (:mod:`draftgauge.meter`), passes timed on their own would flatter them: live, each
finds the processor's caches full of the other model's weights. So the loop itself runs, over text that is cut to the
context lengths, with draft lengths drawn at random. In half of the steps all requests share one, so that passes are
``[B, k]``; in the others each has its own, so that passes are ragged as those of policies are
(:mod:`draftgauge.decoding.batch_samples` tells them apart).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.batch_samples import BatchSamples, batch_costs, timed_steps
from draftgauge.decoding.batched import BatchPlan, BatchRun, batched_decode
from draftgauge.decoding.random_lengths import RandomLengths
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.lean import LeanModel
from draftgauge.models.rows import StaticRows, check_caches_fit
from draftgauge.models.static_model import StaticModel
from draftgauge.policies.batch import BatchPolicy
from draftgauge.traces.batch_costs import BatchCosts

LEAST = 6  # samples of every number of tokens


@dataclass(frozen=True)
class BatchMeterPlan:
    """What to measure, and for how long.

    Attributes:
        text: token ids of real text; contexts are cut from it.
        batches: requests at once; 1 is measured besides.
        contexts: lengths in tokens at which requests are measured, as far as the models take them.
        gamma_max: longest draft.
        seconds: for each batch size, once every number of tokens has a few samples.
    """

    text: Sequence[int]
    batches: Sequence[int]
    contexts: Sequence[int]
    gamma_max: int
    seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.text or not self.contexts or min(self.batches, default=0) < 1 or self.gamma_max < 1:
            raise DraftgaugeError(
                "measuring batches needs text, context lengths, batch sizes of at least 1 and gamma_max of at least 1"
            )

    @property
    def span(self) -> int:
        """Tokens that every request decodes around a context length."""
        return 4 * (self.gamma_max + 1)


class BatchMeter:
    """Measures by turns, so that what else happens on a machine can come between them."""

    def __init__(self, target: LeanModel, draft: LeanModel, plan: BatchMeterPlan, rng: np.random.Generator) -> None:
        """Prepare caches.

        Args:
            target, draft: their own caches are not touched.
            plan: what to measure.
            rng: for draft lengths and positions in the text.

        Raises:
            ModelError: if the caches of the largest batch do not fit into memory.
            DraftgaugeError: if the models take too few tokens to measure in.
        """
        limit = min(target.spec.context, draft.spec.context)
        if limit <= 2 * plan.span:
            raise DraftgaugeError(
                f"the models take {limit} tokens, and measuring drafts of {plan.gamma_max} in batches needs more than "
                f"{2 * plan.span}: lower gamma_max"
            )
        self._plan, self._rng, self._starts = plan, rng, _starts(plan, limit)
        self.batches = sorted({1, *plan.batches})
        self.contexts = tuple(start + plan.span // 2 for start in self._starts)
        capacity = max(self._starts) + plan.span
        check_caches_fit([(target, capacity), (draft, capacity)], self.batches[-1])
        self._target, self._draft = (StaticRows(model, self.batches[-1], capacity) for model in (target, draft))
        self.forget()

    def forget(self) -> None:
        """Leave out what was measured so far."""
        self._samples = {batch: BatchSamples(batch, self._plan.gamma_max, self.contexts) for batch in self.batches}

    def turn(self, batch: int) -> None:
        """Decode a few steps of ``batch`` requests at every context length."""
        gamma_max, samples = self._plan.gamma_max, self._samples[batch]
        for context in self._rng.permutation(len(self._starts)).tolist():
            run = self._decode(batch, context, RandomLengths(gamma_max, batch, self._rng))
            samples.steps[context] += timed_steps(run.passes, run.seconds)

    def _decode(self, batch: int, context: int, policy: BatchPolicy) -> BatchRun:
        """A few steps at a context length."""
        plan = self._plan
        prompts = [_cut(plan.text, self._starts[context], self._rng) for _ in range(batch)]
        how = BatchPlan(batch, plan.gamma_max, drain=False, timed=True)
        return batched_decode(self._target, self._draft, policy, prompts, DecodingSettings(plan.span), how)

    def warm(self, batch: int) -> None:
        """A turn that is not counted."""
        kept = self._samples[batch]
        self._samples[batch] = BatchSamples(batch, self._plan.gamma_max, self.contexts)
        self.turn(batch)
        self._samples[batch] = kept

    def fewest(self, batch: int) -> int:
        """Samples of the kind of pass with the fewest, at the context with the fewest."""
        return self._samples[batch].fewest()

    def costs(self) -> BatchCosts:
        """The costs from all samples since :meth:`forget`."""
        return batch_costs([self._samples[batch] for batch in self.batches])


def measure_batches(
    target: LeanModel,
    draft: LeanModel,
    plan: BatchMeterPlan,
    rng: np.random.Generator,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BatchCosts:
    """Measure passes of several requests together, on the lean or the static engine.

    Args:
        target, draft: their own caches are not touched.
        plan: what to measure.
        rng: for draft lengths and positions in the text.
        progress: told (batch sizes measured, all).

    Raises:
        ModelError: if the caches of the largest batch do not fit into memory.
        DraftgaugeError: if the models take too few tokens to measure in.
    """
    meter = BatchMeter(target, draft, plan, rng)
    for done, batch in enumerate(meter.batches):
        progress(done, len(meter.batches))
        began = time.perf_counter()
        meter.warm(batch)
        while meter.fewest(batch) < LEAST or time.perf_counter() - began < plan.seconds:
            meter.turn(batch)
    progress(len(meter.batches), len(meter.batches))
    return meter.costs()


def _starts(plan: BatchMeterPlan, limit: int) -> list[int]:
    """Where requests start: at the plan's contexts, and on both sides of every bucket of the cache between them."""
    contexts = [min(context, limit) for context in plan.contexts]
    starts = {max(1, context - plan.span) for context in contexts}
    bucket = StaticModel.first_bucket
    while bucket < max(contexts) - plan.span:
        if bucket > min(contexts):
            starts |= {bucket - plan.span, bucket}
        bucket *= 2
    return sorted(starts)


def _cut(text: Sequence[int], length: int, rng: np.random.Generator) -> list[int]:
    """Tokens from anywhere in the text."""
    start = int(rng.integers(len(text)))
    return [text[(start + index) % len(text)] for index in range(length)]
