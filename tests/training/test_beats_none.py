"""A guard against designs whose inputs are lost: reading the states of the bundled target must pay.

A design must beat the one that reads nothing, and must be worse off with the states of other positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.api.prompts import prompt_file
from draftgauge.core.progress import silent
from draftgauge.core.prompts import mixed_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics import held_out_loss
from draftgauge.diagnostics.held_out_loss import held_out_kl
from draftgauge.diagnostics.texts import greedy_texts
from draftgauge.drafters.reuse import DESIGNS, load_drafter, target_fingerprint
from draftgauge.models.loading import end_tokens, load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompts
from draftgauge.models.taps import Features, batch_features
from draftgauge.training.reuse.answers import describe, make_answers
from draftgauge.training.reuse.data import source_of
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter

DEPTHS, STEPS, NEW_TOKENS, LONGEST = 2, 60, 32, 48
MARGIN = 0.05  # nats


def of_other_positions(*arguments: Any) -> Features:
    """``batch_features``, with the states, keys and values of every text in reverse."""
    features = batch_features(*arguments)
    return replace(
        features,
        hidden=None if features.hidden is None else features.hidden.flip(1),
        keys=None if features.keys is None else features.keys.flip(-2),
        values=None if features.values is None else features.values.flip(-2),
    )


@pytest.fixture
def kl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[float, float]]:
    """Trains a design for a few steps on short texts; gives its KL over all depths on others, in nats.

    The second KL is that with the states of other positions. All designs see the same answers and the same cached
    features, and propose from the 1,024 most frequent tokens.
    """
    target, tokenizer = load_model("reference", device="cpu"), load_tokenizer("reference")
    ends = end_tokens(target, tokenizer)

    def prompts(split: str, per_task: int) -> list[tuple[str, list[int]]]:
        return encode_prompts(mixed_prompts(prompt_file(f"reference:{split}"), per_task), tokenizer, LONGEST)

    texts = greedy_texts(target, prompts("validation", 3), DecodingSettings(NEW_TOKENS, end_tokens=ends))
    spec = TrainingSpec(
        prompts=prompt_file("reference:train"),
        new_tokens=NEW_TOKENS,
        answers=tmp_path / "answers.jsonl",
        cache=tmp_path / "features",
        draft_vocabulary=1024,
        depths=DEPTHS,
        steps=STEPS,
        batch=4,
        checkpoint_every=STEPS,
        log_every=STEPS,
        device="cpu",
        precision="fp32",
    )
    ids = [tokens for _, tokens in prompts("train", 16)]
    made = describe(target_fingerprint(target.module), ids, NEW_TOKENS, source_of(spec))
    assert spec.answers is not None
    make_answers(spec.answers, made, target.module, ids, ends, silent)

    def trained(design: str) -> tuple[float, float]:
        train_drafter(replace(spec, reuse=design), tmp_path / design)
        net = load_drafter(tmp_path / design, target)
        own = np.mean(held_out_kl(net, target.module, texts, DEPTHS))
        with monkeypatch.context() as patch:
            patch.setattr(held_out_loss, "batch_features", of_other_positions)
            others = np.mean(held_out_kl(net, target.module, texts, DEPTHS))
        return float(own), float(others)

    return trained


@pytest.mark.slow
def test_every_design_that_reads_the_target_beats_none(kl: Callable[[str], tuple[float, float]]) -> None:
    reading = [name for name, design in DESIGNS.items() if design.reads_hidden or design.reads_kv]
    assert len(reading) == len(DESIGNS) - 1
    none, unmoved = kl("none")
    assert unmoved == none  # it reads none of what was exchanged
    lost = {}
    for name in reading:
        own, others = kl(name)
        if own >= min(none, others) - MARGIN:
            lost[name] = own, others
    assert not lost, f"no better than none ({none:.3f}), or than with the states of other positions: {lost}"
