"""transformers' generate as a baseline decodes what the target says, whatever its checkpoint's own settings are."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.api import verb as verbs
from draftgauge.api.baselines import ASSISTED, ASSISTED_CONSTANT, GENERATE, PROMPT_LOOKUP, TransformersBaseline
from draftgauge.api.pair import load_pair
from draftgauge.api.requests import DeviceSpec, PairSpec
from draftgauge.core.errors import DraftgaugeError
from draftgauge.decoding import DecodingSettings, plain_decode
from tiny import save_tiny, tokens


@pytest.mark.parametrize("name", [GENERATE, ASSISTED, ASSISTED_CONSTANT, PROMPT_LOOKUP])
def test_a_checkpoints_own_penalty_does_not_distort_the_baseline(tmp_path: Path, name: str) -> None:
    folder = save_tiny(tmp_path)
    pair = load_pair(PairSpec(target=str(folder), draft=str(folder), machine=DeviceSpec(device="cpu")))
    prompt = tokens(10).tolist() * 2
    plain = plain_decode(pair.target, prompt, DecodingSettings(24, end_tokens=pair.end_tokens)).tokens
    for model in (pair.target.module, pair.draft.module):
        model.generation_config.repetition_penalty = 1.9
        model.generation_config.no_repeat_ngram_size = 2
    settings = pair.draft.module.generation_config.to_dict()
    baseline = TransformersBaseline(pair, name, gamma=3)
    for _ in range(2):
        run = baseline.run(prompt, 24)
        assert run.tokens == plain
        assert 0 < run.timed < len(run.tokens)
    assert pair.draft.module.generation_config.to_dict() == settings
    assert pair.target.module.generation_config.repetition_penalty == 1.9
    ids = pair.target.module.generate(
        tokens(1).new_tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert ids[0, len(prompt) :].tolist() != plain, "the penalty must matter, or this shows nothing"


@pytest.mark.parametrize("error", [MemoryError(), type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory.")])
def test_memory_that_runs_out_in_a_verb_ends_in_a_clear_error(error: Exception) -> None:
    @verbs.verb(PairSpec)
    def decode(request: PairSpec) -> None:
        raise error

    with pytest.raises(DraftgaugeError, match=r"memory ran out .*: ask for shorter texts"):
        decode()
