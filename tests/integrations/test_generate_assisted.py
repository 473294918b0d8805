"""What transformers tests of its own assisted generation (``tests/generation``), asked of ``speculative()``."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.stopping_criteria import MaxLengthCriteria

import draftgauge
from draftgauge.core.errors import DraftgaugeError
from generating import VOCABULARY, draft_of, plain_and_speculative, target_of
from tiny import tokens

PROMPT = tokens(9, vocabulary=VOCABULARY)[None]
FAMILIES = ("qwen2", "llama", "gemma3", "gpt2", "gpt_neox")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("assistant", ["random", "same", "prompt_lookup"])
def test_matches_greedy_search(family: str, assistant: str) -> None:
    """With the target itself as the assistant every drafted token is accepted."""
    target = target_of(family)
    drafters = {"random": draft_of(family, noise=1.0), "same": target, "prompt_lookup": assistant}
    speculation = draftgauge.speculative(drafters[assistant], "fixed:3")
    arguments = {"inputs": PROMPT, "max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    plain, speculative = plain_and_speculative(target, speculation, **arguments)
    assert torch.equal(speculative.sequences, plain.sequences)
    if assistant == "same":
        assert [step.accepted for step in speculation.generations[0].steps] == [3, 3, 3]


def test_prompt_lookup_stops_at_an_end_token_in_the_prompt(target: PreTrainedModel) -> None:
    """A copied end token must not be taken for the target's."""
    ids = torch.tensor([[3, 5, 7, 9, 3, 5, 7, 9, 3, 5]])
    for end in range(VOCABULARY):
        speculation = draftgauge.speculative("prompt_lookup", "fixed:4")
        plain, speculative = plain_and_speculative(
            target, speculation, inputs=ids, max_new_tokens=12, do_sample=False, eos_token_id=end, pad_token_id=0
        )
        assert torch.equal(speculative, plain), end


@pytest.mark.parametrize("drafter", ["model", "prompt_lookup"])
def test_sampling_runs_to_the_end(target: PreTrainedModel, draft: PreTrainedModel, drafter: str) -> None:
    speculation = draftgauge.speculative(draft if drafter == "model" else drafter, "fixed:3")
    output = target.generate(PROMPT, max_new_tokens=15, do_sample=True, custom_generate=speculation)
    assert output.shape == (1, 9 + 15)
    assert torch.equal(output[:, :9], PROMPT)


@pytest.mark.parametrize(
    ("limits", "shortest", "longest"),
    [
        ({"min_new_tokens": 10}, 10, 20),
        ({"min_new_tokens": 10, "max_new_tokens": 14}, 10, 14),
        ({"max_length": 15}, 1, 6),
        ({"min_length": 13, "max_length": 17}, 4, 8),
        ({"max_new_tokens": 1}, 1, 1),
    ],
)
def test_lengths(
    target: PreTrainedModel, draft: PreTrainedModel, limits: dict[str, int], shortest: int, longest: int
) -> None:
    speculation = draftgauge.speculative(draft, "fixed:5")
    for end in (3, 8):
        plain, speculative = plain_and_speculative(
            target, speculation, inputs=PROMPT, do_sample=False, eos_token_id=end, pad_token_id=0, **limits
        )
        assert torch.equal(speculative, plain)
        assert shortest <= speculative.shape[1] - 9 <= longest


def test_a_length_among_the_stopping_criteria_counts(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    criteria = StoppingCriteriaList([MaxLengthCriteria(max_length=12)])
    output = target.generate(
        PROMPT, max_new_tokens=20, stopping_criteria=criteria, custom_generate=draftgauge.speculative(draft, "fixed:4")
    )
    assert output.shape[1] == 12


def test_settings_of_the_model_and_of_a_configuration_count(draft: PreTrainedModel) -> None:
    target = copy.deepcopy(target_of("qwen3"))
    speculation = draftgauge.speculative(draft, "fixed:2")
    target.generation_config.max_new_tokens = 7
    assert target.generate(PROMPT, custom_generate=speculation).shape[1] == 9 + 7
    config = GenerationConfig(max_new_tokens=4, repetition_penalty=1.9, do_sample=False)
    plain, speculative = plain_and_speculative(target, speculation, inputs=PROMPT, generation_config=config)
    assert torch.equal(speculative, plain)
    assert speculative.shape[1] == 9 + 4


def test_a_later_call_starts_anew(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Also after an output that ended inside a draft, with other prompts in between."""
    speculation = draftgauge.speculative(draft, "hf-heuristic")
    first = target.generate(PROMPT, max_new_tokens=11, custom_generate=speculation)
    target.generate(tokens(20, seed=4, vocabulary=VOCABULARY)[None], max_new_tokens=5, custom_generate=speculation)
    assert torch.equal(target.generate(PROMPT, max_new_tokens=11, custom_generate=speculation), first)
    longer = target.generate(first, max_new_tokens=6, custom_generate=speculation)
    assert torch.equal(longer, target.generate(first, max_new_tokens=6))


def test_another_input_of_the_model_is_refused_by_name(draft: PreTrainedModel) -> None:
    """Where it has no drafter's counterpart: GPT-2 adds embeddings of token types."""
    speculation, kinds = draftgauge.speculative(draft, "fixed:3"), torch.ones_like(PROMPT)
    with pytest.raises(DraftgaugeError, match="token_type_ids"):
        target_of("gpt2").generate(PROMPT, max_new_tokens=5, token_type_ids=kinds, custom_generate=speculation)


class Only(LogitsProcessor):
    """Allows one token, by the length of the text."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = input_ids.shape[1] % VOCABULARY
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([allowed]), 0.0)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_processor_may_leave_one_token_alone(target: PreTrainedModel, draft: PreTrainedModel, sampled: bool) -> None:
    output = target.generate(
        PROMPT,
        max_new_tokens=15,
        do_sample=sampled,
        logits_processor=LogitsProcessorList([Only()]),
        custom_generate=draftgauge.speculative(draft, "fixed:3"),
    )
    assert output[0, 9:].tolist() == list(itertools.islice(itertools.cycle(range(VOCABULARY)), 9, 24))
