"""transformers' generate as a baseline decodes what the target says, whatever its checkpoint's own settings are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftgauge.benching.arms import transformers_arms
from draftgauge.core import verb as verbs
from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.pair.loading import load_pair
from draftgauge.requests import PairSpec
from tiny import save_tiny, tokens


@pytest.mark.parametrize("number", range(6))
def test_a_checkpoints_own_penalty_does_not_distort_the_baseline(tmp_path: Path, number: int) -> None:
    folder = save_tiny(tmp_path)
    pair = load_pair(folder, folder, device="cpu")
    prompt = tokens(10).tolist() * 2
    plain = plain_decode(pair.target, prompt, DecodingSettings(24, end_tokens=pair.end_tokens)).tokens
    for model in (pair.target.module, pair.draft.module):
        model.generation_config.repetition_penalty = 1.9
        model.generation_config.no_repeat_ngram_size = 2
    settings = pair.draft.module.generation_config.to_dict()
    arm = transformers_arms(pair, 24, 3, ("hf-confidence:tokens=4", "hf-prompt-lookup:ngram=3"))[number]
    for _ in range(2):
        run = arm.decode(prompt)
        assert run.tokens == plain
        assert 0 < run.timed < len(run.tokens)
    assert pair.draft.module.generation_config.to_dict() == settings
    assert pair.target.module.generation_config.repetition_penalty == 1.9
    ids = pair.target.module.generate(
        tokens(1).new_tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert ids[0, len(prompt) :].tolist() != plain, "the penalty must matter, or this shows nothing"


def test_a_rule_of_transformers_is_also_decoded_by_transformers_with_its_values(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    pair = load_pair(folder, folder, device="cpu")
    specs = ("hf-confidence", "hf-confidence:threshold=0.3,tokens=7", "hf-prompt-lookup:ngram=3,gamma_max=5", "fixed:2")
    generate, asked = pair.target.module.generate, []

    def watched(**given: Any) -> Any:
        asked.append((given, given["assistant_model"].generation_config if "assistant_model" in given else None))
        return generate(**given)

    pair.target.module.generate = watched
    arms = {arm.name: arm for arm in transformers_arms(pair, 8, specs=specs)}
    assert len(arms) == 6
    for name in ("assisted:threshold=0.3,tokens=7", "prompt-lookup:ngram=3,gamma_max=5"):
        arms[f"transformers-{name}"].decode(tokens(10).tolist())
    (_, draft), (given, none) = asked
    assert (draft.num_assistant_tokens, draft.assistant_confidence_threshold) == (7, 0.3)
    assert (given["prompt_lookup_num_tokens"], given["max_matching_ngram_size"], none) == (5, 3, None)


@pytest.mark.parametrize("error", [MemoryError(), type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory.")])
def test_memory_that_runs_out_in_a_verb_ends_in_a_clear_error(error: Exception) -> None:
    @verbs.verb(PairSpec)
    def decode(request: PairSpec) -> None:
        raise error

    with pytest.raises(DraftgaugeError, match=r"memory ran out .*: ask for shorter texts"):
        decode()
