"""The whole path on one device: a CPU, or with ``make test-gpu`` the machine's GPU, which the other tests do not see.

In float32, where greedy output can be compared token by token.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import draftgauge as dg
from draftgauge.core.parts import DeviceSpec
from draftgauge.decoding.batched import BatchPlan, batched_decode
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.models.engines.static import StaticRows
from draftgauge.models.folder import PAIR_FOLDER
from draftgauge.pair.loading import Pair, load_pair
from draftgauge.policies.batch import make_batch_policy
from draftgauge.policies.spec import make_policy
from draftgauge.requests import LoadSpec, PairSpec
from draftgauge.traces.run import Manifest
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter
from draftgauge.verification import Sampling
from linear_costs import LinearCosts

DEVICE = os.environ.get("DRAFTGAUGE_TEST_DEVICE", "cpu")
WHOLE = "DRAFTGAUGE_TEST_DEVICE" in os.environ  # else one of each: other tests run them all on a CPU
ENGINES = ("static", "lean", "modules") if WHOLE else ("static",)
POLICIES = ("two-source", "stopping", "fixed:4", "hf-confidence") if WHOLE else ("two-source",)
COMPRESSIONS = ("int8", "uncompressed", "bf16", "nf4")
of_devices = pytest.mark.skipif(not WHOLE, reason="other tests run this on a CPU: make test-gpu")
TRAINED = [("ttt", "hybrid", "auto"), ("block", "kv", "auto"), ("ttt", "hidden", "auto"), ("ttt", "kv", "fp32")]
GAMMA_MAX = 8
COSTS = LinearCosts(drafting=0.05)
PROMPTS = PAIR_FOLDER / "prompts" / "train.jsonl"


def pair_of(engine: str = "auto", compression: str = "fp32", **drafter: Any) -> Pair:
    where, how = DeviceSpec(device=DEVICE), LoadSpec(engine=engine)
    return load_pair(PairSpec(compression=(compression,), machine=where, loading=how, **drafter))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """A short and a long one, whose cache outgrows the first bucket of the static engine."""
    tokenizer = pair_of().tokenizer
    found = []
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        text = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False, add_generation_prompt=True)
        found.append(tokenizer(text).input_ids)
    found.sort(key=len)
    return [found[0], next(tokens for tokens in found if len(tokens) > 230)]


def drafter_of(pair: Pair, sampling: Sampling | None = None) -> Any:
    generator = torch.Generator(pair.target.spec.device).manual_seed(1)
    return pair.drafter(sampling or Sampling(), generator)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_that_of_plain_decoding(engine: str, policy: str, prompts: list[list[int]]) -> None:
    pair = pair_of(engine)
    assert pair.target.spec.engine == engine
    settings = DecodingSettings(40, end_tokens=pair.end_tokens)
    for prompt in prompts:
        expected = plain_decode(pair.target, prompt, settings).tokens
        found = speculative_decode(
            pair.target, drafter_of(pair), make_policy(policy, GAMMA_MAX, COSTS), prompt, settings
        )
        assert found.tokens == expected
        assert len(found.steps) < len(expected)


@of_devices
@pytest.mark.parametrize(("compression", "apart"), [("fp32", 2e-3), ("nf4", 0.5)])
def test_static_passes_give_what_lean_ones_give_however_often_they_are_replayed(
    compression: str, apart: float, prompts: list[list[int]]
) -> None:
    static, lean = (pair_of(engine, compression).target for engine in ("static", "lean"))
    text = torch.tensor(prompts[1], device=static.spec.device)
    for model in (static, lean):
        model.reset()
        model.forward(text)
    tokens = text[:9]
    for _ in range(3):  # run, recorded, replayed
        for count in (1, 2, 5, 9, 3):
            found, expected = (model.forward(tokens[:count]) for model in (static, lean))
            torch.testing.assert_close(found, expected, atol=apart, rtol=apart)
            for model in (static, lean):
                model.truncate(model.length - count + 1)
    assert bool(len(static.passes)) == (DEVICE != "cpu")


@of_devices
@pytest.mark.parametrize("engine", ENGINES)
def test_sampling_from_one_token_is_greedy_and_a_perfect_draft_stands(engine: str, prompts: list[list[int]]) -> None:
    pair = pair_of(engine)
    greedy = plain_decode(pair.target, prompts[0], DecodingSettings(32, end_tokens=pair.end_tokens)).tokens
    one = Sampling(0.7, top_k=1)
    settings = DecodingSettings(32, one, end_tokens=pair.end_tokens)
    generator = torch.Generator(pair.target.spec.device).manual_seed(3)
    policy = make_policy("fixed:4", GAMMA_MAX, COSTS)
    drawn = speculative_decode(pair.target, drafter_of(pair, one), policy, prompts[0], settings, generator)
    assert drawn.tokens == greedy

    twin, warm = pair_of(engine, target="reference", drafter=str(PAIR_FOLDER / "target")), Sampling(0.9, top_p=0.95)
    found = speculative_decode(
        twin.target, drafter_of(twin, warm), policy, prompts[0], DecodingSettings(32, warm), generator
    )
    assert sum(step.accepted for step in found.steps) >= 0.97 * sum(step.proposed for step in found.steps)


@of_devices
@pytest.mark.parametrize("policy", ["stopping", "fixed:3"])
def test_outputs_of_a_batch_are_those_of_plain_decoding(policy: str, prompts: list[list[int]]) -> None:
    pair = pair_of("static")
    settings, queue = DecodingSettings(24, end_tokens=pair.end_tokens), prompts * 3
    room = max(map(len, prompts)) + settings.max_new_tokens
    rows = [StaticRows(model, 3, room) for model in (pair.target, pair.draft)]
    chosen = make_batch_policy(policy, 3, GAMMA_MAX, COSTS)
    run = batched_decode(*rows, chosen, queue, settings, BatchPlan(3, GAMMA_MAX))
    expected = {tuple(prompt): plain_decode(pair.target, prompt, settings).tokens for prompt in prompts}
    assert [output.tokens for output in run.outputs] == [expected[tuple(prompt)] for prompt in queue]


@of_devices
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_decodes(compression: str, prompts: list[list[int]]) -> None:
    pair = pair_of(compression=compression)
    settings = DecodingSettings(16)
    policy = make_policy("two-source", GAMMA_MAX, COSTS)
    found = speculative_decode(pair.target, drafter_of(pair), policy, prompts[0], settings)
    assert found.tokens_per_step > 1


@of_devices
def test_from_profile_to_advice(tmp_path: Path) -> None:
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()[::16]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    run = tmp_path / "run"
    asked: dict[str, Any] = {"target": "reference", "draft": "reference", "compression": "fp32", "max_new_tokens": 24}
    asked |= {"prompts": tmp_path / "prompts.jsonl", "gamma_max": 4, "cost_seconds": 0.5, "device": DEVICE}
    dg.profile(out=run, **asked)
    manifest = Manifest.load(run)
    assert manifest.device.startswith(DEVICE)
    assert all(row["tokens_per_second"] > 0 for row in dg.replay(run, ["fixed", "stopping"]))
    rows = dg.bench(folder=run, policies=["fixed:3", "stopping"], device=DEVICE, rounds=1)
    live = {row["policy"]: row["mismatches"] for row in rows if row["task"] == "all"}
    assert live["fixed:3"] == live["stopping"] == 0
    assert any(row["recommended"] for row in dg.advise(folder=run))


@pytest.mark.filterwarnings("error:passes are launched")
@pytest.mark.parametrize(("recipe", "design", "precision"), TRAINED if WHOLE else TRAINED[1:2])
def test_a_trained_drafter_is_lossless(
    recipe: str, design: str, precision: str, prompts: list[list[int]], tmp_path: Path
) -> None:
    data = {"questions": 4, "new_tokens": 8, "length": 128}
    request = TrainingSpec(target="reference", recipe=recipe, reuse=design, steps=2, batch=2, depths=4, **data)
    train_drafter(replace(request, device=DEVICE, precision=precision), tmp_path / "drafter")
    for engine in ENGINES:
        pair = pair_of(engine, target="reference", drafter=str(tmp_path / "drafter"))
        settings = DecodingSettings(24, end_tokens=pair.end_tokens)
        expected = plain_decode(pair.target, prompts[1], settings).tokens
        policy = make_policy("fixed:3", GAMMA_MAX, COSTS)
        drafter = drafter_of(pair)
        found = speculative_decode(pair.target, drafter, policy, prompts[1], settings)
        assert found.tokens == expected
        again = [drafter.propose(5, None).tokens for _ in range(3)]  # run, recorded, replayed on a GPU
        assert again[1:] == again[:1] * 2
