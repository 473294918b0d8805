"""The policies of papers and serving systems decide what their rules say, computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies import Policy, Signal, Step, make_policy
from draftgauge.policies.fitted import bundled_policy, save_fitted
from draftgauge.policies.spec import read_policies
from draftgauge.policies.speckv import Network, SpecKV
from draftgauge.policies.vllm import LearnedChances
from linear_costs import LinearCosts

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
    assert depth.weight == pytest.approx(reference.coef_[0, 0], abs=0.1)
    assert depth.bias == pytest.approx(reference.intercept_[0], abs=0.1)
    assert depth.weight == pytest.approx(1.3, abs=0.15)


def test_vllm_refuses_a_slope_that_punishes_sure_drafts_and_rounds_with_few_samples() -> None:
    for count, start in ((40, [row(0.9, margins=[0.8])]), (200, [row(0.9, margins=[0.8]), row(0.5, margins=[0.1])])):
        policy = LearnedChances(1, refit=count, warm_up=0)
        for step in range(count):
            signals = start[step % len(start)]
            accepted = int(signals[0].confidence < 0.8)
            policy.observe(Step(1, accepted, accepted + 1, signals))
        assert (policy._depths[0].weight, policy._depths[0].bias) == (0.0, 1.5)
