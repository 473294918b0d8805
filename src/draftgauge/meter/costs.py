"""Measures a cost curve: what drafting, verifying and plain decoding take on this machine.

Timing ``propose`` and ``forward`` on their own flatters them. Live, each finds the caches full of the other's weights.
The draft must first take in what the last step committed. So the meter runs the loop itself on real text, with
draft lengths in random order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from torch import Generator

from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.base import Drafter, DraftsUnread, device_of, keeps_drafted, record_passes
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.meter.steps import (
    BACKLOGS,
    IDLE_RUNS,
    LEAST_ROUNDS,
    Asked,
    Bench,
    KeepsPrompt,
    Sample,
    Schedule,
    StepTimer,
    Stopwatch,
    TimedDrafter,
    by_length,
    one_round,
    scheduled,
    seconds_between,
)
from draftgauge.models.base import CachedModel
from draftgauge.models.device import upload
from draftgauge.traces.costs import CostCurve, Measurement
from draftgauge.verification import Sampling, choose

SPAN = 64  # tokens decoded in one go: a context length is measured around its value, over that many tokens
SURE_ROUNDS, SURE = 8, 0.01  # every so many rounds: is half of a step's 95% interval below this share of it?
LEAST_SECONDS = 1e-9
ROLLBACKS = 4  # of each kind that is timed, the first of them not counted
NORMAL_IQR = 1.349  # interquartile range of a normal distribution, in standard deviations
MEDIAN_ERROR = 1.2533  # standard error of a median, in standard deviations over the root of the samples
FEWEST_TO_TELL = 5  # samples of each of two lengths, to say that the shorter one takes longer
TOLD = 3.0  # standard errors that it has to take longer: many lengths are compared
TWO_SIDED = 1.96  # half of a 95% interval, in standard errors

Samples = Sequence[Sequence[Sample]]
"""Timed steps of each context length."""
Floats = NDArray[np.float64]


def default_contexts(prompt_tokens: Sequence[int], output_tokens: Sequence[int]) -> tuple[int, ...]:
    """Contexts worth measuring for some prompts: where the first step starts, the median, where the last one ends."""
    prompts, outputs = np.asarray(prompt_tokens), np.asarray(output_tokens)
    return tuple(sorted({int(prompts.min()), int(np.median(prompts + outputs // 2)), int((prompts + outputs).max())}))


def measured_span(gamma_max: int, context_limit: int) -> int:
    """Tokens that are decoded in one go: room for several of the longest drafts, as far as the models take them."""
    span = min(max(SPAN, 4 * (gamma_max + 1)), context_limit - 1)
    if span < 2 * (gamma_max + 1):
        raise DraftgaugeError(
            f"the models take {context_limit} tokens, and measuring drafts of {gamma_max} needs "
            f"{2 * gamma_max + 3}: lower gamma_max"
        )
    return span


@dataclass(frozen=True)
class MeterPlan:
    """What to measure, and for how long.

    Attributes:
        text: token ids of real text; the contexts are cut from it, repeated as often as needed.
        contexts: lengths in tokens; those past the limit are measured at the limit.
        seconds: that measuring may take; it ends earlier where the costs are known well enough. Where steps are so slow
            that not everything fits, fewer lengths and contexts are measured and the rest is interpolated.
        context_limit: longest sequence that target and draft take, the target's if None.
        vocabulary: of the pair, see :class:`~draftgauge.traces.costs.CostCurve`.
    """

    text: Sequence[int]
    contexts: Sequence[int]
    gamma_max: int = 16
    seconds: float = 15.0
    context_limit: int | None = None
    compression: str = UNCOMPRESSED
    vocabulary: str = ""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not self.text or not self.contexts or self.gamma_max < 1 or self.seconds < 0:
            raise DraftgaugeError(
                "measuring costs needs text, at least one context length, gamma_max 1 or more and seconds, 0 or more"
            )


def measure_costs(
    target: CachedModel,
    drafter: Drafter,
    plan: MeterPlan,
    rng: np.random.Generator,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CostCurve:
    """Measure a cost curve by decoding with the pair, greedily or as it samples."""
    limit = target.spec.context if plan.context_limit is None else min(target.spec.context, plan.context_limit)
    span = measured_span(plan.gamma_max, limit)
    lengths = sorted({max(1, min(context, limit)) for context in plan.contexts})
    # Recording is no part of what a step costs.
    record_passes(target, drafter, max(plan.gamma_max, BACKLOGS - 1), lengths[-1] + span)
    begun, expected = time.perf_counter(), math.inf  # not known before the first steps
    device = target.spec.device
    overlaps = device.type == "cuda" and device_of(drafter, device) == device and isinstance(drafter, DraftsUnread)

    def tell() -> None:
        progress(min(99, int(100 * (time.perf_counter() - begun) / expected)), 100)

    text, timer = np.asarray(plan.text), StepTimer(Stopwatch(device, device_of(drafter, device)), tell)
    kept: Any = KeepsPrompt(target)
    timed = drafter
    if isinstance(drafter, LanguageModelDrafter):
        timed = copy(drafter)
        timed.model = KeepsPrompt(drafter.model)  # type: ignore[assignment]
    origin = int(rng.integers(len(text)))
    settings = DecodingSettings(span, plan.sampling, stop_when=timer.ends_output)

    @torch.inference_mode()
    def run(bench: Bench, asked: list[Asked], plain_steps: int) -> None:
        """Time these steps, and plain ones after them, from the origin in the text."""
        timer.queue = asked
        prompt: list[int] = text[(origin + np.arange(bench.start)) % len(text)].tolist()
        while asked:
            filled = TimedDrafter(timed, timer, filler=prompt[0])
            done = speculative_decode(kept, filled, timer, prompt, settings, generator)
            bench.prefill_seconds = bench.prefill_seconds or done.prefill_seconds
        bench.samples += timer.samples()
        fed, moments = upload([done.tokens[-1]], device), []  # steps of the plain loop; the first is not counted
        for _ in range(min(plain_steps, target.spec.context - target.length)):
            tell()
            fed = choose(target.forward(fed), plan.sampling, generator)
            fed.tolist()  # the loop reads the token, so the device is done with it
            moments.append(time.perf_counter())
        bench.plain += np.diff(moments).tolist()

    benches = [Bench(context, min(max(1, context - span // 2), limit - span)) for context in lengths]
    run(benches[0], [Asked(plan.gamma_max, plan.gamma_max), Asked(0, 0)], 0)
    schedule = scheduled(benches, plan.gamma_max, plan.seconds, time.perf_counter() - begun, overlaps)
    benches[0].samples.clear()  # the first steps may be slow for being the first
    expected = max(plan.seconds, schedule.seconds, 1e-9)
    rounds, took, spent = 0, list[float](), 0.0
    while True:
        started = time.perf_counter()
        if rounds and rounds % LEAST_ROUNDS == 0 and spent + 2 * max(took) < plan.seconds:
            origin = int(rng.integers(len(text)))
        for bench in schedule.benches[:: 1 if rounds % 2 else -1]:  # to and fro, as shorter contexts begin longer ones
            run(bench, one_round(schedule, rounds, rng, overlaps), schedule.plain_steps)
        rounds += 1
        now = time.perf_counter()
        took, spent = [*took, now - started][-len(IDLE_RUNS) :], now - begun  # rounds of every kind
        if spent + max(took) > plan.seconds:
            break
        if rounds == 1:
            again = scheduled(benches, plan.gamma_max, plan.seconds, spent, overlaps)
            schedule = max(schedule, again, key=lambda each: (len(each.benches), len(each.drafted), len(each.verified)))
        if rounds % SURE_ROUNDS == 0:
            measured = _measurement([bench.samples for bench in schedule.benches], plan.gamma_max, spent, "")
            if measured.half_width <= SURE:
                break
    if schedule.note and plan.seconds:
        warn(f"cost curve: {schedule.note}")
    progress(100, 100)
    rollback = _rollback(target, drafter, plan)
    for bench in schedule.benches:  # what rolling back took is told apart
        bench.samples = [
            sample._replace(verify=max(LEAST_SECONDS, sample.verify - (0.0, *rollback)[sample.kept]))
            if rollback
            else sample
            for sample in bench.samples
        ]
    curve = _curve(schedule, plan, target, spent, keeps=keeps_drafted(drafter), overlaps=overlaps)
    return replace(curve, rollback=rollback)


@torch.inference_mode()
def _rollback(target: CachedModel, drafter: Drafter, plan: MeterPlan) -> tuple[float, ...]:
    """Seconds of rolling back the states of the pair where 1 to ``gamma_max`` tokens are kept; empty without states.

    States are of one size in every context. The seconds grow evenly with the tokens that are kept, so the two ends are
    timed.
    """
    took: Floats = np.zeros(0)
    models: list[Any] = [target, getattr(drafter, "model", None)]
    for model in models:
        if not getattr(getattr(model, "spec", None), "recurrent", False):
            continue
        stopwatch, medians = Stopwatch(model.spec.device), []
        text = upload(np.resize(plan.text, plan.gamma_max + 3).tolist(), model.spec.device)
        text.clamp_(max=model.spec.vocabulary - 1)
        for kept in (1, plan.gamma_max):
            seconds = []
            for _ in range(ROLLBACKS):
                model.reset()
                model.forward(text[:2])
                for fed in (text[2:],) if model is target else text[2:].split(1):
                    model.forward(fed)
                begun = stopwatch.mark()
                model.truncate(2 + kept)
                seconds.append((begun, stopwatch.mark()))
            medians.append(float(np.median([seconds_between(*marks) for marks in seconds[1:]])))
        own = np.interp(np.arange(1, plan.gamma_max + 1), (1, plan.gamma_max), medians)
        took = own if not len(took) else took + own
    return tuple(took.tolist())


def _curve(
    schedule: Schedule, plan: MeterPlan, target: CachedModel, spent: float, *, keeps: bool, overlaps: bool
) -> CostCurve:
    """Of a drafter that ``keeps`` what it drafted; with ``overlaps`` unread drafts run under the next launches."""
    benches = schedule.benches
    samples = [bench.samples for bench in benches]
    catch_up = _catch_up(samples)
    verify = _table(samples, lambda sample: sample.verify, plan.gamma_max)
    beside = np.zeros_like(verify)
    if overlaps:
        # A draft that nobody reads still runs while the host launches the verification, which shows its length
        # beside drafts that are read, or none; drafting takes what a step takes longer than that, and reading a token
        # what it takes longer still. That is no straight line: the one nearest to the lengths that are read is taken.
        apart = [
            [sample._replace(looks=False) for sample in own if sample.looks or not sample.gamma] for own in samples
        ]
        beside = verify = np.maximum(verify, _table(apart, lambda sample: sample.verify, plan.gamma_max))

    def drafting(sample: Sample) -> float:
        return sample.draft - catch_up[sample.backlog - 1] + (sample.verify if overlaps else 0.0)

    draft = _table(samples, drafting, plan.gamma_max, "drafted") - beside
    draft[:, 0], draft[:, 1:] = 0.0, np.maximum(draft[:, 1:], LEAST_SECONDS)  # drafting nothing takes no time
    looked_at = [(row, sample) for row, own in enumerate(samples) for sample in own if sample.looks]
    lengths = np.array([sample.gamma for _, sample in looked_at])
    longer = np.array([drafting(each) - draft[row, each.gamma] - beside[row, each.gamma] for row, each in looked_at])
    signals = _above_noise((longer / lengths).tolist())
    if overlaps:
        signals = max(0.0, float(lengths @ longer / (lengths @ lengths)))
    return CostCurve(
        contexts=tuple(bench.context for bench in benches),
        verify=tuple(map(tuple, verify.tolist())),
        draft=tuple(map(tuple, draft.tolist())),
        # Plain decoding does less than verifying one token: where it reads as more, its few samples were slow.
        plain=tuple(
            min(v[0], float(np.median(b.plain or v[0]))) for b, v in zip(benches, verify.tolist(), strict=True)
        ),
        compression=plan.compression,
        device=str(target.spec.device),
        dtype=str(target.spec.dtype).removeprefix("torch."),
        signals=signals,
        catch_up=tuple(catch_up.tolist()),
        keeps_drafted=keeps,
        vocabulary=plan.vocabulary,
        engine=target.spec.engine,
        measured=_measurement(samples, plan.gamma_max, spent, schedule.note),
    )


def _above_noise(values: Sequence[float]) -> float:
    """Their median; 0 where its 95% interval reaches 0, as what is left between two timings of long steps is noise."""
    median = float(np.median(values))
    return median if median > TWO_SIDED * _median_error(values) else 0.0


def _median_error(values: Sequence[float], spread: float = 0.0) -> float:
    """Of their median, from their own spread; at least what the ``spread`` of all, a share, comes to."""
    low, high = np.percentile(values, (25, 75))
    deviation = max((high - low) / NORMAL_IQR, spread * float(np.median(values)))
    return float(MEDIAN_ERROR * deviation / math.sqrt(len(values)))


def _spread(cells: Sequence[Sequence[float]]) -> float:
    """Standard deviation of samples as a share of their cell's median, of all cells: the few of one say little."""
    rest = np.concatenate([np.asarray(values) / max(np.median(values), LEAST_SECONDS) for values in cells])
    low, high = np.percentile(rest, (25, 75))
    return float((high - low) / NORMAL_IQR * math.sqrt(len(rest) / max(1, len(rest) - len(cells))))


def _table(samples: Samples, value: Callable[[Sample], float], gamma_max: int, length: str = "gamma") -> Floats:
    return rows_of([by_length(own, value, length) for own in samples], range(gamma_max + 1))


def rows_of(timed: Sequence[Mapping[int, Sequence[float]]], wanted: Sequence[int]) -> Floats:
    """``[C, wanted]`` median seconds for each number of tokens wanted, interpolated where it was not timed.

    They rise with the tokens, but for those where a longer pass is the cheaper one by what the samples of all contexts
    tell together. A matrix is multiplied by other kernels where it meets one row, or a full group of them.
    """
    cells = [seconds for own in timed for seconds in own.values()]
    spread, tokens = _spread(cells), sorted({count for own in timed for count in own})
    falls = []
    for shorter, longer in pairwise(tokens):
        apart, variance, fewest = 0.0, 0.0, 0
        for own in timed:
            if shorter in own and longer in own:
                apart += float(np.median(own[shorter]) - np.median(own[longer]))
                variance += sum(_median_error(own[count], spread) ** 2 for count in (shorter, longer))
                fewest += min(len(own[shorter]), len(own[longer]))
        if fewest >= FEWEST_TO_TELL and apart > TOLD * math.sqrt(variance):
            falls.append(longer)
    rows = []
    for own in timed:
        known = sorted(own)
        pieces = np.split(np.array(known), np.searchsorted(known, [count for count in falls if count in own]))
        rising = [
            isotonic_regression([np.median(own[n]) for n in piece], weights=[len(own[n]) for n in piece]).x
            for piece in map(np.ndarray.tolist, pieces)
        ]
        rows.append(np.interp(wanted, known, np.concatenate(rising)))
    return np.stack(rows)


def _catch_up(samples: Samples) -> Floats:
    """``[BACKLOGS]`` what drafting takes longer by how many tokens there were to take in.

    From drafts of one token; rising, and interpolated where a number did not occur.
    """
    added: dict[int, list[float]] = {}
    for own in samples:
        ones = [sample for sample in own if sample.drafted == 1 and not sample.looks]
        least = min(sample.backlog for sample in ones)
        base = float(np.median([sample.draft for sample in ones if sample.backlog == least]))
        for sample in ones:
            added.setdefault(sample.backlog, []).append(sample.draft - base)
    known = sorted(added)
    medians = [float(np.median(added[backlog])) for backlog in known]
    rising = isotonic_regression(medians, weights=[len(added[backlog]) for backlog in known]).x
    return np.interp(np.arange(1, BACKLOGS + 1), known, rising - rising[0])


def _measurement(samples: Samples, gamma_max: int, spent: float, note: str) -> Measurement:
    cells: dict[tuple[int, int, int], list[float]] = {}
    for row, own in enumerate(samples):
        for sample in own:
            if not sample.looks:
                cells.setdefault((row, sample.gamma, sample.drafted), []).append(sample.draft + sample.verify)
    counts, drafts = np.zeros((2, gamma_max + 1), np.int64)
    for (_, gamma, drafted), of in cells.items():
        counts[gamma] += len(of)
        drafts[drafted] += len(of)
    error = MEDIAN_ERROR * _spread(list(cells.values())) / math.sqrt(counts[counts > 0].min())
    return Measurement(spent, tuple(counts.tolist()), TWO_SIDED * error, note, tuple(drafts.tolist()))
