"""Every policy reads what it declares to read: no signal more, for which it is not charged, and no signal less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from asked import Asked
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.judging.replay import replay
from draftgauge.models.loading import wrap
from draftgauge.policies import POLICIES, Policy, Signal, SignalArrays, StatelessPolicy, Step, make_policy
from draftgauge.policies.base import PolicyBase, ReadsText
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from recordings import recorded_trace
from tiny import tiny_model, tokens

GAMMA_MAX = 8
PROMPT = tokens(11, seed=1).tolist()
SETTINGS = DecodingSettings(30)
# By the names of fields of signals, steps and their arrays.
SIGNAL_OF = {"confidence": SignalName.CONFIDENCE, "entropy": SignalName.ENTROPY, "margin": SignalName.MARGIN}
SIGNAL_OF |= dict.fromkeys(("token", "tokens", "prompt_tokens"), SignalName.TEXT)
SIGNAL_OF["target_entropy"] = SignalName.TARGET_ENTROPY
SPECS = tuple("fixed:3" if name == "fixed" else name for name in POLICIES)
SPECS += ("hf-confidence:adaptive=true", "vllm:warm_up=0")


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
def trace() -> Trace:
    drafter = LanguageModelDrafter(wrap(tiny_model(seed=2)))
    return recorded_trace(wrap(tiny_model()), drafter, [PROMPT], SETTINGS, GAMMA_MAX)


def run_live(policy: Policy) -> None:
    speculative_decode(wrap(tiny_model()), LanguageModelDrafter(wrap(tiny_model(seed=2))), policy, PROMPT, SETTINGS)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("way", ["live", "asked in replay", "at once in replay"])
def test_a_policy_reads_exactly_what_it_declares(spec: str, way: str, trace: Trace) -> None:
    policy = WatchedPolicy(make_policy(spec, GAMMA_MAX, LinearCosts(drafting=0.01)), way == "at once in replay")
    if way == "live":
        run_live(policy)
    else:
        replay(trace, policy)
    assert policy.watch.read == policy.reads


def test_there_is_no_default(trace: Trace) -> None:
    class Silent(PolicyBase):
        def limit(self) -> int:
            return 2

    for run in (run_live, lambda policy: replay(trace, policy)):
        with pytest.raises(DraftgaugeError, match="Silent must declare the signals that it reads"):
            run(Silent())  # type: ignore[arg-type]

    class Reader(Silent):
        reads = NO_SIGNALS

        def read(self, prompt_tokens: Sequence[int]) -> None:
            pass

    with pytest.raises(DraftgaugeError, match=r"must declare SignalName\.TEXT"):
        replay(trace, Reader())
