"""The meters: complete tables from steps whose parts are timed where they should be, within the time given."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from batched_models import static_pair
from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.batched import BatchRun, Pass, batched_decode
from draftgauge.drafters import Drafter, LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft
from draftgauge.judging.replay import replay
from draftgauge.meter import BatchMeterPlan, MeterPlan, batches, default_contexts, measure_batches, measure_costs
from draftgauge.meter.costs import FEWEST_TO_TELL, _above_noise, _curve, rows_of
from draftgauge.meter.steps import BACKLOGS, LEAST_ROUNDS, Bench, KeepsPrompt, Sample, Schedule
from draftgauge.models.base import CachedModel
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.loading import wrap
from draftgauge.policies.spec import make_policy
from draftgauge.traces.costs import CostCurve
from draftgauge.verification import Sampling
from synthetic import synthetic_trace
from timed_work import Clock, TimedDrafter, TimedModel
from tiny import tiny_model, tokens

GAMMA_MAX = 3
TEXT = tokens(60, seed=1).tolist()


def slow(model: CachedModel, clock: Clock, base: float, each: float) -> TimedModel:
    """Takes ``base + each * k`` seconds for a pass over ``k`` tokens."""
    return TimedModel(model, clock, lambda tokens: base + each * tokens)


@pytest.fixture
def pair() -> tuple[CachedModel, CachedModel]:
    return wrap(tiny_model(seed=1)), wrap(tiny_model(seed=2, num_hidden_layers=1))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def measure(target: CachedModel, drafter: Drafter, contexts: tuple[int, ...] = (40, 90), **options) -> CostCurve:
    progress = options.pop("progress", lambda done, total: None)
    plan = MeterPlan(TEXT, contexts, **{"gamma_max": GAMMA_MAX, "seconds": 2.0} | options)
    curve = measure_costs(target, drafter, plan, np.random.default_rng(0), progress=progress)
    curve.validate()
    return curve


def test_the_curve_is_what_the_parts_take(pair: tuple[CachedModel, CachedModel], clock: Clock) -> None:
    target, draft = slow(pair[0], clock, 10.0, 1.0), slow(pair[1], clock, 2.0, 0.0)
    drafter = TimedDrafter(draft, looking=0.5, step=5.0)
    curve = measure(target, drafter, seconds=20_000.0)
    assert curve.contexts == (40, 90)
    for verify, draft in zip(curve.verify, curve.draft, strict=True):
        assert verify == pytest.approx([15.0 + k for k in range(1, GAMMA_MAX + 2)])
        assert draft == pytest.approx([2.0 * n for n in range(GAMMA_MAX + 1)])
    assert curve.plain == pytest.approx((11.0, 11.0))
    assert curve.signals == pytest.approx(0.5)
    assert curve.catch_up == pytest.approx((0.0,) * BACKLOGS)
    assert (curve.compression, curve.device, curve.dtype, curve.engine) == ("uncompressed", "cpu", "float32", "lean")
    assert (curve.measured.half_width, curve.measured.note) == (pytest.approx(0.0), "")
    assert curve.measured.seconds < 20_000  # nothing is left to find out
    assert min(curve.measured.samples) >= LEAST_ROUNDS


def test_what_taking_in_several_tokens_adds(pair: tuple[CachedModel, CachedModel], clock: Clock) -> None:
    target, draft = slow(pair[0], clock, 10.0, 1.0), slow(pair[1], clock, 2.0, 0.5)
    curve = measure(target, LanguageModelDrafter(draft), seconds=20_000.0)
    assert curve.keeps_drafted
    assert curve.catch_up == pytest.approx([0.5 * (tokens - 1) for tokens in range(1, BACKLOGS + 1)], abs=0.02)
    for row in curve.draft:
        assert row == pytest.approx([2.5 * n for n in range(GAMMA_MAX + 1)], abs=0.02)


@pytest.mark.parametrize("seconds", [15.0, 60.0, 1000.0])
@pytest.mark.filterwarnings("ignore:cost curve")
def test_the_time_is_kept_where_a_step_takes_half_a_second(
    pair: tuple[CachedModel, CachedModel], clock: Clock, seconds: float
) -> None:
    """The longest drafts take two seconds and a prompt of a thousand tokens ten."""
    target, draft = slow(pair[0], clock, 0.5, 0.01), slow(pair[1], clock, 0.1, 0.001)
    told: list[int] = []
    contexts = (40, 90, 120)
    asked = {"gamma_max": 16, "seconds": seconds, "progress": lambda done, total: told.append(done)}
    curve = measure(target, LanguageModelDrafter(draft), contexts, **asked)
    assert 0.5 * seconds < curve.measured.seconds == clock.now <= seconds
    for row, verify in zip(curve.draft, curve.verify, strict=True):
        assert row == pytest.approx([0.101 * n for n in range(17)], abs=0.02)
        assert verify == pytest.approx([0.51 + 0.01 * n for n in range(17)])
    timed = {n for n, count in enumerate(curve.measured.samples) if count}
    if seconds == 1000:
        assert (curve.contexts, timed, curve.measured.note) == (contexts, set(range(17)), "")
    else:
        assert {0, 1, 16} <= timed < set(range(17))
        assert "costs between them are interpolated" in curve.measured.note
        assert curve.measured.note.startswith("a step takes 0.51 to 2.3 s, so within")
    assert told == sorted(told)
    assert told[-1] == 100
    assert max(np.diff([0, *told])) <= 100 * 2.5 / seconds + 25  # a prompt goes by at once, and so may the end


INT4 = (28.6, 33.5, 39.2, 45.0, 84.1, 85.5, 86.7, 87.9, 130.0, 131.0, 132.0, 133.0, 172.0, 172.1, 172.3, 172.4, 215.0)
Q4_0 = (26.6, 45.6, 59.3, 52.8, 71.6, 85.7, 98.0, 88.3, 100.0, 110.0, 118.0, 112.0, 125.0, 132.0, 140.0, 146.7, 150.0)


@pytest.mark.parametrize("law", [INT4, Q4_0], ids=["rows in fours", "a cheap fourth row"])
@pytest.mark.filterwarnings("ignore:cost curve")
def test_steps_of_the_costs_are_found_in_the_default_time(
    pair: tuple[CachedModel, CachedModel], clock: Clock, law: tuple[float, ...]
) -> None:
    """Milliseconds of a pass of 1, 2, ... tokens; a drafted token takes 8, a prompt's token 4, the noise is 3%."""
    rng = np.random.default_rng(5)

    def seconds(tokens: int, table: tuple[float, ...]) -> float:
        taken = table[tokens - 1] if tokens <= len(table) else 4.0 * tokens
        return 1e-3 * taken * float(rng.lognormal(0.0, 0.03))

    target = TimedModel(pair[0], clock, lambda tokens: seconds(tokens, law))
    draft = TimedModel(pair[1], clock, lambda tokens: seconds(tokens, (8.0,) * 17))
    curve = measure(target, LanguageModelDrafter(draft), (40, 80, 120), gamma_max=16, seconds=15.0)
    assert clock.now <= 15.0
    assert min(curve.measured.samples[:10]) >= LEAST_ROUNDS
    for row in curve.verify:
        np.testing.assert_allclose(row[:10], 1e-3 * np.array(law[:10]), rtol=0.05)
    falls = {tokens for tokens in range(1, 10) if curve.verify[0][tokens] < curve.verify[0][tokens - 1]}
    assert falls == ({3, 7} if law is Q4_0 else set())
    for row in curve.draft:
        np.testing.assert_allclose(row[1:], 0.008 * np.arange(1, 17), rtol=0.08)
    committed = (1 - 0.9 ** np.arange(1, 18)) / 0.1  # where nine of ten tokens are accepted
    assert (committed / curve.step_seconds(np.arange(17), 40)).argmax() == 3


@pytest.mark.filterwarnings("ignore:cost curve")
def test_long_verifications_are_timed_behind_short_sampled_drafts(
    pair: tuple[CachedModel, CachedModel], clock: Clock
) -> None:
    sampling, generator = Sampling(temperature=1.0), torch.Generator().manual_seed(0)
    target, draft = slow(pair[0], clock, 0.05, 0.01), slow(pair[1], clock, 0.1, 0.0)
    drafter = LanguageModelDrafter(draft, sampling=sampling, generator=generator)
    plan = MeterPlan(TEXT, (40,), gamma_max=8, seconds=20.0, sampling=sampling)
    curve = measure_costs(target, drafter, plan, np.random.default_rng(0), generator)
    assert min(curve.measured.samples) >= FEWEST_TO_TELL
    assert curve.measured.drafts[3:8] == (0,) * 5
    np.testing.assert_allclose(curve.verify[0], 0.05 + 0.01 * np.arange(1, 10))
    np.testing.assert_allclose(curve.draft[0], 0.1 * np.arange(9), atol=0.01)


def test_what_cannot_be_left_out_is_measured_whatever_the_time(
    pair: tuple[CachedModel, CachedModel], clock: Clock
) -> None:
    target, draft = slow(pair[0], clock, 10.0, 1.0), slow(pair[1], clock, 2.0, 0.0)
    told: list[int] = []
    asked = {"gamma_max": 8, "seconds": 1.0, "progress": lambda done, total: told.append(done)}
    with pytest.warns(UserWarning, match="drafts of 0, 1, 8 tokens were timed at contexts of 40 tokens"):
        curve = measure(target, LanguageModelDrafter(draft), **asked)
    assert curve.contexts == (40,)
    assert curve.verify[0] == pytest.approx([10.0 + k for k in range(1, 10)])
    assert "that alone takes about" in curve.measured.note
    assert told.count(99) <= 2


def test_no_marginal_cost_is_below_0_on_a_noisy_machine(pair: tuple[CachedModel, CachedModel], clock: Clock) -> None:
    rng = np.random.default_rng(3)

    def noise() -> float:
        return float(rng.choice([0.0, 20.0, 40.0]))

    target = TimedModel(pair[0], clock, lambda tokens: noise() + 10.0 + 0.01 * tokens)
    draft = TimedModel(pair[1], clock, lambda tokens: noise() + 0.1)
    curve = measure(target, LanguageModelDrafter(draft), seconds=10_000.0)
    for row in (*curve.verify, *curve.draft):
        assert min(np.diff(row)) >= 0
    assert curve.cost_ratio() >= 0
    assert 5_000 < curve.measured.seconds <= 10_000
    assert curve.measured.half_width > 0.05


def test_replay_charges_a_wait_for_each_drafted_token_that_a_policy_looks_at() -> None:
    trace = synthetic_trace(seed=0, prompts=4, length=30, gamma_max=GAMMA_MAX)
    row = ((1.0,) * (GAMMA_MAX + 1),)
    curve = CostCurve((10,), row, row, (1.0,), "uncompressed", "cpu", "float32", signals=0.5)
    for spec, charged in {"fixed:2": 0.0, "hf-heuristic": 0.0, "hf-confidence": 0.5, "svip": 0.5}.items():
        record = replay(trace, make_policy(spec, GAMMA_MAX, curve), curve).record
        np.testing.assert_allclose(record.seconds, 2 + charged * record.drafted, err_msg=spec)


def test_a_drafter_with_nothing_to_propose_leaves_no_verification_unmeasured(
    pair: tuple[CachedModel, CachedModel], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(PromptLookupDrafter, "propose", lambda *_: Draft([]))
    curve = measure(slow(pair[0], clock, 10.0, 1.0), PromptLookupDrafter(), seconds=20_000.0)
    assert np.shape(curve.verify) == (2, GAMMA_MAX + 1)
    assert min(map(min, curve.verify)) > 0
    assert min(curve.measured.samples) > 0


def test_contexts_past_the_models_are_measured_at_their_limit(
    pair: tuple[CachedModel, CachedModel], clock: Clock
) -> None:
    target, drafter = slow(pair[0], clock, 10.0, 1.0), LanguageModelDrafter(pair[1])
    curve = measure(target, drafter, contexts=(5, 100, 5000), context_limit=100, seconds=20_000.0)
    assert curve.contexts == (5, 100)
    assert measure(target, drafter, context_limit=20, seconds=20_000.0).contexts == (20,)


def test_a_prompt_is_taken_in_once() -> None:
    """Whatever is decoded behind it, and where another one begins alike."""
    model, text = wrap(tiny_model(seed=1)), tokens(30, seed=2)
    kept, fresh, taken = KeepsPrompt(model), wrap(tiny_model(seed=1)), list[int]()
    forward = model.forward
    model.forward = lambda fed, last_only=False: taken.append(len(fed)) or forward(fed, last_only)
    for prompt, behind, back, anew in ((20, 4, 22, 20), (20, 6, 21, 1), (12, 3, 8, 1), (15, 2, 15, 7), (1, 3, 1, 0)):
        for each in (kept, fresh):
            each.reset()
            assert each.length == 0
            if prompt > 1:
                each.forward(text[:prompt], last_only=True)
        assert not anew or taken[-1] == anew
        got, wanted = (each.forward(text[-behind:]) for each in (kept, fresh))
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)
        for each in (kept, fresh):
            each.truncate(min(back, each.length))


@pytest.mark.parametrize("seconds", [0.0, 200.0])
def test_first_passes_that_are_slow_are_no_samples(
    pair: tuple[CachedModel, CachedModel], clock: Clock, seconds: float
) -> None:
    passes = itertools.count()
    target = TimedModel(pair[0], clock, lambda tokens: (10.0 if next(passes) < 4 else 1.0) + 0.01 * tokens)
    curve = measure(target, PromptLookupDrafter(), contexts=(40,), seconds=seconds)
    assert curve.verify[0][0] == pytest.approx(1.01)


def test_models_too_short_to_decode_in_are_refused(pair: tuple[CachedModel, CachedModel]) -> None:
    with pytest.raises(DraftgaugeError, match="lower gamma_max"):
        measure(pair[0], LanguageModelDrafter(pair[1]), context_limit=2 * GAMMA_MAX + 2)
    with pytest.raises(DraftgaugeError, match="needs text"):
        measure(pair[0], LanguageModelDrafter(pair[1]), contexts=())


def test_default_contexts_reach_from_the_first_step_to_the_last() -> None:
    assert default_contexts([30, 200, 50], [100, 100, 20]) == (30, 80, 300)
    assert default_contexts([30], [0]) == (30,)


@pytest.mark.parametrize(("spread", "wait"), [(0.001, 0.02), (0.2, 0.0)])
def test_a_wait_that_noise_explains_costs_nothing(spread: float, wait: float) -> None:
    assert _above_noise([0.02 + spread * step for step in (-2, -1, 0, 1, 2)]) == wait


@pytest.mark.parametrize(
    ("one_token", "kept"), [((0.21, 0.20, 0.21, 0.22, 0.21), True), ((0.18, 0.16, 0.21, 0.14, 0.17), False)]
)
def test_a_pass_of_one_token_may_take_longer_than_one_of_two_where_the_samples_tell_them_apart(
    one_token: tuple[float, ...], kept: bool
) -> None:
    timed = {0: one_token, 1: (0.16, 0.17, 0.16, 0.16, 0.17), 4: (0.2, 0.2, 0.2, 0.2, 0.2)}
    (row,) = rows_of([timed], range(5))
    assert (row[0] > row[1]) == kept
    assert (np.diff(row[1:]) >= 0).all()
    assert not kept or row[0] == np.median(one_token)


def test_too_few_samples_never_make_one_token_more_expensive_than_two() -> None:
    (row,) = rows_of([{0: [0.21], 1: [0.16], 2: [0.17]}], range(3))
    assert row[0] <= row[1] <= row[2]


def test_a_draft_that_runs_while_the_host_launches_the_verification_is_priced_so() -> None:
    """On a GPU: 10 ms of launches a pass, 1 ms of the device for each drafted token, 0.2 ms to read one."""
    samples = [Sample(0, 0, False, 1, 0.0, 0.010)] * 8
    for length in range(1, 17):
        samples += [Sample(length, length, False, 1, 0.001 * length, max(0.002, 0.010 - 0.001 * length))] * 4
    samples += [Sample(length, length, True, 1, 0.0012 * length, 0.010) for length in (2, 4, 16) for _ in range(4)]
    bench = Bench(64, 60, samples, [0.010] * 4)
    plan = MeterPlan(text=[1], contexts=[64], gamma_max=16)
    target = SimpleNamespace(spec=SimpleNamespace(device="cuda:0", dtype=torch.bfloat16, engine="lean"))
    schedule = Schedule([bench], tuple(range(17)), tuple(range(17)), 3, 1.0, "")
    curve = _curve(schedule, plan, target, 1.0, keeps=False, overlaps=True)
    np.testing.assert_allclose(curve.verify, 0.010)
    assert curve.plain == (0.010,)
    taken = [0.0, *(max(1e-9, 0.001 * length - 0.008) for length in range(1, 17))]
    np.testing.assert_allclose(curve.draft[0], taken, atol=1e-6)  # the first eight lie under the launches
    read = [curve.verify[0][length] + curve.draft[0][length] + curve.signals * length for length in (2, 4, 16)]
    np.testing.assert_allclose(read, [0.0124, 0.0148, 0.0292], rtol=0.15)
    assert read[2] == pytest.approx(0.0292, rel=0.03)


LONG_TEXT = tokens(200, 3).tolist()


@pytest.fixture(scope="module")
def models() -> tuple[StaticModel, StaticModel]:
    return static_pair()


def test_the_meter_finds_what_passes_cost(
    models: tuple[StaticModel, StaticModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def price(p: Pass) -> float:
        if p.records:
            return 100.0  # a graph was recorded, which is no part of what a pass costs
        if p.kind == "verify":
            return 1 + 0.1 * p.tokens
        return 0.2 + 0.05 * min(p.tokens, 2 * p.rows) + 0.03 * p.signals

    def at_known_prices(*asked: object) -> BatchRun:
        run = batched_decode(*asked)  # type: ignore[arg-type]
        run.passes = [[p._replace(seconds=price(p)) for p in step] for step in run.passes]
        run.seconds = [0.5 + sum(p.seconds for p in step) for step in run.passes]
        return run

    monkeypatch.setattr(batches, "batched_decode", at_known_prices)
    plan = BatchMeterPlan(LONG_TEXT, (3,), (24, 100), gamma_max=3, seconds=1.0)
    costs = measure_batches(models[0], models[1], plan, np.random.default_rng(0))
    costs.validate()
    assert costs.batches == (1, 3)
    for row, batch in enumerate((1, 3)):
        for verify, draft in zip(costs.verify[row], costs.draft[row], strict=True):
            assert verify == pytest.approx([1.5 + 0.1 * batch * k for k in range(1, 5)])
            assert draft == pytest.approx([0.2 + 0.05 * batch * k for k in (1, 2)])
    assert costs.signals == pytest.approx((0.03, 0.03))


def test_with_little_time_one_context_is_measured(models: tuple[StaticModel, StaticModel]) -> None:
    plan = BatchMeterPlan(LONG_TEXT, (2, 3), (24, 100), gamma_max=2, seconds=0.0)
    costs = measure_batches(models[0], models[1], plan, np.random.default_rng(0))
    costs.validate()
    assert (costs.batches, costs.gamma_max, len(costs.contexts)) == ((1, 2, 3), 2, 1)
    with pytest.raises(DraftgaugeError, match="needs more than"):
        measure_batches(models[0], models[1], BatchMeterPlan(LONG_TEXT, (2,), (24,), 30), np.random.default_rng(0))
