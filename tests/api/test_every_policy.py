"""Every registered policy, and an object of a user, in every verb that takes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import draftgauge as dg
from draftgauge.api.advise import advise
from draftgauge.api.bench import bench
from draftgauge.api.generate import generate
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.report import report
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import cache_folder
from draftgauge.core.signals import SignalName
from draftgauge.models.tokenizer import vocabulary_digest
from draftgauge.pair import costs as costs_module
from draftgauge.pair.costs import pair_costs
from draftgauge.pair.loading import Pair
from draftgauge.policies.base import Signal, Step
from draftgauge.policies.spec import POLICIES
from draftgauge.requests import CostSpec
from draftgauge.traces.costs import CostCurve
from draftgauge.verification import Sampling
from tiny import tiny_tokenizer
from written_runs import write_run

GAMMA_MAX = 3
EVERY = ("fixed:1", *(name for name in POLICIES if name != "fixed"))
QUICK: dict[str, Any] = {"gamma_max": GAMMA_MAX, "cost_seconds": 0}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTGAUGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    profile(**models, out=out, max_new_tokens=6, device="cpu", **QUICK)
    return out


@pytest.mark.parametrize("policy", EVERY)
def test_generate(pair: Pair, policy: str) -> None:
    plain = generate(pair, "hello", policy="plain", max_new_tokens=8)
    how = generate(pair, "hello", policy=policy, max_new_tokens=8, **QUICK)
    assert how.text == plain.text
    assert max(step.drafted for step in how.steps) <= GAMMA_MAX


def test_bench_without_and_with_a_run(models: dict[str, Any], run: Path) -> None:
    common: dict[str, Any] = {"policies": EVERY, "rounds": 1, "baselines": False, "device": "cpu", "limit": 2}
    rows = bench(**models, max_new_tokens=6, **common, **QUICK)
    rows += bench(run, **common)
    rows += bench(run, drafter="prompt_lookup", **common, cost_seconds=0)
    for policy in EVERY:
        found = [row for row in rows if row["policy"] == policy and row["task"] == "all"]
        assert len(found) == 3
        assert all(row["mismatches"] == 0 and row["tokens_per_second"] > 0 for row in found)


def test_a_loaded_pair(pair: Pair, models: dict[str, Any], run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.api.bench.load_pair", None)  # nothing is loaded again
    common: dict[str, Any] = {"policies": ("no-draft", "fixed:2"), "rounds": 1, "baselines": False}
    rows = bench(pair, prompts=models["prompts"], max_new_tokens=6, **common, **QUICK)
    assert {row["policy"] for row in rows} == {"plain", "no-draft", "fixed:2"}
    assert all(row["compression"] == pair.compression and row["mismatches"] == 0 for row in rows)
    for given in ({"folder": run}, {"compression": "int8"}, {"target": models["target"]}):
        with pytest.raises(DraftgaugeError, match=f"leave out {next(iter(given))}, or the pair"):
            bench(pair, **given, **common)
    with pytest.raises(DraftgaugeError, match="loaded already: leave out compression"):
        generate(pair, "some words", compression="int8", chat=False)


def test_replay(run: Path) -> None:
    rows = replay(run, EVERY)
    assert {row["policy"] for row in rows} >= set(EVERY)
    assert all(np.isfinite(row["tokens_per_second"]) for row in rows)


def test_advise_and_report(run: Path, tmp_path: Path) -> None:
    named = tuple(policy for policy in EVERY if policy not in ("no-draft", "fixed:0"))
    settings = {row["policy"] for row in advise(run, policies=named)}
    assert settings >= set(named) - {"no-draft"}
    written = write_run(tmp_path / "written", 24)  # enough to be divided
    page = report(written, policies=named, out=tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert all(f'<th scope="row">{policy}</th>' in page for policy in named)


def test_a_curve_is_measured_once_and_again_on_demand(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    measure = costs_module.measure_costs

    def counted(*arguments: Any, **options: Any) -> Any:
        measured.append(1)
        return measure(*arguments, **options)

    monkeypatch.setattr(costs_module, "measure_costs", counted)
    monkeypatch.setattr(costs_module, "_IN_DOUBT", {})
    quick = CostSpec(cost_seconds=0)
    monkeypatch.setattr(CostCurve, "doubt", lambda curve: "busy")
    for process in (1, 2):
        with pytest.warns(UserWarning, match="costs are not certain, and measured again next time: busy"):
            first = pair_costs(pair, quick, gamma_max=2)
        assert pair_costs(pair, quick, gamma_max=2) == first
        assert len(measured) == process
        costs_module._IN_DOUBT.clear()
    measured.clear()
    monkeypatch.setattr(CostCurve, "doubt", lambda curve: "")
    first = pair_costs(pair, quick, gamma_max=2)
    assert pair_costs(pair, quick, gamma_max=2) == first
    other = replace(pair, known_tokenizer=tiny_tokenizer(swap=(4, 5)))
    assert pair_costs(other, quick, gamma_max=2).vocabulary == vocabulary_digest(other.tokenizer) != first.vocabulary
    assert len(measured) == 1
    assert first.measured is not None
    assert first.gamma_max == 2
    pair_costs(pair, CostSpec(cost_seconds=0, measure=True), gamma_max=2)
    assert len(measured) == 2
    pair_costs(pair, quick, gamma_max=1)  # another length
    assert len(measured) == 3
    for sampling in (Sampling(1.0), Sampling(0.5), Sampling(0.5, top_k=5)):  # sorting takes time of its own
        pair_costs(pair, quick, gamma_max=1, sampling=sampling)
    assert len(measured) == 5


def test_a_damaged_cache_is_measured_again_and_an_unwritable_one_does_no_harm(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = CostSpec(cost_seconds=0)
    monkeypatch.setattr(CostCurve, "doubt", lambda curve: "")
    monkeypatch.setenv("DRAFTGAUGE_CACHE", str(tmp_path / "cache"))
    first = pair_costs(pair, quick, gamma_max=1)
    (kept,) = (cache_folder() / "costs").iterdir()
    kept.write_text(kept.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert pair_costs(pair, quick, gamma_max=1) != first
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DRAFTGAUGE_CACHE", str(tmp_path / "file"))
    assert pair_costs(pair, quick, gamma_max=1).gamma_max == 1


def test_unknown_policies_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    for verb in (generate, bench):
        options: dict[str, Any] = {"prompt": "x", "policy": "oracle"} if verb is generate else {"policies": "oracle"}
        with pytest.raises(DraftgaugeError, match="unknown policy 'oracle'"):
            verb(target=tmp_path / "nothing", **options)


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
