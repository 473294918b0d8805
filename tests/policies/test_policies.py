"""Every policy keeps its contract: knows nothing of what comes later, and reads exactly what it declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asked import Asked
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.judging.replay import replay, signal_arrays
from draftgauge.models.loading import wrap
from draftgauge.policies import POLICIES, Policy, Signal, SignalArrays, StatelessPolicy, Step, make_policy
from draftgauge.policies.base import Extends, PolicyBase, ReadsText, asks_after_each_token
from draftgauge.policies.ngrams import AsksStored, StoredTexts, with_stored
from draftgauge.policies.spec import PolicySpec, read_policies
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from recordings import recorded_trace
from synthetic import repeating_trace, synthetic_trace
from tiny import tiny_model, tokens

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
def drawn_arrays(draw: st.DrawFn) -> SignalArrays:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Coarse values, so that a confidence often equals a threshold up to the rounding of float32.
    confidence = (rng.integers(1, 11, (draw(st.integers(1, 12)), GAMMA_MAX)) / 10).astype(np.float32)
    return SignalArrays(confidence, -np.log2(confidence), confidence / 2)


@pytest.mark.parametrize("spec", STATELESS)
@examples
@given(arrays=drawn_arrays())
def test_all_positions_at_once_agree_with_token_by_token(spec: str, arrays: SignalArrays) -> None:
    policy = make_policy(spec, GAMMA_MAX, COSTS)
    assert isinstance(policy, StatelessPolicy)
    assert policy.lengths(arrays).tolist() == [drafted_token_by_token(policy, row) for row in signal_rows(arrays)]


@pytest.mark.parametrize("spec", SPECS)
@examples
@given(arrays=drawn_arrays(), outcomes=st.lists(st.integers(0, GAMMA_MAX), min_size=12, max_size=12))
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
        ("sglang-adaptive:warm_up=-1", "warm_up must be at least 0"),
        ("lookup:least=0", "least must be at least 1"),
        ("lookup:tokens=0", "tokens must be at least 1"),
        ("vllm-ngram:tokens=0", "tokens must be at least 1"),
        ("vllm-ngram:least=6", "least must be at most longest, 5, not 6"),
        ("suffix:least=2", "least must be 0 to 1"),
        ("suffix:tokens=0", "tokens must be at least 1"),
        ("suffix:factor=0", "factor must be a number above 0"),
        ("ngram-mod:least=65", "least must be at most tokens, 64, not 65"),
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


SCRAMBLED_GAMMA = 6
SHORT = {"fixed": "fixed:3", "ngram-mod": "ngram-mod:ngram=2,least=1,tokens=3"}  # as short as the texts here
CAUSAL = tuple(SHORT.get(name, name) for name in POLICIES)
CAUSAL += ("hf-confidence:adaptive=true", "sglang-adaptive:warm_up=1,every=1", "vllm:refit=60,warm_up=0")
POSITIONS = (7, 21, 38)
COLUMNS = ("token", "target_entropy", "draft_token", "confidence", "entropy", "margin", "drafted", "accepted")


def scrambled(trace: Trace, position: int, seed: int) -> Trace:
    """The one prompt with all rows from ``position`` on in another order, each column in its own.

    Tokens from there on are others, so drafts from before are accepted up to there at most.
    """
    rng = np.random.default_rng(seed)
    columns = {}
    for name in COLUMNS:
        column = getattr(trace, name).copy()
        column[position:] = rng.permutation(column[position:])
        columns[name] = column
    columns["accepted"][:position] = np.minimum(trace.accepted[:position], position - np.arange(position))
    return replace(trace, **columns)


def policy_of(spec: str, drafting: float = 0.02) -> Policy:
    return make_policy(spec, SCRAMBLED_GAMMA, LinearCosts(drafting=drafting))


def at_once(policy: Policy, trace: Trace) -> np.ndarray | None:
    """The length wanted at every position by the form that decides them all at once."""
    return policy.lengths(signal_arrays(trace, policy.reads)) if isinstance(policy, StatelessPolicy) else None


def check(make: Callable[[], Policy], trace: Trace, position: int) -> None:
    """Raise AssertionError if a decision before a position depends on what lies after it."""
    lengths, steps = at_once(make(), trace), replay(trace, Asked(make())).record
    for seed in range(3):
        other = scrambled(trace, position, seed)
        if lengths is not None:
            changed = at_once(make(), other)
            assert changed is not None
            np.testing.assert_array_equal(changed[:position], lengths[:position])
        # Both walks are the same as long as no step has come to know a scrambled token.
        asked = replay(other, Asked(make())).record
        apart = int(np.argmax(steps.position + steps.committed > position))
        before = apart + int(steps.position[apart] < position)
        assert before > 0
        np.testing.assert_array_equal(asked.position[:before], steps.position[:before])
        np.testing.assert_array_equal(asked.drafted[:before], steps.drafted[:before])
        np.testing.assert_array_equal(asked.appended[:before], steps.appended[:before])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(seed=2, prompts=1, length=60, gamma_max=SCRAMBLED_GAMMA)


@pytest.fixture(scope="module")
def repeating() -> Trace:
    return repeating_trace(seed=6, prompts=1, length=60, gamma_max=SCRAMBLED_GAMMA)


@pytest.mark.parametrize("spec", CAUSAL)
@pytest.mark.parametrize("position", POSITIONS)
def test_what_comes_later_changes_no_decision_before_it(spec: str, position: int, trace: Trace) -> None:
    assert trace.positions > max(POSITIONS) + SCRAMBLED_GAMMA
    check(lambda: policy_of(spec), trace, position)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("spec", [spec for spec in CAUSAL if isinstance(policy_of(spec), Extends)])
@pytest.mark.parametrize("position", POSITIONS)
def test_so_it_is_where_the_text_repeats_itself(spec: str, position: int, repeating: Trace, stored: bool) -> None:
    """Also beside a datastore."""
    rng = np.random.default_rng(position)
    texts = StoredTexts([rng.integers(0, 6, rng.integers(0, 25)).tolist() for _ in range(6)])

    def make() -> Policy:
        policy = policy_of(spec, drafting=0.3)
        if stored and isinstance(policy, AsksStored):
            with_stored([policy], texts)
        return policy

    record = replay(repeating, make()).record
    assert record.appended.sum() >= 5, "the policy must append tokens for this to say something"
    check(make, repeating, position)


WATCHED_GAMMA = 8
PROMPT = tokens(11, seed=1).tolist()
SETTINGS = DecodingSettings(30)
# By the names of fields of signals, steps and their arrays.
SIGNAL_OF = {"confidence": SignalName.CONFIDENCE, "entropy": SignalName.ENTROPY, "margin": SignalName.MARGIN}
SIGNAL_OF |= dict.fromkeys(("token", "tokens", "prompt_tokens"), SignalName.TEXT)
SIGNAL_OF["target_entropy"] = SignalName.TARGET_ENTROPY
DECLARED = tuple("fixed:3" if name == "fixed" else name for name in POLICIES)
DECLARED += ("hf-confidence:adaptive=true", "vllm:warm_up=0")


@dataclass
class Watch:
    """What a policy may read, and what it has read."""

    declared: Reads
    read: set[SignalName] = field(default_factory=set)

    def note(self, name: str) -> None:
        signal = SIGNAL_OF.get(name)
        if signal is not None:
            assert signal in self.declared, f"{signal} is read and not declared"
            self.read.add(signal)


class Watched:
    """A signal or step whose fields are watched, those of its parts too."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        self._watch.note(name)
        value = getattr(self._inner, name)
        if name == "signals":
            return Watched(value, self._watch) if isinstance(value, SignalArrays) else self._each(value)
        return value

    def _each(self, signals: Sequence[Signal]) -> list[Any]:
        return [Watched(signal, self._watch) for signal in signals]


class WatchedPolicy(Asked):
    """A policy with its reading watched."""

    def __init__(self, inner: Policy, at_once: bool = False) -> None:
        super().__init__(inner)
        self.watch = Watch(self.reads)
        if isinstance(inner, ReadsText):
            self.read = self._read
        elif at_once and isinstance(inner, StatelessPolicy):
            self.lengths = lambda signals: inner.lengths(Watched(signals, self.watch))  # type: ignore[arg-type]

    def keep_drafting(self, signal: Signal) -> bool:
        return self.inner.keep_drafting(Watched(signal, self.watch))  # type: ignore[arg-type]

    def observe(self, step: Step) -> None:
        self.inner.observe(Watched(step, self.watch))  # type: ignore[arg-type]

    def _read(self, prompt_tokens: Sequence[int]) -> None:
        self.watch.note("prompt_tokens")
        self.inner.read(prompt_tokens)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def recorded() -> Trace:
    drafter = LanguageModelDrafter(wrap(tiny_model(seed=2)))
    return recorded_trace(wrap(tiny_model()), drafter, [PROMPT], SETTINGS, WATCHED_GAMMA)


def run_live(policy: Policy) -> None:
    speculative_decode(wrap(tiny_model()), LanguageModelDrafter(wrap(tiny_model(seed=2))), policy, PROMPT, SETTINGS)


@pytest.mark.parametrize("spec", DECLARED)
@pytest.mark.parametrize("way", ["live", "asked in replay", "at once in replay"])
def test_a_policy_reads_exactly_what_it_declares(spec: str, way: str, recorded: Trace) -> None:
    policy = WatchedPolicy(make_policy(spec, WATCHED_GAMMA, LinearCosts(drafting=0.01)), way == "at once in replay")
    if way == "live":
        run_live(policy)
    else:
        replay(recorded, policy)
    assert policy.watch.read == policy.reads


def test_there_is_no_default(recorded: Trace) -> None:
    class Silent(PolicyBase):
        def limit(self) -> int:
            return 2

    for run in (run_live, lambda policy: replay(recorded, policy)):
        with pytest.raises(DraftgaugeError, match="Silent must declare the signals that it reads"):
            run(Silent())  # type: ignore[arg-type]

    class Reader(Silent):
        reads = NO_SIGNALS

        def read(self, prompt_tokens: Sequence[int]) -> None:
            pass

    with pytest.raises(DraftgaugeError, match=r"must declare SignalName\.TEXT"):
        replay(recorded, Reader())
