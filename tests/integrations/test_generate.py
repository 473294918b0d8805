"""``generate(custom_generate=speculative(...))`` gives what ``generate`` gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextStreamer,
    WatermarkingConfig,
    pipeline,
)
from transformers.generation.stopping_criteria import MaxLengthCriteria

import draftgauge
from draftgauge.integrations import transformers as generating
from draftgauge.policies import fitted
from draftgauge.traces.costs import CostCurve
from generating import VOCABULARY, Falling, draft_of, plain_and_speculative, prompt, target_of
from reuse_nets import saved_drafter
from tiny import save_tiny, tiny_model, tiny_tokenizer, tokens

FAMILIES = [("qwen3", "lean"), ("qwen3", "static"), ("qwen3", "modules"), ("llama3-rope", "lean"), ("qwen2", "auto")]
FAMILIES += [(family, "auto") for family in ("gemma2", "gemma3", "gpt2", "gpt_neox", "mistral-sliding")]


def accepted(speculation: Any) -> list[int]:
    """Accepted tokens of each row of the last call."""
    return [sum(step.accepted for step in result.steps) for result in speculation.generations]


@pytest.mark.parametrize(("family", "engine"), FAMILIES)
def test_greedy_tokens_are_those_of_generate(family: str, engine: str) -> None:
    target = target_of(family)
    for drafter in (draft_of(family), draft_of(family, noise=1.0), target, "prompt_lookup"):
        speculation = draftgauge.speculative(drafter, "fixed:3", engine=engine)
        assert torch.equal(*plain_and_speculative(target, speculation, inputs=prompt(), max_new_tokens=12))
        if drafter is target:
            assert [step.accepted for step in speculation.generations[0].steps] == [3, 3, 3]


SPECKV = str(Path(fitted.__file__).parent / "bundled" / "speckv.json")


@pytest.mark.parametrize("policy", ["no-draft", "fixed:1", "hf-confidence:threshold=0.4", "hf-heuristic", SPECKV])
def test_every_policy_gives_the_same_tokens(target: PreTrainedModel, draft: PreTrainedModel, policy: str) -> None:
    longest = fitted.bundled_policy("speckv").gamma_max
    speculation = draftgauge.speculative(draft, policy, gamma_max=longest)
    assert torch.equal(*plain_and_speculative(target, speculation, inputs=prompt(), max_new_tokens=20))


def test_a_policy_that_weighs_cost_has_them_measured_once_or_given(
    target: PreTrainedModel, draft: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generating, "MEASURING_SECONDS", 0.3)
    measured = draftgauge.speculative(draft, gamma_max=3)
    plain, speculative = plain_and_speculative(target, measured, inputs=prompt(), max_new_tokens=20)
    assert torch.equal(speculative, plain)
    curve = measured.costs
    assert isinstance(curve, CostCurve)
    assert curve.gamma_max == 3
    assert curve.contexts == (9 + 10,)
    target.generate(prompt(), max_new_tokens=5, custom_generate=measured)
    assert measured.costs is curve
    curve.save(tmp_path / "costs.json")
    given = draftgauge.speculative(draft, gamma_max=3, costs=tmp_path / "costs.json")
    assert torch.equal(target.generate(prompt(), max_new_tokens=20, custom_generate=given), plain)
    assert given.costs == curve
    other = draftgauge.speculative(draft, costs=replace(curve, vocabulary="another"), tokenizer=tiny_tokenizer())
    with pytest.raises(draftgauge.DraftgaugeError, match="costs are of a pair with another vocabulary"):
        target.generate(prompt(), max_new_tokens=5, custom_generate=other)
    shorter = draftgauge.speculative(draft, costs=curve)  # the longest draft is what the costs are known for
    assert torch.equal(target.generate(prompt(), max_new_tokens=20, custom_generate=shorter), plain)
    assert max(step.drafted for step in shorter.generations[0].steps) <= 3


@pytest.mark.parametrize("engine", ["lean", "modules"])
def test_a_trained_drafter_by_its_folder(tmp_path: Path, engine: str) -> None:
    model = tiny_model(num_hidden_layers=4, vocab_size=VOCABULARY, eos_token_id=None)
    saved_drafter(tmp_path / "drafter", model)
    speculation = draftgauge.speculative(tmp_path / "drafter", "fixed:2", engine=engine)
    assert torch.equal(*plain_and_speculative(model, speculation, inputs=prompt(), max_new_tokens=25))
    assert sum(step.drafted for step in speculation.generations[0].steps) > 20


def test_a_draft_model_by_its_folder_and_a_pipeline(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "target")
    generator = pipeline("text-generation", model=str(source), device="cpu")
    generator.tokenizer.padding_side = "left"
    speculation = draftgauge.speculative(save_tiny(tmp_path / "draft", num_hidden_layers=1), "fixed:2")
    options = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    texts = ["abcabcabc", "hello"]
    plain = generator(texts, **options)
    assert generator(texts, **options, custom_generate=speculation) == plain
    batched = generator(texts, **options, custom_generate=speculation, batch_size=2)
    assert batched == generator(texts, **options, batch_size=2)
    assert len(speculation.generations) == 2


# Batches.


def test_rows_of_a_padded_batch_have_their_own_accepted_lengths(
    target: PreTrainedModel, draft: PreTrainedModel
) -> None:
    ids, mask = torch.zeros(3, 12, dtype=torch.int64), torch.zeros(3, 12, dtype=torch.int64)
    for row, length in enumerate((12, 5, 8)):
        ids[row, -length:], mask[row, -length:] = prompt(length, seed=row)[0], 1
    speculation = draftgauge.speculative(draft, "fixed:3")
    arguments = {"inputs": ids, "attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    plain, speculative = plain_and_speculative(target, speculation, **arguments)
    assert torch.equal(speculative, plain)
    assert len(set(accepted(speculation))) > 1

    end = int(plain[1, 15])  # ends row 1 after four tokens at the latest
    plain, speculative = plain_and_speculative(target, speculation, **arguments, eos_token_id=end, pad_token_id=0)
    assert torch.equal(speculative, plain)
    assert speculative[1, -1] == 0

    # What depends on the padding and on the number of a row is asked of the batch.
    arguments |= {"repetition_penalty": 1.7, "prefix_allowed_tokens_fn": lambda row, text: [1, 2, 3, 4 + row]}
    plain, speculative = plain_and_speculative(target, speculation, **arguments)
    assert torch.equal(speculative, plain)
    assert [set(output.tolist()) <= {1, 2, 3, 4 + row} for row, output in enumerate(speculative[:, 12:])] == [True] * 3


# What generate is told besides.


def test_prompt_lookup_stops_at_an_end_token_in_the_prompt(target: PreTrainedModel) -> None:
    """A copied end token must not be taken for the target's."""
    ids = torch.tensor([[3, 5, 7, 9, 3, 5, 7, 9, 3, 5]])
    for end in range(VOCABULARY):
        speculation = draftgauge.speculative("prompt_lookup", "fixed:4")
        options = {"inputs": ids, "max_new_tokens": 12, "eos_token_id": end, "pad_token_id": 0}
        assert torch.equal(*plain_and_speculative(target, speculation, **options)), end


@pytest.mark.parametrize(
    ("limits", "shortest", "longest"),
    [
        ({"min_new_tokens": 10}, 10, 20),
        ({"min_new_tokens": 10, "max_new_tokens": 14}, 10, 14),
        ({"max_length": 15}, 1, 6),
        ({"min_length": 13, "max_length": 17}, 4, 8),
        ({"max_new_tokens": 1}, 1, 1),
        ({"max_new_tokens": 20, "max_time": 1e-9}, 1, 1),
        ({"max_new_tokens": 20, "stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(max_length=12)])}, 1, 3),
    ],
)
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_lengths(
    target: PreTrainedModel, draft: PreTrainedModel, limits: dict[str, Any], shortest: int, longest: int
) -> None:
    speculation = draftgauge.speculative(draft, "fixed:5")
    for end in (3, 8):
        options = {"inputs": prompt(), "eos_token_id": end, "pad_token_id": 0}
        plain, speculative = plain_and_speculative(target, speculation, **options, **limits)
        assert torch.equal(speculative, plain)
        assert shortest <= speculative.shape[1] - 9 <= longest


def test_settings_of_the_model_and_of_a_configuration_count(draft: PreTrainedModel) -> None:
    target = copy.deepcopy(target_of("qwen3"))
    speculation = draftgauge.speculative(draft, "fixed:2")
    target.generation_config.max_new_tokens = 7
    assert target.generate(prompt(), custom_generate=speculation).shape[1] == 9 + 7
    config = GenerationConfig(max_new_tokens=4, repetition_penalty=1.9, do_sample=False)
    plain, speculative = plain_and_speculative(target, speculation, inputs=prompt(), generation_config=config)
    assert torch.equal(speculative, plain)
    assert speculative.shape[1] == 9 + 4


class After(StoppingCriteria):
    """Ends every row that holds a token."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


def test_stopping_criteria_are_asked_after_every_token(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    speculation = draftgauge.speculative(draft, "fixed:4")
    free = target.generate(prompt(), max_new_tokens=25, custom_generate=speculation)
    assert accepted(speculation)[0] > 0
    for place in (12, 17, 20):
        plainly, here = After(int(free[0, place])), After(int(free[0, place]))
        plain = target.generate(prompt(), max_new_tokens=25, stopping_criteria=StoppingCriteriaList([plainly]))
        output = target.generate(
            prompt(), max_new_tokens=25, stopping_criteria=StoppingCriteriaList([here]), custom_generate=speculation
        )
        assert torch.equal(output, plain)
        assert output.shape[1] <= place + 1
        assert here.lengths == plainly.lengths


def test_stop_strings_are_a_criterion() -> None:
    model, tokenizer, ids = tiny_model(eos_token_id=None), tiny_tokenizer(), tokens(9)[None]
    free = model.generate(ids, max_new_tokens=25)
    string = tokenizer.decode(free[0, 15:17])
    plain = model.generate(ids, max_new_tokens=25, stop_strings=[string], tokenizer=tokenizer)
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, [string])])
    speculation = draftgauge.speculative("prompt_lookup", "fixed:3")
    output = model.generate(ids, max_new_tokens=25, stopping_criteria=criteria, custom_generate=speculation)
    assert torch.equal(output, plain)
    assert output.shape[1] <= 17


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.8},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 10, "eos_token_id": 3},
        {"bad_words_ids": [[5], [6, 7]]},
        {"suppress_tokens": [2, 3]},
        {"forced_eos_token_id": 4},
        {"eos_token_id": [3, 8]},
        {"logits_processor": LogitsProcessorList([Falling()])},
        {"watermarking_config": WatermarkingConfig(bias=3.0)},
    ],
)
def test_logits_processors_see_the_text_of_every_row(
    target: PreTrainedModel, draft: PreTrainedModel, options: dict[str, Any]
) -> None:
    speculation = draftgauge.speculative(draft, "fixed:3")
    arguments = {"inputs": prompt(), "max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(*plain_and_speculative(target, speculation, **arguments, **options))


def test_a_processor_never_sees_a_text_that_generate_would_not_show(
    target: PreTrainedModel, draft: PreTrainedModel
) -> None:
    """One that has no continuation for other texts would raise."""
    plain = target.generate(prompt(), max_new_tokens=20, suppress_tokens=[1, 2, 3])[0].tolist()
    chain = {tuple(plain[:end]): plain[end] for end in range(9, len(plain))}
    speculation = draftgauge.speculative(draft, "fixed:4")
    options = {"prefix_allowed_tokens_fn": lambda row, text: [chain[tuple(text.tolist())]], "max_new_tokens": 20}
    for sampled in (False, True):
        output = target.generate(prompt(), **options, do_sample=sampled, custom_generate=speculation)
        assert output[0].tolist() == plain


class Puts(TextStreamer):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.told.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def test_a_streamer_is_told_what_generate_tells_it(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    plainly, here = Puts(), Puts()
    target.generate(prompt(), max_new_tokens=12, streamer=plainly)
    target.generate(
        prompt(), max_new_tokens=12, custom_generate=draftgauge.speculative(draft, "fixed:3", streamer=here)
    )
    assert here.told == plainly.told
    assert here.ended == plainly.ended == 1


# One callable, many calls.


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=VOCABULARY, eos_token_id=None).train()
    model.model.layers[0].eval()  # frozen
    draft = tiny_model(vocab_size=VOCABULARY, eos_token_id=None, seed=1).train()
    modes = [module.training for each in (model, draft) for module in each.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for drafter in ("prompt_lookup", draft):
        model.generate(prompt(), max_new_tokens=5, custom_generate=draftgauge.speculative(drafter, "fixed:2"))
    assert [module.training for each in (model, draft) for module in each.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in again.state_dict().items())


ROPE = {"rope_type": "default", "rope_theta": 30.0}


def packed_model(seed: int = 0) -> PreTrainedModel:
    """Large enough that the engine packs copies of its matrices."""
    sizes = {"hidden_size": 1024, "num_hidden_layers": 1, "head_dim": 32}
    return tiny_model(vocab_size=VOCABULARY, eos_token_id=None, seed=seed, **sizes)


def fused_step(model: PreTrainedModel) -> None:
    text = prompt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(text, labels=text).loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        fused_step,
        lambda model: setattr(model.lm_head.weight, "data", 2 - model.lm_head.weight),
        lambda model: model.model.layers[0].mlp.down_proj.weight.data.mul_(-1),
        lambda model: model.model.norm.weight.data.neg_(),
        lambda model: model.model.layers[0].register_forward_hook(lambda module, inputs, output: output * 0),
        lambda model: model.model.rotary_emb.inv_freq.data.mul_(3),
        lambda model: setattr(model.model.rotary_emb, "attention_scaling", 0.3),
        lambda model: setattr(
            model.model, "rotary_emb", tiny_model(head_dim=32, rope_parameters=ROPE).model.rotary_emb
        ),
    ],
    ids=["fused optimiser", "new tensor", "in place", "norm in place", "hook", "rotary", "its scale", "another rotary"],
)
@pytest.mark.filterwarnings("ignore:transformers' modules run this")
def test_a_model_that_changes_between_calls_is_taken_up_anew(
    draft: PreTrainedModel, change: Callable[[PreTrainedModel], Any]
) -> None:
    model, speculation = packed_model(), draftgauge.speculative(draft, "fixed:2")
    outputs = []
    for _ in range(2):
        plain, speculative = plain_and_speculative(model, speculation, inputs=prompt(), max_new_tokens=10)
        assert torch.equal(speculative, plain)
        outputs.append(plain.tolist())
        change(model)
    assert outputs[0] != outputs[1]


def test_a_draft_model_that_is_trained_between_calls_drafts_as_it_is_now() -> None:
    model, other = packed_model(), packed_model(seed=1)
    speculation = draftgauge.speculative(other, "fixed:2")
    model.generate(prompt(), max_new_tokens=20, custom_generate=speculation)
    before = accepted(speculation)[0]
    for trained, weight in zip(other.parameters(), model.parameters(), strict=True):
        trained.data.copy_(weight)
    model.generate(prompt(), max_new_tokens=20, custom_generate=speculation)
    assert accepted(speculation)[0] > before


def test_one_callable_serves_several_models_and_prompts(draft: PreTrainedModel) -> None:
    """Also after an output that ended inside a draft."""
    speculation = draftgauge.speculative(draft, "hf-heuristic")
    for seed, length in ((0, 9), (1, 20), (1, 9), (0, 20)):
        model = tiny_model(vocab_size=VOCABULARY, seed=seed, eos_token_id=None)
        plain, speculative = plain_and_speculative(model, speculation, inputs=prompt(length), max_new_tokens=11)
        assert torch.equal(speculative, plain)
        options = {"inputs": plain, "attention_mask": torch.ones_like(plain), "max_new_tokens": 6}
        assert torch.equal(*plain_and_speculative(model, speculation, **options))
