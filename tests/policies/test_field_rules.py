"""Policies of papers, serving systems and transformers decide what their rules say, live as in replay."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.judging.replay import replay
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies import Policy, Signal, Step, make_policy
from draftgauge.policies.fitted import bundled_policy, save_fitted
from draftgauge.policies.spec import read_policies
from draftgauge.policies.speckv import Network, SpecKV
from draftgauge.policies.vllm import LearnedChances
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from recordings import assert_same_steps, recorded_trace
from tiny import noisy, tiny_model, tokens

BITS = 1 / math.log(2)  # a nat


def drafted(policy: Policy, signals: list[Signal]) -> int:
    """How many of the tokens that the drafter has are drafted, asked as the loop asks."""
    most = min(policy.limit(), len(signals))
    return next((depth for depth in range(1, most) if not policy.keep_drafting(signals[depth - 1])), most)


def row(*confidences: float, entropies: list[float] | None = None, margins: list[float] | None = None) -> list[Signal]:
    """The signals of a draft; entropies in bits."""
    entropies = entropies or [0.0] * len(confidences)
    margins = margins or list(confidences)
    return [
        Signal(depth, *values)
        for depth, values in enumerate(zip(confidences, entropies, margins, strict=True), start=1)
    ]


def outcomes(policy: Policy, accepted: list[int]) -> list[int]:
    """The lengths of steps that draft what the policy says and of which at most so many tokens are accepted."""
    lengths = []
    for most in accepted:
        length = policy.limit()
        lengths.append(length)
        policy.observe(Step(length, min(length, most), min(length, most) + 1))
    return lengths


def test_svip_stops_above_an_entropy_of_six_tenths_of_a_nat() -> None:
    # sqrt(0.15 H) > 0.3 where H > 0.6 nats.
    policy = make_policy("svip", 8)
    assert drafted(policy, row(*[0.5] * 5, entropies=[0.1 * BITS, 0.59 * BITS, 0.61 * BITS, 0.0, 0.0])) == 3
    assert drafted(policy, row(*[0.5] * 5, entropies=[0.59 * BITS] * 5)) == 5


# The acceptance rate is mean confidence - gamma / 10 + compression / 10; the other signals are multiplied by 0.
KV_NETWORK = Network(
    hidden=((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0)),
    hidden_bias=(0.0, 0.0, 0.0),
    output=(1.0, -0.1, 0.1),
    output_bias=0.0,
)


def test_speckv_goes_by_the_targets_compression_unless_its_spec_names_one(tmp_path: Path) -> None:
    save_fitted(bundled_policy("speckv"), tmp_path / "own.json")
    specs = read_policies(["speckv", str(tmp_path / "own.json"), "speckv:compression=nf4", "speckv:compression=int8"])
    for told in ((LinearCosts(compression="nf4"), None), (None, "nf4"), (None, "bnb-nf4")):
        own, file, nf4, int8 = (spec.make(16, *told).rates((1.0, 0.6, 2.0, 0.3)).tolist() for spec in specs)
        assert own == file == nf4 != int8
    for named, level in (("awq", nf4), ("int4", nf4), ("fp8", int8), ("int8-weight", int8)):
        assert all(spec.make(16, None, named).rates((1.0, 0.6, 2.0, 0.3)).tolist() == level for spec in specs[:2])
    for spec in specs[:2]:
        with pytest.raises(DraftgaugeError, match="which gptq does not say: name speckv:compression=nf4"):
            spec.make(16, None, "gptq")
    with pytest.raises(DraftgaugeError, match="which this target does not say"):
        specs[0].make(16, LinearCosts(compression="uncompressed", engine="gguf-fast"))


def test_speckv_takes_the_candidate_with_the_most_expected_tokens() -> None:
    # At confidence 0.9: 0.7 * 2, 0.5 * 4, 0.3 * 6, 0.1 * 8 tokens and one more. At 0.5: 0.3 * 2, 0.1 * 4, then 0.
    # At 1.5 the rate is clipped: 1 * 2, 1 * 4, 0.9 * 6, 0.7 * 8.
    policy = SpecKV(KV_NETWORK, "uncompressed", 16)
    lengths = []
    for confidence in (0.9, 0.5, 1.5, None, 0.9):
        lengths.append(policy.limit())
        signals = [] if confidence is None else row(confidence + 0.05, confidence - 0.05)
        policy.observe(Step(len(signals), 0, 1, signals))
    assert lengths == [4, 4, 2, 8, 8]
    assert policy.rates((0.0, 0.1, 0.0, 0.0)).tolist() == [0.0] * 4
    policy.reset()
    assert policy.limit() == 4
    # nf4 adds 0.2 to every rate: at 0.9, 0.9 * 2, 0.7 * 4, 0.5 * 6, 0.3 * 8
    policy = SpecKV(KV_NETWORK, "nf4", 16)
    policy.observe(Step(1, 0, 1, row(0.9)))
    assert policy.limit() == 6


def test_speckv_reads_means_and_extremes_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    hidden, bias, output = rng.normal(size=(6, 5)), rng.normal(size=5), rng.random(5) / 4
    policy = SpecKV(Network(*(tuple(map(tuple, hidden)), tuple(bias), tuple(output)), 0.2), "int8", 6)
    told: list[Any] = []
    monkeypatch.setattr(policy, "rates", lambda summary, rates=policy.rates: told.append(summary) or rates(summary))
    policy.observe(Step(3, 0, 1, row(0.9, 0.4, 0.8, entropies=[1.0, 3.0, 0.5])))
    assert told == [pytest.approx((1.5, 0.7, 3.0, 0.4))]
    wanted = [np.maximum([*told[0], 1, gamma] @ hidden + bias, 0) @ output + 0.2 for gamma in (2, 4, 6)]
    assert policy.rates(told[0]).tolist() == pytest.approx(np.clip(wanted, 0, 1))
    assert min(wanted) < 1 < max(wanted)


def test_sglang_adaptive_climbs_after_its_warm_up_and_falls_below_the_thresholds() -> None:
    # All 3 tokens are accepted: the average, from 2, is 3 - 0.8^n. The first decision is at step 15: above 2.5, up to
    # 7.
    policy = make_policy("sglang-adaptive", 16)
    assert outcomes(policy, [3] * 16) == [3] * 15 + [7]
    # It is 2.97 at step 15 and 2.97 at step 16; nothing is accepted from now on, and it falls by a fifth a step:
    # 1.22 at step 20 (2.25 or less: down to 3), 0.40 at step 25 (stays), 0.13 at step 30 (0.25 or less: down to 1).
    assert outcomes(policy, [0] * 15) == [7] * 4 + [3] * 10 + [1]
    policy.reset()
    assert policy.limit() == 1, "what is learned stays from prompt to prompt"


def test_sglang_adaptive_takes_the_first_length_among_its_candidates_and_stays_within_gamma_max() -> None:
    policy = make_policy("sglang-adaptive:start=4,warm_up=0,every=1,smoothing=1", 16)
    assert outcomes(policy, [4, 9, 0, 0]) == [4, 7, 7, 1]
    assert outcomes(make_policy("sglang-adaptive:start=9", 5), [5] * 16) == [5] * 16


def test_vllm_drafts_while_the_rate_rises() -> None:
    # Untrained, every token stands with chance s = sigmoid(1.5) = 0.818: 1 + s + s^2 + ... tokens in 1 + 0.4 gamma
    # seconds are 1, 1.299, 1.382 and 1.379 tokens a second.
    policy = make_policy("vllm:warm_up=0", 16, LinearCosts(drafting=0.4))
    assert drafted(policy, row(*[0.5] * 9)) == 3
    assert drafted(make_policy("vllm:warm_up=0", 16, LinearCosts(drafting=1.0)), row(*[0.5] * 9)) == 1
    assert drafted(make_policy("vllm:warm_up=0", 16, LinearCosts(drafting=0.0)), row(*[0.5] * 9)) == 7
    # Reading two signals costs 2 s as well: 1/3, 1.818/3.4, 2.486/3.8, 3.032/4.2, 3.479/4.6, 3.845/5 = 0.769, 4.143/5.4
    # = 0.767.
    assert drafted(make_policy("vllm:warm_up=0", 16, LinearCosts(drafting=0.4, reading=1.0)), row(*[0.5] * 9)) == 6
    # Whole blocks until the coefficients have moved once, after 2 steps.
    policy = make_policy("vllm:refit=2,warm_up=1", 16, LinearCosts(drafting=1.0))
    lengths = []
    for _ in range(4):
        lengths.append(drafted(policy, row(*[0.5] * 9)))
        policy.observe(Step(lengths[-1], 0, 1, row(*[0.5] * lengths[-1])))
    assert lengths == [7, 7, 1, 1]


def test_vllm_learns_the_chance_from_the_margin_of_logits() -> None:
    rng = np.random.default_rng(0)
    policy = LearnedChances(2, refit=4000, warm_up=0)
    xs, ys = [], []
    for _ in range(8):  # Newton steps, each on samples of its own
        for _ in range(4000):
            second = rng.uniform(0.02, 0.45)
            margin = math.log((1 - second) / second)
            accepted = int(rng.random() < 1 / (1 + math.exp(0.5 - 1.3 * margin)))
            xs.append(margin)
            ys.append(accepted)
            policy.observe(Step(2, accepted, accepted + 1, row(1 - second, 0.5, margins=[1 - 2 * second, 0.2])))
    reference = LogisticRegression(C=np.inf).fit(np.array(xs)[-4000:, None], ys[-4000:])
    depth = policy._depths[0]
    assert policy.chance(Signal(1, 0.8, 0.0, 0.6)) == depth.chance(math.log(0.8 / (0.8 - 0.6)))
    assert depth.weight == pytest.approx(reference.coef_[0, 0], abs=0.1)
    assert depth.bias == pytest.approx(reference.intercept_[0], abs=0.1)
    assert depth.weight == pytest.approx(1.3, abs=0.15)


@pytest.mark.parametrize(("count", "sure", "learns"), [(40, 1, False), (200, 0, False), (200, 1, True)])
def test_vllm_refuses_slopes_that_punish_sure_drafts_and_few_samples(count: int, sure: int, learns: bool) -> None:
    policy = LearnedChances(2, refit=count, warm_up=0)
    drafts = row(0.5, margins=[0.1]), row(0.9, margins=[0.8])
    for step in range(count):
        accepted = int(step % 2 == sure)
        policy.observe(Step(2, accepted, accepted + 1, [*drafts[step % 2], Signal(2, 0.5, 0.0, 0.1)]))
        assert policy._depths[1].count <= policy._depths[0].count / 2 + 1  # none behind a refused one
    depth = policy._depths[0]
    assert depth.weight > 0 if learns else (depth.weight, depth.bias) == (0.0, 1.5)


GAMMA_MAX = 64  # longer than any length reached here, as transformers has no longest draft


def transformers_generator(schedule: str, threshold: float = 0.4, tokens: int = 20) -> Any:
    """The part of transformers that adapts the draft length, without its models."""
    generator = AssistedCandidateGenerator.__new__(AssistedCandidateGenerator)
    generator.assistant_generation_config = SimpleNamespace(
        num_assistant_tokens_schedule=schedule, assistant_confidence_threshold=threshold
    )
    generator.generation_config = SimpleNamespace(assistant_confidence_threshold=threshold)
    generator.num_assistant_tokens = tokens
    generator.probs = []
    generator.matches = []
    return generator


def take_step(policy: Policy, generator: Any, confidences: list[float], matches: int) -> None:
    """The same outcome of one step, told to both."""
    drafted = len(confidences)
    generator.probs.extend(confidences)
    generator.update_candidate_strategy(None, [range(drafted + 1)], matches)
    signals = [Signal(depth, confidence, 0.0, 0.0) for depth, confidence in enumerate(confidences, start=1)]
    policy.observe(Step(drafted, matches, matches + 1, signals))


def random_steps(seed: int, count: int) -> list[tuple[list[float], int]]:
    """Confidences of the drafted tokens of each step, with many ties, and how many matched."""
    rng = np.random.default_rng(seed)
    steps = []
    for drafted in rng.integers(0, 6, count).tolist():
        confidences = rng.integers(1, 21, drafted) / 20
        wrong = np.flatnonzero(rng.random(drafted) > confidences)
        steps.append((confidences.tolist(), int(wrong[0]) if len(wrong) else drafted))
    return steps


def test_defaults_are_those_of_transformers() -> None:
    defaults = GenerationConfig()._get_default_generation_params()
    assert make_policy("hf-heuristic", GAMMA_MAX).limit() == defaults["num_assistant_tokens"]
    assert make_policy("hf-confidence", GAMMA_MAX).limit() == defaults["num_assistant_tokens"]
    for adaptive in ("true", "false"):
        policy = make_policy(f"hf-confidence:adaptive={adaptive}", GAMMA_MAX)
        assert policy.keep_drafting(Signal(1, defaults["assistant_confidence_threshold"], 0.0, 0.0))
        assert not policy.keep_drafting(Signal(1, defaults["assistant_confidence_threshold"] - 1e-6, 0.0, 0.0))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_heuristic_follows_transformers(seed: int) -> None:
    policy, generator = (
        make_policy("hf-heuristic:start=4", GAMMA_MAX),
        transformers_generator("heuristic", threshold=0.0, tokens=4),
    )
    for confidences, matches in random_steps(seed, 20):
        take_step(policy, generator, confidences, matches)
        assert policy.limit() == generator.num_assistant_tokens


@pytest.mark.parametrize(("seed", "steps"), [*((seed, 12) for seed in range(12)), *((seed, 60) for seed in range(8))])
def test_adaptive_threshold_follows_transformers_exactly(seed: int, steps: int) -> None:
    policy, generator = make_policy("hf-confidence:adaptive=true", GAMMA_MAX), transformers_generator("constant")
    for confidences, matches in random_steps(seed, steps):
        take_step(policy, generator, confidences, matches)
        threshold = generator.assistant_generation_config.assistant_confidence_threshold
        assert policy.keep_drafting(Signal(1, threshold, 0.0, 0.0))
        assert not policy.keep_drafting(Signal(1, np.nextafter(threshold, 0.0), 0.0, 0.0))


@pytest.mark.parametrize(("persistent", "after_reset"), [("true", 5), ("false", 3)])
def test_heuristic_length_carries_over_to_the_next_prompt_unless_transient(persistent: str, after_reset: int) -> None:
    policy = make_policy(f"hf-heuristic:start=3,persistent={persistent}", GAMMA_MAX)
    policy.observe(Step(drafted=3, accepted=3, committed=4))
    policy.reset()
    assert policy.limit() == after_reset


def test_adaptive_threshold_begins_anew_with_every_prompt() -> None:
    policy = make_policy("hf-confidence:adaptive=true", GAMMA_MAX)
    for _ in range(4):  # confident and wrong after confident and right
        policy.observe(Step(2, 1, 2, [Signal(1, 0.95, 0.0, 0.0), Signal(2, 0.9, 0.0, 0.0)]))
    assert not policy.keep_drafting(Signal(1, 0.9, 0.0, 0.0))
    policy.reset()
    assert policy.keep_drafting(Signal(1, 0.4, 0.0, 0.0))
    assert not policy.keep_drafting(Signal(1, 0.39, 0.0, 0.0))


LIVE_GAMMA = 8
PROMPTS = [tokens(11, seed=1).tolist(), tokens(9, seed=4).tolist()]
SETTINGS = DecodingSettings(40)
SPECS = ("hf-heuristic:start=3", "hf-confidence:threshold=0.3,adaptive=true", "cumulative-confidence:threshold=0.3")
SPECS += ("stopping", "svip:scale=0.05,threshold=0.35", "speckv", "sglang-adaptive:warm_up=2,every=1")
SPECS += ("vllm:refit=60,warm_up=0", "vllm:refit=5,warm_up=1", "lookup:least=1,tokens=4", "lookup:least=2")
SPECS += ("vllm-ngram:least=1,longest=2", "suffix", "ngram-mod:ngram=2,least=2,tokens=4")
SPECS += ("hf-prompt-lookup", "lookup-else-stopping", "two-source")


@pytest.fixture(scope="module")
def pair() -> tuple[CachedModel, CachedModel]:
    """A target and a draft that agrees with it now and then: the target's weights with noise."""
    return wrap(tiny_model()), wrap(noisy(tiny_model(), 0.1))


@pytest.fixture(scope="module")
def trace(pair: tuple[CachedModel, CachedModel]) -> Trace:
    target, draft = pair
    return recorded_trace(target, LanguageModelDrafter(draft), PROMPTS, SETTINGS, LIVE_GAMMA)


@pytest.mark.parametrize("spec", SPECS)
def test_replay_is_live_step_by_step_over_several_prompts(
    spec: str, pair: tuple[CachedModel, CachedModel], trace: Trace
) -> None:
    target, draft = pair
    costs = LinearCosts()
    policy, drafter = make_policy(spec, LIVE_GAMMA, costs), LanguageModelDrafter(draft)
    live = [step for prompt in PROMPTS for step in speculative_decode(target, drafter, policy, prompt, SETTINGS).steps]
    replayed = replay(trace, make_policy(spec, LIVE_GAMMA, costs))
    assert_same_steps(live, replayed)
    if not spec.startswith("speckv"):  # which wants the longest draft nearly always
        proposed = set((replayed.record.drafted + replayed.record.appended).tolist())
        assert len(proposed) > 2, "the policy must vary its length for this to say something"
