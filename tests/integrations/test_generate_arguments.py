"""Arguments of ``generate``: refused by name where ``speculative()`` cannot honour them; sampling keeps its law."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    TextStreamer,
    set_seed,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.stopping_criteria import MaxTimeCriteria

import draftgauge
from draftgauge.core.errors import DraftgaugeError, ModelError
from generating import VOCABULARY, Falling, draft_of, prompt, target_of
from markov import Enumerator, assert_same_law
from tiny import save_tiny, tiny_model, tiny_tokenizer, tokens

PROMPT = tokens(9, vocabulary=VOCABULARY)[None]


def refusal(model: PreTrainedModel, speculation: Any = None, inputs: Any = PROMPT, **options: Any) -> str:
    """What is said to a call that is refused."""
    speculation = speculation or draftgauge.speculative("prompt_lookup", "fixed:2")
    with pytest.raises(DraftgaugeError) as caught:
        model.generate(inputs, **{"max_new_tokens": 5, "custom_generate": speculation} | options)
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"use_cache": False},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"output_hidden_states": True, "return_dict_in_generate": True},
        {"output_scores": True, "return_dict_in_generate": True},
        {"output_logits": True, "return_dict_in_generate": True},
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 4},
        {"guidance_scale": 1.5},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "low"},
        {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3)},
        {"num_assistant_tokens": 7},
        {"num_assistant_tokens_schedule": "heuristic"},
        {"assistant_confidence_threshold": 0.9},
        {"past_key_values": DynamicCache()},
        {"position_ids": torch.arange(3, 12)[None]},
        {"attention_mask": torch.tensor([[1] * 8 + [0]])},
        {"attention_mask": torch.tensor([[1, 0] + [1] * 7])},
        {"attention_mask": torch.zeros(1, 9, dtype=torch.int64)},
        {"streamer": TextStreamer(tiny_tokenizer(VOCABULARY))},
        {"synced_gpus": True},
        {"assistant_model": draft_of("qwen3")},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_argument_that_cannot_be_honoured_is_named(target: PreTrainedModel, options: dict[str, Any]) -> None:
    assert next(iter(options)) in refusal(target, **options)


@pytest.mark.parametrize(
    "put",
    [
        {"inputs_embeds": torch.ones(1, 12, 64), "input_ids": None},
        {"input_ids": torch.cat((PROMPT, PROMPT), 1)},
        {"attention_mask": torch.ones(1, 12, dtype=torch.int64)},
        {"position_ids": torch.arange(3, 12)[None]},
    ],
    ids=lambda put: next(iter(put)),
)
def test_a_model_that_changes_its_prompt_is_refused(monkeypatch: pytest.MonkeyPatch, put: dict[str, Any]) -> None:
    target = target_of("qwen3")
    prepare = target.prepare_inputs_for_generation
    prepared = lambda *inputs, **options: prepare(*inputs, **options) | put  # noqa: E731
    monkeypatch.setattr(target, "prepare_inputs_for_generation", prepared)
    assert "prompt tuning does" in refusal(target)


def test_another_input_of_the_model_is_refused_by_name() -> None:
    """Where it has no drafter's counterpart: GPT-2 adds embeddings of token types."""
    assert "token_type_ids" in refusal(target_of("gpt2"), token_type_ids=torch.ones_like(PROMPT))


def test_settings_in_a_configuration_count_too(target: PreTrainedModel) -> None:
    assert "num_beams=3" in refusal(target, generation_config=GenerationConfig(num_beams=3), max_new_tokens=None)


def test_processors_with_a_state_of_their_own(target: PreTrainedModel) -> None:
    processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target, torch.tensor([[1]]))
    said = refusal(target, logits_processor=LogitsProcessorList([processor]))
    assert "UnbatchedClassifierFreeGuidanceLogitsProcessor" in said
    assert "logits_processor" in said


def test_what_a_batch_cannot_have(target: PreTrainedModel) -> None:
    batch = {"inputs": PROMPT.repeat(2, 1)}
    timed = StoppingCriteriaList([MaxTimeCriteria(100.0)])
    assert "stopping_criteria" in refusal(target, **batch, stopping_criteria=timed, eos_token_id=None)
    streaming = draftgauge.speculative("prompt_lookup", "fixed:2", streamer=TextStreamer(tiny_tokenizer(VOCABULARY)))
    assert "streamer" in refusal(target, streaming, **batch)


def test_a_prompt_that_does_not_fit(target: PreTrainedModel) -> None:
    assert "context longer than the model takes" in refusal(target, max_new_tokens=200)


def test_encoder_decoders_and_recurrent_models() -> None:
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    from transformers import MambaConfig, MambaForCausalLM, T5Config, T5ForConditionalGeneration

    encoder = T5ForConditionalGeneration(T5Config(**small, decoder_start_token_id=0))
    assert "T5ForConditionalGeneration is an encoder-decoder" in refusal(encoder, inputs=torch.tensor([[3, 4]]))
    recurrent = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    assert "cannot" in refusal(recurrent, inputs=torch.tensor([[3, 4]]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"policy": "nonsense"}, "unknown policy"),
        ({"policy": "fixed:4", "gamma_max": 0}, "gamma_max"),
        ({"costs": "nowhere.json"}, "nowhere.json"),
        ({"policy": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_mistakes_of_the_factory_show_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DraftgaugeError, match=said):
        draftgauge.speculative("prompt_lookup", **arguments)


def test_drafters_that_do_not_fit(target: PreTrainedModel, tmp_path: Path) -> None:
    wider = draftgauge.speculative(tiny_model(vocab_size=16), "fixed:2")
    assert f"the target has {VOCABULARY} logits and the draft model 16" in refusal(target, wider)
    assert "no model folder" in refusal(target, draftgauge.speculative(tmp_path / "nothing", "fixed:2"))
    model = type(target).from_pretrained(save_tiny(tmp_path / "target"))
    other = save_tiny(tmp_path / "other")
    tiny_tokenizer(96, swap=(40, 41)).save_pretrained(other)
    assert "different vocabularies" in refusal(model, draftgauge.speculative(other, "fixed:2"))
    loaded = type(target).from_pretrained(other)
    with pytest.raises(ModelError, match="different vocabularies"):
        model.generate(PROMPT, max_new_tokens=3, custom_generate=draftgauge.speculative(loaded, "fixed:2"))


def test_an_engine_that_cannot_run_the_model() -> None:
    speculation = draftgauge.speculative("prompt_lookup", "fixed:2", engine="lean")
    assert "the lean engine cannot run this model" in refusal(draft_of("stablelm"), speculation)


def law_of_generate(model: PreTrainedModel, ids: torch.Tensor, count: int, processors: LogitsProcessorList) -> dict:
    """The law of ``count`` sampled tokens, by multiplying the chances along every sequence."""
    law = {}
    for output in itertools.product(range(model.config.vocab_size), repeat=count):
        text = torch.cat((ids, torch.tensor([output])), -1)
        with torch.no_grad():
            logits = model(text).logits[0, ids.shape[1] - 1 : -1]
        chance = 1.0
        for place, token in enumerate(output):
            seen = text[:, : ids.shape[1] + place]
            chance *= float(processors(seen, logits[place][None].clone()).softmax(-1)[0, token])
        if chance > 0:
            law[output] = chance
    return law


class Recorder(LogitsProcessor):
    """Changes nothing, at the end of the list; where it stands no sampling can be split off."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7, "top_k": 2},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.9, "min_p": 0.2},
        {"temperature": 0.9, "typical_p": 0.6},
        {"logits_processor": LogitsProcessorList([Falling()])},
        {"return_dict_in_generate": True, "top_k": 3, "temperature": 1.5},
    ],
)
@pytest.mark.parametrize("greedy_draft", [False, True])
def test_the_sampled_law_is_exactly_that_of_generate(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], greedy_draft: bool
) -> None:
    model, draft = (tiny_model(vocab_size=3, seed=seed, eos_token_id=None, num_hidden_layers=1) for seed in (1, 2))
    ids, count = torch.tensor([[1, 2, 1, 2]]), 3 if greedy_draft else 2
    speculation = draftgauge.speculative("prompt_lookup" if greedy_draft else draft, "fixed:2")
    enumerator = Enumerator(monkeypatch)
    settings = {"max_new_tokens": count, "do_sample": True, "top_k": 0} | options

    def program() -> tuple[int, ...]:
        output = model.generate(ids, **settings, custom_generate=speculation)
        sequences = output.sequences if isinstance(output, GenerateDecoderOnlyOutput) else output
        return tuple(sequences[0, 4:].tolist())

    seen = LogitsProcessorList()
    kept = model._get_logits_processor
    monkeypatch.setattr(model, "_get_logits_processor", lambda **given: seen.__init__(kept(**given)) or seen)
    program()
    monkeypatch.setattr(model, "_get_logits_processor", kept)
    assert_same_law(enumerator.law(program), law_of_generate(model, ids, count, seen), 1e-5)


def test_seeded_outputs_follow_the_law_of_plain_generate(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """The same through the real random draws, against the draws of generate itself."""
    runs, options = 200, {"max_new_tokens": 2, "do_sample": True, "top_k": 3, "temperature": 1.5}
    speculation = draftgauge.speculative(draft, "fixed:2")
    seeded = []
    for _ in range(2):
        set_seed(0)
        ours = target.generate(prompt(), **options, num_return_sequences=runs, custom_generate=speculation)
        seeded.append(ours[:, 9:].tolist())
    assert seeded[0] == seeded[1]
    counts = Counter(map(tuple, seeded[0]))
    many = target.generate(prompt(), **options, num_return_sequences=runs)[:, 9:]
    expected = Counter(map(tuple, many.tolist()))
    for output in counts | expected:
        chance = (counts[output] + expected[output]) / (2 * runs)
        assert abs(counts[output] - expected[output]) / runs < 4.5 * math.sqrt(2 * chance * (1 - chance) / runs)
