"""A user's own policy object in every function of the Python API that decodes or replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import draftgauge as dg
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import SignalName
from draftgauge.pair.loading import Pair
from draftgauge.policies.base import Signal, Step
from written_runs import write_run


class TwoAtMost:
    """Drafts two tokens, and notes what it was asked."""

    reads = frozenset({SignalName.CONFIDENCE})

    def __init__(self) -> None:
        self.steps = 0

    def reset(self) -> None: ...

    def limit(self) -> int:
        return 2

    def keep_drafting(self, signal: Signal) -> bool:
        return signal.confidence >= 0

    def observe(self, step: Step) -> None:
        self.steps += 1


def test_generate_decodes_with_it_and_with_a_copy(pair: Pair) -> None:
    own = TwoAtMost()
    given: dict[str, Any] = {"max_new_tokens": 12, "chat": False, "gamma_max": 1}  # less than it wants
    how = dg.generate(pair, "some words", policy="mine", objects={"mine": own}, **given)
    fixed = dg.generate(pair, "some words", policy="fixed:1", **given)
    assert how.text == fixed.text
    assert [step.drafted for step in how.steps] == [step.drafted for step in fixed.steps]
    assert own.steps == 0
    with pytest.raises(DraftgaugeError, match="mine"):
        dg.generate(pair, "some words", policy="mine", **given)
    with pytest.raises(DraftgaugeError, match="'mine' lacks reads, reset"):
        dg.generate(pair, "some words", policy="mine", objects={"mine": object()}, **given)


def test_bench_decodes_with_it_beside_named_policies_or_alone(pair: Pair, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "some words"}\n{"prompt": "other words here"}\n', encoding="utf-8")
    given: dict[str, Any] = {"prompts": prompts, "rounds": 1, "max_new_tokens": 8, "baselines": False}
    rows = dg.bench(pair, objects={"mine": TwoAtMost()}, **given)
    both = dg.bench(pair, policies=("fixed:1",), objects={"mine": TwoAtMost()}, gamma_max=1, **given)
    assert {row["policy"] for row in rows} == {"plain", "mine"}
    steps = {row["policy"]: row["tokens_per_step"] for row in both if row["task"] == "all"}
    assert steps["mine"] == steps["fixed:1"]
    with pytest.raises(DraftgaugeError, match="two policies are named 'fixed:2'"):
        dg.bench(pair, policies=("fixed:2",), objects={"fixed:2": TwoAtMost()}, **given)


def test_replay_walks_with_a_copy(tmp_path: Path) -> None:
    own = TwoAtMost()
    rows = dg.replay(write_run(tmp_path / "run", 8), objects={"mine": own})
    assert "mine" in {row["policy"] for row in rows}
    assert own.steps == 0


def test_transformers_decode_with_it(models: dict[str, Any]) -> None:
    model, draft = (AutoModelForCausalLM.from_pretrained(models[name]).eval() for name in ("target", "drafter"))
    ids = {"input_ids": model.dummy_inputs["input_ids"][:1, :3]}
    plain = model.generate(**ids, max_new_tokens=8, do_sample=False)
    for most in (2, 1):
        decode = dg.speculative(draft, policy=TwoAtMost(), gamma_max=most)
        ours = model.generate(**ids, custom_generate=decode, max_new_tokens=8, do_sample=False)
        assert ours.tolist() == plain.tolist()
        assert max(step.drafted for step in decode.generations[0].steps) == most
