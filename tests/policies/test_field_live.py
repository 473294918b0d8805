"""The policies of the field make live the choices that replay says they make."""

from __future__ import annotations

import pytest

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.judging.replay import replay
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies import make_policy
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from recordings import assert_same_steps, recorded_trace
from tiny import noisy, tiny_model, tokens

GAMMA_MAX = 8
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
    return recorded_trace(target, LanguageModelDrafter(draft), PROMPTS, SETTINGS, GAMMA_MAX)


@pytest.mark.parametrize("spec", SPECS)
def test_replay_is_live_step_by_step_over_several_prompts(
    spec: str, pair: tuple[CachedModel, CachedModel], trace: Trace
) -> None:
    target, draft = pair
    costs = LinearCosts()
    policy, drafter = make_policy(spec, GAMMA_MAX, costs), LanguageModelDrafter(draft)
    live = [step for prompt in PROMPTS for step in speculative_decode(target, drafter, policy, prompt, SETTINGS).steps]
    replayed = replay(trace, make_policy(spec, GAMMA_MAX, costs))
    assert_same_steps(live, replayed)
    if not spec.startswith("speckv"):  # which wants the longest draft nearly always
        proposed = set((replayed.record.drafted + replayed.record.appended).tolist())
        assert len(proposed) > 2, "the policy must vary its length for this to say something"
