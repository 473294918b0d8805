"""The text of the bundled pair: its splits, its words, what is learned of it, how it is tokenised."""

from __future__ import annotations

import math
from itertools import islice
from random import Random

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.reference_pair import corpus, library, pretrain, trunk
from recipes.reference_pair.modules import Module, read_module
from recipes.reference_pair.tasks.base import RESERVED, SPLITS, TRAINING, Example, Words, examples, split_of
from recipes.reference_pair.tokenizer import ASSISTANT, END, USER, dialogue, train_tokenizer
from recipes.reference_pair.words import collect_words, snake_case

SOURCE = '''"""Tools for boxes. They do little."""

class Box(dict):
    """A box of things."""

    def open(self, hard=False):
        """Open the box, and say whether it was shut. Hard opening breaks the lid of it."""
        was_shut = self.shut
        self.shut = False
        return was_shut

def area(width, height=1, *, scale=pi):
    """Return the area of a rectangle, scaled by some factor that the caller may choose."""
    return width * height * scale
'''


@pytest.fixture
def module() -> Module:
    return read_module("toolbox.boxes", SOURCE)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([SOURCE, "12345 67890", "don't\n\n    stop"] * 20, vocabulary=400)


def _drawn(rng: Random, words: Words) -> Example:
    template = f"kind {rng.randrange(400)}"
    return Example("math", template, (("user", f"{rng.random()}"),), "Answer: 1", {"answer": 1})


def test_a_template_belongs_to_one_split_whatever_its_numbers() -> None:
    words = Words((), (), (), ())
    seen = {
        split: {e.template for e in islice(examples(_drawn, Random(0), words, split), 300)}
        for split in (TRAINING, *SPLITS)
    }
    assert all(seen.values())
    for split, templates in seen.items():
        assert all(split_of(template) == split for template in templates)
        assert not any(templates & others for name, others in seen.items() if name != split)


def test_splits_take_the_shares_of_templates_that_they_say() -> None:
    splits = [split_of(f"template {n}") for n in range(20_000)]
    for split, kept in RESERVED.items():
        assert splits.count(split) / len(splits) == pytest.approx(len(kept) / 100, abs=0.01)


def test_a_module_is_reserved_as_a_whole_and_for_one_split() -> None:
    names = [f"package.module_{n}" for n in range(2000)]
    share = sum(map(corpus.is_reserved, names)) / len(names)
    assert share == pytest.approx(corpus.RESERVED_PERCENT / 100, abs=0.03)
    assert {corpus.prompt_split(name) for name in names} == set(SPLITS)


def test_words_are_sorted_by_where_they_stand() -> None:
    text = "If the parser is shut, an external parser can collect the token. It was collected, and each token is new. "
    words = collect_words([text * 2, "All parsers take tokens."], ["read_lines", "test_it_now", "x", "Read"])
    assert words.nouns == ("parser", "token")
    assert words.adjectives == ("external",)
    assert words.verbs == ("collect",)
    assert words.identifiers == ("read_lines",)


def test_identifiers_are_plain_snake_case() -> None:
    names = ("load_all", "a_b", "test_load_all", "_hidden_name", "single", "load_all_2", "one_two_three", "load_all")
    assert snake_case(names) == ("load_all", "one_two_three")


def test_of_a_module_its_documentation_and_functions_are_read(module: Module) -> None:
    assert module.documentation[0] == "Tools for boxes. They do little."
    assert len(module.documentation) == 4
    assert module.functions == ("open", "area")
    assert [item.name for item in module.documented] == ["Box.open", "area", "Box"]


def test_of_packages_as_much_is_read_as_is_enough() -> None:
    some, more, whole = (corpus.package_documentation(("jinja2",), enough) for enough in (5_000, 20_000, math.inf))
    assert 5_000 <= sum(map(len, some)) <= sum(map(len, more)) < sum(map(len, whole))
    remaining = iter(whole)
    assert all(text in remaining for text in more)  # in the order of the whole


def test_explanations_give_signature_and_documentation(module: Module) -> None:
    pairs = dict(library.explanations(module, Random(0)))
    opened = next(answer for question, answer in pairs.items() if "Box.open" in question)
    assert opened.startswith("`toolbox.boxes.Box.open(hard=False)`\n\nOpen the box")
    assert any("`toolbox.boxes.area(width, height=1, *, scale=pi)`" in answer for answer in pairs.values())


def test_tokenizer_keeps_digits_line_breaks_and_specials_apart(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer("12345").input_ids) == list("12345")
    assert tokenizer.decode(tokenizer("stop\n    it").input_ids) == "stop\n    it"
    assert "Ċ" in tokenizer.convert_ids_to_tokens(tokenizer("stop\n    it").input_ids)
    assert END in tokenizer.get_vocab()


def test_training_text_is_what_the_chat_template_renders(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = (("user", "Remember 1."), ("assistant", "I do."), ("user", "What was it?"))
    text = dialogue(messages, "    indented = 2")
    ids = tokenizer(text).input_ids
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids) == text
    conversation = [{"role": role, "content": content} for role, content in messages]
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text.startswith(rendered)
    assert ids[: len(tokenizer(rendered).input_ids)] == tokenizer(rendered).input_ids


def test_answers_are_learned_before_plain_text_and_plain_text_before_prompts(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    marks = pretrain.Marks(*(tokenizer.convert_tokens_to_ids(name) for name in (USER, ASSISTANT, END)))
    plain, prompt, answer = [5] * 60, [marks.user, *[6] * 39], [marks.assistant, *[7] * 19, marks.end]
    batch = torch.tensor([plain + prompt + answer + [5] * 7])
    taught = pretrain.taught_positions(batch, marks, share=0.5)
    assert len(taught) == len(taught.unique()) == batch.numel() // 2
    assert set(range(100, 120)) <= set(taught.tolist())  # each token of the answer, and the end after it
    plain_share = sum(t < 60 or t > 119 for t in taught.tolist()) / 66
    prompt_share = sum(60 <= t < 100 for t in taught.tolist()) / 40
    assert plain_share > 1.5 * prompt_share
    assert batch.numel() - 1 not in taught.tolist()  # nothing follows the last token
    assert torch.equal(taught, pretrain.taught_positions(batch, marks, share=0.5))


def _tiny() -> Qwen3ForCausalLM:
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return pretrain.build(shape, 100, 0, seed=1).eval()


def test_chunked_attention_is_causal_attention() -> None:
    model, batch = _tiny(), torch.randint(0, 100, (2, 700), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        chunked = trunk.logits_at(model, trunk.layer_states(model, batch)[-1])
        model.set_attn_implementation("eager")
        assert torch.allclose(chunked, model(batch).logits, atol=1e-5)


def test_rescaling_centres_the_states_and_changes_no_logit() -> None:
    model, batch = _tiny(), torch.randint(0, 100, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(50)  # the norms' epsilon is small beside trained states only
    before, sizes = model(batch).logits.detach(), pretrain.state_sizes(model, batch)
    pretrain.rescale_states(model, pretrain.centering_factor(sizes))
    moved = pretrain.state_sizes(model, batch)
    assert float((model(batch).logits - before).abs().max()) < 2e-3 * float(before.abs().max())
    assert min(moved) * max(moved) == pytest.approx(1.5, rel=1e-3)
    assert max(moved) / min(moved) == pytest.approx(max(sizes) / min(sizes), rel=1e-3)


def test_growth_is_what_exceeds_the_embeddings() -> None:
    embedded, within, beyond = torch.ones(1, 4, 8), 7 * torch.ones(1, 4, 8), 20 * torch.ones(1, 4, 8)
    assert float(pretrain.growth([embedded, within])) == 0
    assert float(pretrain.growth([embedded, beyond])) == pytest.approx((math.log(400) - pretrain.GROWTH) ** 2)
