"""Batches in the verbs: measured by profile, replayed by length, shown in the report, refused where they cannot be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from command_line import refusal, succeeds
from draftgauge.api.advise import advise
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.report import write_report
from draftgauge.core.errors import DraftgaugeError, ModelError, TraceError
from draftgauge.judging.batch_rows import ROUNDS, batch_rows, queues_of
from draftgauge.models.engines import static
from draftgauge.pair import recording
from draftgauge.pair.loading import load_pair
from draftgauge.pair.recording import batch_models, check_batches
from draftgauge.policies.base import Signal, Step
from draftgauge.policies.batch import WholeBatch
from draftgauge.policies.spec import WHOLE_BATCH
from draftgauge.requests import PairSpec
from draftgauge.serving.advice import SWITCHES
from draftgauge.traces.costs import BatchCosts, CostCurve
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.manifest import COSTS_NAME
from draftgauge.traces.run import read_trace
from linear_costs import curve
from small_profiles import save_models
from synthetic import synthetic_trace
from tiny import save_tiny

SMALL: dict[str, Any] = {"gamma_max": 2, "max_new_tokens": 8, "cost_seconds": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    models = save_models(tmp_path_factory.mktemp("models"), [""] * 4)
    save_tiny(models["drafter"])  # accepted wherever it drafts
    return models


@pytest.fixture(scope="module")
def run(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    profile(**(models | SMALL), out=folder, batches=(1, 3))
    return folder


def test_profile_measures_batches_and_replay_uses_them(run: Path, models: dict[str, Any]) -> None:
    costs = CostCurve.load(run / COSTS_NAME)
    assert costs.batched is not None
    assert (costs.batched.batches, costs.batched.gamma_max) == ((1, 3), 2)
    rows = replay(run, batches=(1, 2, 3), policies=("hf-confidence", "stopping"))
    assert [row["batch"] for row in rows] == [batch for batch in (1, 2, 3) for _ in range(5 + len(WHOLE_BATCH))]
    for batch in (1, 2, 3):
        fixed = [row for row in rows if row["batch"] == batch and row["gamma"] is not None]
        assert [row["gamma"] for row in fixed] == [0, 1, 2]
        assert fixed[0]["ratio_to_plain"] == 1
        assert [row["best"] for row in fixed].count(True) == 1
        best = max(fixed, key=lambda row: row["tokens_per_second"])
        assert best["best"]
        assert [row["tokens_per_step"] for row in fixed] == pytest.approx([1, 2, 8 / 3])  # of 8 tokens, all accepted
        assert [row["drafted_per_step"] for row in fixed] == pytest.approx([0, 1, 5 / 3])  # room for one at the end
    shown = succeeds("replay", str(run), "--batches", "1,3")
    assert "best fixed length by batch size" in shown.stdout
    before = (run / COSTS_NAME).read_bytes()
    profile(**(models | SMALL), out=run, batches=(3,))  # known
    assert (run / COSTS_NAME).read_bytes() == before


def test_adaptive_verification_admits_the_likeliest_tokens_of_all_requests() -> None:
    """Requests compete: with a budget of two tokens the sure one keeps both of its own."""

    def flat(requests: int, tokens: Any, context: int) -> Any:
        return 1.0 + 0.0 * tokens

    def steep(requests: int, tokens: Any, context: int) -> Any:
        return 1.0 + 1e3 * np.maximum(tokens - requests - 2, 0)

    drafted = {n: [Signal(d, c, 0.0, c, 5) for d in (1, 2)] for n, c in enumerate((0.9, 0.2))}
    assert WholeBatch(2, flat, learned=False).admit(drafted, 9) == {0: 2, 1: 2}
    assert WholeBatch(2, steep, learned=False).admit(drafted, 9) == {0: 2, 1: 0}
    learning = WholeBatch(2, steep, learned=True, refit=60, warm_up=1)
    assert learning.admit(drafted, 9) == {0: 2, 1: 2}  # whole drafts until it has learned
    for _ in range(60):
        learning.observe(0, Step(2, 2, 3, drafted[0]))
        learning.observe(1, Step(2, 0, 1, drafted[1]))
    assert learning.admit(drafted, 9) == {0: 2, 1: 0}


def test_advice_at_a_batch_says_whether_adaptive_verification_pays(run: Path) -> None:
    costs = CostCurve.load(run / COSTS_NAME)
    rows = batch_rows(read_trace(run), costs, (3,), tuple(WHOLE_BATCH))
    free = replace(costs.batched, verify=tuple(((0.01,) * 3,) for _ in costs.batched.batches), contexts=(1,))
    free = replace(free, draft=tuple(((1e-9,),) for _ in free.batches), signals=(0.0,) * len(free.batches))
    at_once = batch_rows(read_trace(run), replace(costs, batched=free), (3,), tuple(WHOLE_BATCH))
    at_once = {row["policy"]: row for row in at_once}
    whole = at_once["fixed:2"]["tokens_per_step"]  # where verifying is flat nothing is left out
    assert at_once["confidence-scheduled"]["tokens_per_step"] == pytest.approx(whole, rel=0.02)
    advised = next(row for row in advise(run, batch=3) if row["recommended"])["at_batch"]
    best = next(row for row in rows if row["best"])
    assert (best["gain"], best["gain_low"], best["gain_high"]) == (0, 0, 0)
    for row in (row for row in rows if row["gamma"] is None):
        assert row["gain"] == pytest.approx(row["tokens_per_second"] / best["tokens_per_second"] - 1)
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
        said = f"{row['policy']} {row['gain']:+.1%} over it (95%: {row['gain_low']:+.1%} to "
        assert (said in advised) == (row["policy"] in SWITCHES)
    assert advised.count("switch it on") == sum(row["gain_low"] > 0 for row in rows if row["policy"] in SWITCHES)


def test_requests_that_share_their_steps_are_one_sample_together() -> None:
    """Eight prompts, each replayed in a batch of its own copies: more copies tell no more."""
    batches = (1, 4, 16)
    verify = tuple((tuple(b * (1 + 0.2 * k) for k in range(4)),) for b in batches)
    draft = tuple(((0.3 * b, 0.4 * b),) for b in batches)
    costs = replace(curve(0.1, 0.2, 3), batched=BatchCosts(batches, (8,), verify, draft, (0.0,) * 3))
    rows = batch_rows(synthetic_trace(3, 8, 30, 3), costs, batches, ("cumulative-confidence",))
    one, *more = [[row[f"gain{end}"] for end in ("_low", "", "_high")] for row in rows if row["gamma"] is None]
    assert one == sorted(set(one))
    assert more == [pytest.approx(one)] * 2


@pytest.mark.parametrize(("batch", "groups"), [(1, 20), (2, 10), (5, 8), (64, 8)])
def test_groups_share_no_conversation_and_leave_no_prompt_out(batch: int, groups: int) -> None:
    conversation = np.arange(40) // 2
    queues = queues_of(conversation, batch)
    members = [set(conversation[queue]) for queue in queues]
    assert len(queues) == groups
    assert sorted(number for group in members for number in group) == list(range(20))
    assert sorted(prompt for queue in queues for prompt in set(queue)) == list(range(40))
    assert all(len(queue) >= ROUNDS * batch for queue in queues)


def test_more_requests_want_shorter_drafts(run: Path, tmp_path: Path) -> None:
    """Where a token of a batch takes time of its own, and a lone one hides behind the weights."""
    curve = CostCurve.load(run / COSTS_NAME)
    verify = tuple((tuple(max(1.0, 0.25 * b * k) for k in range(1, 4)),) for b in (1, 8))
    draft = tuple(((0.01, 0.02),) for _ in (1, 8))
    batched = BatchCosts((1, 8), (16,), verify, draft, (0.0, 0.0))
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    replace(curve, batched=batched).save(folder / COSTS_NAME)
    rows = [row for row in replay(folder, batches=(1, 8)) if row["best"]]
    assert rows[0]["gamma"] > rows[1]["gamma"] == 0
    page = write_report(folder, tmp_path / "report.html").read_text()
    assert "Best length by load" in page
    replace(curve, batched=None).save(folder / COSTS_NAME)
    assert "Best length by load" not in write_report(folder, tmp_path / "report.html").read_text()


def test_costs_measured_again_keep_those_of_batches(run: Path, models: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    batched = CostCurve.load(folder / COSTS_NAME).batched
    assert batched is not None
    profile(**(models | SMALL), out=folder, measure=True)
    assert CostCurve.load(folder / COSTS_NAME).batched == batched
    profile(**(models | SMALL), out=folder, measure=True, engine="modules")
    assert CostCurve.load(folder / COSTS_NAME).batched is None  # they were of another engine


def test_batches_of_an_engine_are_priced_as_measured() -> None:
    """Plain decoding without the draft model loaded, and a drafted token by the mean of all."""
    verify, draft = ((0.02, 0.021, 0.022), (0.03, 0.04, 0.05)), ((0.0, 0.004, 0.006), (0.0, 0.004, 0.008))
    batches = EngineCosts("vllm", (1, 8), (0.01, 0.03), verify, draft).of_batches()
    assert [row[0][0] for row in batches.verify] == [0.01, 0.03]
    assert [row[0][0] for row in batches.draft] == [0.003, 0.004]


def test_files_without_batches_are_read_and_say_what_to_do(run: Path, tmp_path: Path) -> None:
    path, batched = tmp_path / "costs.json", CostCurve.load(run / COSTS_NAME)
    curve = replace(batched, batched=None)
    with pytest.raises(TraceError, match=r"measured for single requests, asked for batches of 4: .*--batches"):
        curve.of_batches(4)
    assert batched.batched is not None
    replace(batched, batched=replace(batched.batched, batches=(2, 4))).save(path)
    with pytest.raises(TraceError, match="is not a cost curve"):
        CostCurve.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": (2, 3)}, "batches must begin with 1"),
        ({"batches": (1, 1)}, "batches must be increasing"),
        ({"contexts": (1, 2)}, "verify must have a row for each"),
        ({"verify": (((1.0,),), ((1.0, 2.0),))}, "verify must have as many columns"),
        ({"draft": (((0.0, 1.0),), ((1.0, 1.0),))}, "draft must be seconds greater than 0"),
        ({"signals": (-1.0, 0.0)}, "signals must be seconds"),
    ],
)
def test_costs_that_cannot_be(change: dict[str, Any], message: str) -> None:
    table = (((1.0, 2.0),),) * 2
    good = BatchCosts((1, 2), (8,), table, table, (0.0, 0.0))
    good.validate()
    with pytest.raises(TraceError, match=message):
        replace(good, **change).validate()


def test_costs_between_what_was_measured() -> None:
    costs = BatchCosts(
        (1, 3), (10, 20), (((1.0, 2.0), (3.0, 4.0)), ((5.0, 8.0), (7.0, 10.0))), (((1.0, 2.0),) * 2,) * 2, (0.0, 0.5)
    )
    assert costs.verify_seconds(1, 1, 5) == 1.0
    assert costs.verify_seconds(1, 2, 99) == 4.0
    assert costs.verify_seconds(2, 2, 10) == pytest.approx(3.0)
    assert costs.verify_seconds(2, 3, 15) == pytest.approx((1.5 + 3.5 + 6.5 + 8.5) / 4)
    assert costs.draft_seconds(3, 12, 10) == 2.0  # the last column stands for all more
    assert costs.signal_seconds(3) == 0.5
    with pytest.raises(TraceError, match="1 to 2 tokens a request, asked for 3"):
        costs.verify_seconds(1, 3, 10)


def test_single_costs_are_kept_where_batches_fail(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(recording, "measure_batches", Mock(side_effect=ModelError("memory ran out")))
        with pytest.raises(ModelError, match="memory ran out"):
            profile(**(models | SMALL), out=out, batches=(2,))
    before = (out / COSTS_NAME).read_bytes()
    assert CostCurve.load(out / COSTS_NAME).batched is None
    profile(**(models | SMALL), out=out)  # nothing is left to do
    assert (out / COSTS_NAME).read_bytes() == before
    profile(**(models | SMALL), out=out, batches=(2,))
    batched = CostCurve.load(out / COSTS_NAME).batched
    assert batched is not None
    assert batched.batches == (1, 2)


def test_caches_on_one_device_must_fit_together(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = load_pair(PairSpec(target=str(models["target"]), drafter=str(models["drafter"])))
    target, _ = batch_models(pair)
    config = target.module.config
    one = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4 * 3 * 20
    monkeypatch.setattr(static, "free_bytes", lambda device: 2 * one)
    check_batches(pair, (1, 3), 20)
    monkeypatch.setattr(static, "free_bytes", lambda device: 2 * one - 1)
    static.check_caches_fit([(target, 20)], 3)
    with pytest.raises(ModelError, match="a batch of 3 sequences of 20 tokens needs"):
        check_batches(pair, (1, 3), 20)


def test_what_cannot_be_measured_or_replayed(
    run: Path, models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def refused(kind: type[Exception], match: str, **options: Any) -> None:
        with pytest.raises(kind, match=match):
            profile(**(models | SMALL | options), out=out)
        assert not out.exists()

    refused(DraftgaugeError, "run on the engines lean and static", batches=(2,), engine="modules")
    refused(DraftgaugeError, "prompt_lookup drafts here", batches=(2,), drafter="prompt_lookup")
    refused(DraftgaugeError, "at least 1 and each once", batches=(2, 2))
    with monkeypatch.context() as patch:
        patch.setattr(static, "free_bytes", lambda device: 10_000)
        refused(ModelError, "a batch of 64 sequences of .* needs .* choose smaller batches", batches=(64,))
    with pytest.raises(TraceError, match="batches of 1 to 3, asked for batches of 8"):
        replay(run, batches=(8,))
    with pytest.raises(DraftgaugeError, match="leave out --tune"):
        replay(run, batches=(1,), tune=True)
    with pytest.raises(DraftgaugeError, match="looks tokens up in the text"):
        replay(run, batches=(1,), policies=("lookup",))
    refusal("replay", str(run), "--batches", "8")
