"""Every policy keeps its contract: within gamma_max, at once as token by token, clear about what it cannot take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies import Policy, Signal, SignalArrays, StatelessPolicy, Step
from draftgauge.policies.base import asks_after_each_token
from draftgauge.policies.spec import PolicySpec, make_policy, read_policies
from linear_costs import LinearCosts

GAMMA_MAX = 5
COSTS = LinearCosts()
SPECS = ("no-draft", "fixed:3", "hf-heuristic", "hf-heuristic:start=3,persistent=false", "hf-confidence")
SPECS += ("hf-confidence:0.7,tokens=3", "hf-confidence:adaptive=true", "cumulative-confidence:threshold=0.3", "svip")
SPECS += ("svip:threshold=0.5,scale=0.2,tokens=4", "speckv", "speckv:compression=nf4")
SPECS += ("sglang-adaptive:warm_up=1,every=1", "vllm:refit=2,warm_up=1", "stopping")
examples = settings(max_examples=50, deadline=None)
STATELESS = tuple(spec for spec in SPECS if isinstance(make_policy(spec, GAMMA_MAX, COSTS), StatelessPolicy))


def drafted_token_by_token(policy: Policy, signals: list[Signal]) -> int:
    """How many tokens the live loop would draft of those that the drafter has."""
    most = min(policy.limit(), len(signals))
    for drafted in range(1, most):
        if asks_after_each_token(policy.reads) and not policy.keep_drafting(signals[drafted - 1]):
            return drafted
    return most


def signal_rows(arrays: SignalArrays) -> list[list[Signal]]:
    columns = zip(arrays.confidence.tolist(), arrays.entropy.tolist(), arrays.margin.tolist(), strict=True)
    return [[Signal(depth, *values) for depth, values in enumerate(zip(*row, strict=True), start=1)] for row in columns]


@st.composite
def signal_arrays(draw: st.DrawFn) -> SignalArrays:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Coarse values, so that a confidence often equals a threshold up to the rounding of float32.
    confidence = (rng.integers(1, 11, (draw(st.integers(1, 12)), GAMMA_MAX)) / 10).astype(np.float32)
    return SignalArrays(confidence, -np.log2(confidence), confidence / 2)


@pytest.mark.parametrize("spec", STATELESS)
@examples
@given(arrays=signal_arrays())
def test_all_positions_at_once_agree_with_token_by_token(spec: str, arrays: SignalArrays) -> None:
    policy = make_policy(spec, GAMMA_MAX, COSTS)
    assert isinstance(policy, StatelessPolicy)
    assert policy.lengths(arrays).tolist() == [drafted_token_by_token(policy, row) for row in signal_rows(arrays)]


@pytest.mark.parametrize("spec", SPECS)
@examples
@given(arrays=signal_arrays(), outcomes=st.lists(st.integers(0, GAMMA_MAX), min_size=12, max_size=12))
def test_no_limit_exceeds_gamma_max(spec: str, arrays: SignalArrays, outcomes: list[int]) -> None:
    policy = make_policy(spec, GAMMA_MAX, COSTS)
    policy.reset()
    for row, outcome in zip(signal_rows(arrays), outcomes, strict=False):
        assert 0 <= policy.limit() <= GAMMA_MAX
        drafted = drafted_token_by_token(policy, row)
        accepted = min(drafted, outcome)
        policy.observe(Step(drafted, accepted, accepted + 1, row[:drafted]))
    assert 0 <= policy.limit() <= GAMMA_MAX


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fixed:6", "gamma must be 0 to 5"),
        ("fixed:-1", "gamma must be 0 to 5"),
        ("hf-heuristic:start=0", "start must be at least 1"),
        ("hf-heuristic:gamma_max=6", "gamma_max must be 1 to 5"),
        ("hf-confidence:0", "threshold must be above 0 and at most 1"),
        ("hf-confidence:tokens=0", "tokens must be at least 1"),
        ("cumulative-confidence:1.5", "threshold must be above 0 and at most 1"),
        ("svip:0", "threshold must be above 0"),
        ("svip:scale=-1", "scale must be above 0"),
        ("svip:tokens=0", "tokens must be at least 1"),
        ("speckv:compression=int3", "which int3 does not say: name speckv:compression=nf4"),
        ("sglang-adaptive:candidates=-1,3", "lengths of at least 0, not -1"),
        ("sglang-adaptive:smoothing=2", "smoothing must be 0 to 1"),
        ("sglang-adaptive:every=0", "every must be at least 1"),
        ("vllm:refit=0", "refit must be at least 1"),
        ("vllm:warm_up=-1", "warm_up must be at least 0"),
        ("lookup:least=0", "least must be at least 1"),
        ("adaptive-verification", "is for batches: profile with --batches"),
        ("lookup-else-stopping:least=33", "least must be at most 32, the longest match, not 33"),
    ],
)
def test_bad_specs_are_refused_with_what_is_wrong(spec: str, message: str) -> None:
    with pytest.raises(DraftgaugeError) as caught:
        read_policies([spec])[0].make(GAMMA_MAX, COSTS)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["stopping", "two-source", "vllm"])
def test_policies_that_weigh_cost_need_a_cost_curve_and_room_for_a_draft(name: str) -> None:
    with pytest.raises(DraftgaugeError, match="give the pair's cost curve"):
        make_policy(name, GAMMA_MAX)
    with pytest.raises(DraftgaugeError, match="at least 1, not 0"):
        make_policy(name, 0, COSTS)


def test_bare_fixed_stands_for_every_length() -> None:
    def names(spec: str) -> list[str]:
        return [policy.text for policy in read_policies([spec], 3)]

    assert names("fixed") == ["fixed:1", "fixed:2", "fixed:3"]
    assert names("fixed:2") == ["fixed:2"]
    assert names("no-draft") == names("none") == ["no-draft"]  # its name in earlier versions
    assert make_policy("none", 3) == make_policy("no-draft", 3)
    specs = ("none", "fixed:gamma=4", "fixed", "stopping")
    assert [PolicySpec.of(spec).length for spec in specs] == [0, 4, None, None]
