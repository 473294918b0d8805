"""The cost meter: complete tables for every context, from steps whose parts are timed where they should be."""

from __future__ import annotations

import time
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding import meter, stopwatch
from draftgauge.decoding.meter import BACKLOGS, LEAST, MeterPlan, default_contexts, measure_costs
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.decoding.stopwatch import StepTimer, Stopwatch, TimedDrafter
from draftgauge.decoding.wrapping import WrappedModel
from draftgauge.drafters import Drafter, LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft, KeepDrafting
from draftgauge.models import lean
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.static_model import StaticModel
from draftgauge.policies.base import Step
from draftgauge.policies.registry import make_policy
from draftgauge.replaying.simulate import replay
from draftgauge.traces.costs import CostCurve, SignalSeconds
from synthetic import synthetic_trace
from tiny import tiny_model, tokens

GAMMA_MAX = 3
TEXT = tokens(60, seed=1).tolist()


class Clock:
    """A clock that stands still unless it is told that time passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


class SlowModel(WrappedModel):
    """Takes ``base + each * k`` seconds of a clock for a pass over ``k`` tokens."""

    def __init__(self, model: CachedModel, clock: Clock, base: float, each: float) -> None:
        super().__init__(model)
        self.clock, self.base, self.each = clock, base, each

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        self.clock.now += self.base + self.each * len(tokens)
        return self.model.forward(tokens, last_only)


@pytest.fixture
def pair() -> tuple[CachedModel, CachedModel]:
    return wrap(tiny_model(seed=1)), wrap(tiny_model(seed=2, num_hidden_layers=1))


def measure(target: CachedModel, drafter: Drafter, contexts: tuple[int, ...] = (40, 90), **options) -> CostCurve:
    progress = options.pop("progress", lambda done, total: None)
    plan = MeterPlan(TEXT, contexts, **{"gamma_max": GAMMA_MAX, "seconds": 0.0} | options)
    curve = measure_costs(target, drafter, plan, np.random.default_rng(0), progress=progress)
    curve.validate()
    return curve


def test_the_curve_is_what_the_parts_take(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    target, draft = SlowModel(pair[0], clock, 10.0, 1.0), SlowModel(pair[1], clock, 2.0, 0.0)
    curve = measure(target, LanguageModelDrafter(draft))
    expected = [10.0 + k for k in range(1, GAMMA_MAX + 2)]
    assert curve.contexts == (40, 90)
    for row in (*curve.verify, *curve.verify_low, *curve.verify_high):
        assert row == pytest.approx(expected)
    for row in curve.draft:
        assert row == pytest.approx([2.0 * n for n in range(GAMMA_MAX + 1)])
    assert curve.plain == pytest.approx((11.0, 11.0))
    assert curve.overhead == pytest.approx(0.0)
    assert curve.signals == SignalSeconds()
    assert (curve.compression, curve.device, curve.dtype) == ("none", "cpu", "float32")


SECONDS = SignalSeconds(0.5, 0.25, 0.0625, 1.0, 0.125, 2.0, 1.5)


class LookingDrafter(LanguageModelDrafter):
    """Signals take the seconds of a clock that :data:`SECONDS` says."""

    clock: Clock

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        draft = super().propose(limit, keep_drafting, reads)
        self.clock.now += float(SECONDS.of_draft(reads, len(draft.signals))) if keep_drafting else 0.0
        return draft

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self.clock.now += 5.0
        super().commit(accepted, tokens)


def test_overhead_and_what_each_signal_costs(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    observe = StepTimer.observe

    def slow_observe(self: StepTimer, step: Step) -> None:  # and slow itself, which is no part of a step
        clock.now += 3.0 + (SECONDS.target_entropy if step.target_entropy == step.target_entropy else 0.0)
        observe(self, step)

    monkeypatch.setattr(StepTimer, "observe", slow_observe)
    target = SlowModel(pair[0], clock, 10.0, 1.0)
    drafter = LookingDrafter(SlowModel(pair[1], clock, 2.0, 0.0))
    drafter.clock = clock
    curve = measure(target, drafter)
    assert curve.overhead == pytest.approx(5.0)
    assert asdict(curve.signals) == pytest.approx(asdict(SECONDS))
    blind = curve.step_seconds(2, 40)
    assert float(blind) == pytest.approx(4 + 13 + 5)
    for reads, added in {
        frozenset({SignalName.TEXT}): 3.5 * 0.5,
        frozenset({SignalName.CONFIDENCE}): 3.5 * (0.5 + 0.25 + 0.0625),
        frozenset({SignalName.CONFIDENCE, SignalName.TEXT}): 3.5 * (0.5 + 0.25 + 0.0625),
        frozenset({SignalName.TARGET_ENTROPY}): 2.0,
        frozenset(SignalName): 3.5 * (0.5 + 0.25 + 0.0625 + 1.0 + 0.125) + 2.0,
    }.items():
        assert float(curve.step_seconds(2, 40, reads) - blind) == pytest.approx(added), reads


def test_replay_charges_for_the_signals_that_a_policy_reads_and_no_other() -> None:
    trace = synthetic_trace(seed=0, prompts=4, length=30, gamma_max=GAMMA_MAX)
    row = ((1.0,) * (GAMMA_MAX + 1),)
    curve = CostCurve((10,), row, row, row, row, row, row, 0.0, (1.0,), "none", "cpu", "float32", SECONDS)
    for spec, charged in {
        "fixed:2": 0.0,
        "hf-heuristic": 0.0,
        "hf-confidence": 0.5 + 0.25 + 0.0625,
        "cumulative-confidence": 0.5 + 0.25 + 0.0625,
        "svip": 0.5 + 0.25 + 1.0,
        "vllm": 0.5 + 0.25 + 0.0625 + 0.125,
    }.items():
        replayed = replay(trace, make_policy(spec, GAMMA_MAX, curve), curve).record
        reads = replayed.drafted + SECONDS.first * (replayed.drafted > 0)
        np.testing.assert_allclose(replayed.seconds, 2 + charged * reads, err_msg=spec)


def test_what_taking_in_several_tokens_adds(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    target, draft = SlowModel(pair[0], clock, 10.0, 1.0), SlowModel(pair[1], clock, 2.0, 0.5)
    monkeypatch.setattr(meter, "LEAST", 40)
    curve = measure(target, LanguageModelDrafter(draft))
    assert curve.keeps_drafted
    assert curve.catch_up == pytest.approx([0.5 * (tokens - 1) for tokens in range(1, BACKLOGS + 1)], abs=0.02)
    for row in curve.draft:
        assert row == pytest.approx([2.5 * n for n in range(GAMMA_MAX + 1)], abs=0.02)


class HabitualModel(SlowModel):
    """Takes longer for a pass over another number of tokens than in the last one, twice as long for several."""

    last, change = 0, 0.0

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        if len(tokens) <= GAMMA_MAX + 1:  # and not the prompt's
            self.clock.now += self.change * min(len(tokens), 2) if len(tokens) != self.last else 0.0
            self.last = len(tokens)
        return super().forward(tokens, last_only)


@pytest.mark.parametrize("change", [0.0, 1.5])
def test_what_a_step_like_the_one_before_it_saves(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    clock = Clock(monkeypatch)
    target = HabitualModel(pair[0], clock, 10.0, 1.0)
    target.change = change
    curve = measure(target, LanguageModelDrafter(SlowModel(pair[1], clock, 2.0, 0.0)))
    assert curve.verify[0] == pytest.approx([10.0 + change * min(k, 2) + k for k in range(1, GAMMA_MAX + 2)])
    assert asdict(curve.repeat) == pytest.approx({"plain": change, "proposing": 2 * change})
    assert curve.plain == pytest.approx((11.0, 11.0))


def test_no_longer_draft_than_asked_for_is_measured(pair: tuple[CachedModel, CachedModel]) -> None:
    for gamma_max in (1, 2):
        assert measure(pair[0], LanguageModelDrafter(pair[1]), gamma_max=gamma_max).gamma_max == gamma_max


def test_a_drafter_with_nothing_to_propose_leaves_no_verification_unmeasured(
    pair: tuple[CachedModel, CachedModel],
) -> None:
    curve = measure(pair[0], PromptLookupDrafter(max_ngram=5, min_ngram=5))
    assert np.shape(curve.verify) == (2, GAMMA_MAX + 1)
    assert min(map(min, curve.verify)) > 0


def test_live_drafting_takes_in_what_was_committed(pair: tuple[CachedModel, CachedModel]) -> None:
    """The draft is measured in the states of the live loop: one or more unseen tokens, not always none."""
    unseen: list[int] = []

    class Watched(WrappedModel):
        def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
            unseen.append(len(tokens))
            return self.model.forward(tokens, last_only)

    target = pair[0]
    timer = StepTimer(Stopwatch(torch.device("cpu")), GAMMA_MAX, np.random.default_rng(0))
    perfect = LanguageModelDrafter(Watched(wrap(tiny_model(seed=1))))
    for _ in range(4):
        speculative_decode(target, TimedDrafter(perfect, timer, 1), timer, TEXT, DecodingSettings(60))
    assert 2 in unseen
    timer.settle()
    assert {sample.gamma for sample in timer.samples} == set(range(GAMMA_MAX + 1))
    for sample in timer.samples:
        assert 0 < sample.draft + sample.verify < sample.step
        assert (sample.draft == 0) == (sample.gamma == 0)


def test_every_length_gets_a_few_samples_whatever_the_time(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StepTimer] = []

    class Kept(StepTimer):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(meter, "StepTimer", Kept)
    told: list[tuple[int, int]] = []
    curve = measure(pair[0], LanguageModelDrafter(pair[1]), progress=lambda done, total: told.append((done, total)))
    assert sum(timer.fewest() for timer in made[-2:]) >= LEAST
    assert curve.uncertainty is not None
    assert min(curve.uncertainty.samples) >= LEAST
    assert len(curve.uncertainty.half_widths) == GAMMA_MAX + 1
    assert told[-1] == (100, 100)
    assert all(done <= total for done, total in told)


def test_it_stops_when_the_advice_is_settled_and_else_when_its_time_is_over(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    steady = SlowModel(pair[0], clock, 10.0, 1.0), SlowModel(pair[1], clock, 2.0, 0.0)
    settled = measure(steady[0], LanguageModelDrafter(steady[1]), seconds=1e6).uncertainty
    assert settled is not None
    assert (settled.undecided, max(settled.half_widths)) == ((), pytest.approx(0.0, abs=1e-12))
    assert settled.seconds < 1e5

    rng = np.random.default_rng(3)
    noisy = SlowModel(pair[0], clock, 10.0, 1.0)
    forward = noisy.forward

    def now_and_then_slow(tokens: Tensor, last_only: bool = False) -> Tensor:
        clock.now += rng.choice([0.0, 20.0, 40.0])
        return forward(tokens, last_only)

    monkeypatch.setattr(noisy, "forward", now_and_then_slow)
    costly = SlowModel(pair[1], clock, 5.0, 0.0)  # where half the tokens are accepted, drafting hardly pays or does not
    open_ = measure(noisy, LanguageModelDrafter(costly), seconds=40_000.0).uncertainty
    assert open_ is not None
    assert 40_000 <= open_.seconds < 80_000
    assert open_.undecided
    assert min(open_.samples) > min(settled.samples)


def test_contexts_past_the_models_are_measured_at_their_limit(pair: tuple[CachedModel, CachedModel]) -> None:
    curve = measure(pair[0], LanguageModelDrafter(pair[1]), contexts=(5, 100, 5000), context_limit=100)
    assert curve.contexts == (5, 100)
    assert measure(pair[0], LanguageModelDrafter(pair[1]), context_limit=20).contexts == (20,)


def test_models_too_short_to_decode_in_are_refused(pair: tuple[CachedModel, CachedModel]) -> None:
    with pytest.raises(DraftgaugeError, match="lower gamma_max"):
        measure(pair[0], LanguageModelDrafter(pair[1]), context_limit=2 * GAMMA_MAX + 2)
    with pytest.raises(DraftgaugeError, match="needs text"):
        measure(pair[0], LanguageModelDrafter(pair[1]), contexts=())


def test_default_contexts_reach_from_the_first_step_to_the_last() -> None:
    assert default_contexts([30, 200, 50], [100, 100, 20]) == (30, 80, 300)
    assert default_contexts([30], [0]) == (30,)


def test_marks_on_a_cpu_are_its_clock() -> None:
    watch = Stopwatch(torch.device("cpu"))
    start = watch.mark()
    end = watch.mark()
    assert stopwatch.seconds_between(start, end) == end - start >= 0


@pytest.mark.parametrize("first_capacity", [2048, 64])
def test_warming_meets_every_pass_that_steps_will_make(first_capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cache grows in between."""
    monkeypatch.setattr(lean, "FIRST_CAPACITY", first_capacity)
    target, draft = (wrap(tiny_model(seed=seed), "static") for seed in (0, 1))
    assert isinstance(target, StaticModel)
    assert isinstance(draft, StaticModel)
    target.first_bucket = draft.first_bucket = 16
    plan, rng = MeterPlan(TEXT, (40, 90), gamma_max=GAMMA_MAX), np.random.default_rng(0)
    bench, longer = (
        meter._Bench(target, LanguageModelDrafter(draft), plan, where, rng, None)
        for where in ((40, 20, 40), (100, 80, 40))
    )
    meter._warm([bench, longer])
    warmed = set(target._passes), set(draft._passes)
    assert {count for count, _ in warmed[0]} >= set(range(1, GAMMA_MAX + 2))
    for _ in range(3):
        bench.run_all()
    assert set(target._passes) <= warmed[0]
    assert set(draft._passes) <= warmed[1]
