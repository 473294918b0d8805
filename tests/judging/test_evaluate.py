"""Table rows: their figures follow from the replays, also by the length of texts, and their baselines."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from curves import linear_costs
from draftgauge.checkup.checks import Evidence, examine
from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.acceptance import (
    acceptance_by_context,
    acceptance_by_depth,
    advice_by_context,
    lengths_by_context,
)
from draftgauge.judging.evaluate import Compared, Row, evaluate, evaluate_design
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import best_fixed_gamma, plain_replay, replay, replay_fixed_all
from draftgauge.judging.speed import Speed
from draftgauge.judging.splits import Design, design_of
from draftgauge.judging.statistics.bootstrap import holm
from draftgauge.judging.verdict import recommended
from draftgauge.policies import fitted, make_policy
from draftgauge.policies.fixed import FixedLength
from draftgauge.traces.costs import CostCurve, extended, fit_law, laws_of
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.trace import PromptInfo, PromptRecord, Trace, make_record, select, take
from draftgauge.traces.writer import make_trace
from synthetic import repeating_trace, synthetic_trace

GAMMA_MAX = 6
COSTS = linear_costs(GAMMA_MAX)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(21, prompts=24, length=60, gamma_max=GAMMA_MAX, compression="int8")


@pytest.fixture(scope="module")
def rows(trace: Trace) -> dict[tuple[str, str], Row]:
    policies = {
        spec: make_policy(spec, GAMMA_MAX) for spec in ("no-draft", "fixed:1", "hf-heuristic", "cumulative-confidence")
    }
    best = best_fixed_gamma(trace, COSTS)
    outcomes = {"best": FixedLength(best), "hindsight": hindsight_optimum(trace, COSTS)}
    return {(str(row["policy"]), str(row["task"])): row for row in evaluate(trace, COSTS, policies | outcomes)}


def test_rows_hold_the_totals_of_the_replay(trace: Trace, rows: dict[tuple[str, str], Row]) -> None:
    outcome = replay(trace, make_policy("hf-heuristic", GAMMA_MAX), COSTS)
    row = rows["hf-heuristic", "all"]
    assert row["prompts"] == 24
    assert row["steps"] == outcome.steps.sum()
    assert row["tokens"] == trace.positions
    assert row["tokens_per_step"] == outcome.tokens_per_step
    assert row["tokens_per_second"] == pytest.approx(outcome.tokens_per_second)
    assert row["acceptance_rate"] == outcome.accepted.sum() / outcome.drafted.sum()
    assert row["ratio_to_plain"] == pytest.approx(plain_replay(trace, COSTS).seconds.sum() / outcome.seconds.sum())
    code = np.array([prompt.task == "code" for prompt in trace.prompts])
    of_code = rows["hf-heuristic", "code"]
    assert of_code["tokens"] == outcome.committed[code].sum()
    assert of_code["tokens_per_second"] == pytest.approx(outcome.committed[code].sum() / outcome.seconds[code].sum())


def test_gains_are_over_the_best_fixed_length(trace: Trace, rows: dict[tuple[str, str], Row]) -> None:
    best = rows["best", "all"]
    assert best["gain"] == 0
    assert best["captured"] == pytest.approx(0, abs=1e-9)
    bound = rows["hindsight", "all"]
    assert bound["captured"] == pytest.approx(1)
    assert bound["gain"] == pytest.approx(bound["tokens_per_second"] / best["tokens_per_second"] - 1)
    assert bound["gain"] > 0.05
    for policy in ("no-draft", "fixed:1", "hf-heuristic", "cumulative-confidence"):
        row = rows[policy, "all"]
        expected = row["tokens_per_second"] / best["tokens_per_second"] - 1
        assert row["gain"] == pytest.approx(expected)
        assert row["captured"] == pytest.approx(expected / bound["gain"])
    speeds = [outcome.tokens_per_second for outcome in replay_fixed_all(trace, COSTS)]
    assert best["best_fixed_gamma"] == int(np.argmax(speeds))


def test_p_values_are_adjusted_within_a_task_for_what_is_compared(trace: Trace) -> None:
    policies = {spec: make_policy(spec, GAMMA_MAX) for spec in ("fixed:1", "hf-heuristic", "cumulative-confidence")}
    rows = evaluate(trace, COSTS, policies, compared=Compared(references=["fixed:1"]), split="test", resamples=500)
    assert {row["split"] for row in rows} == {"test"}
    for task in ("code", "all"):
        fixed, *compared = [row for row in rows if row["task"] == task]
        assert fixed["p_holm"] is None
        assert [row["p_holm"] for row in compared] == pytest.approx(holm([row["p_value"] for row in compared]))


def test_turns_of_a_conversation_are_drawn_together(trace: Trace) -> None:
    """A conversation said twice is no second sample."""
    once = select(trace, [prompt.index < 12 for prompt in trace.prompts])
    twice = take(once, np.repeat(np.arange(12), 2))
    numbered = tuple(replace(prompt, index=index) for index, prompt in enumerate(twice.prompts))
    kept = ("gain", "gain_low", "gain_high", "p_value", "captured", "tokens_per_second_high")
    found = []
    for each in (once, replace(twice, prompts=numbered, turns=2), replace(twice, prompts=numbered)):
        row = evaluate(each, COSTS, {"hf-heuristic": make_policy("hf-heuristic:persistent=false", GAMMA_MAX)})[-1]
        found.append([row[name] for name in kept])
        rates = acceptance_by_depth(each)[0]
        found[-1] += [rates["alpha"], rates["alpha_low"], rates["alpha_high"]]
    assert found[1] == pytest.approx(found[0])
    assert found[2][1] > found[0][1]


def test_drafting_nothing_has_no_acceptance_rate(rows: dict[tuple[str, str], Row]) -> None:
    row = rows["no-draft", "all"]
    assert [row[key] for key in ("acceptance_rate", "tokens_per_step", "drafted_per_step")] == [None, 1.0, 0.0]


@pytest.mark.parametrize(("t_draft", "least"), [(10.0, 0.0), (0.0094, 0.001)])
def test_no_way_to_hindsight_no_share_of_it(t_draft: float, least: float, trace: Trace) -> None:
    hopeless = linear_costs(GAMMA_MAX, t_draft)
    row = evaluate(trace, hopeless, {"hindsight": hindsight_optimum(trace, hopeless)})[-1]
    assert (row["best_fixed_gamma"], row["captured"]) == (0, None)
    assert least <= row["gain"] < 0.01


def test_the_fixed_length_can_come_from_other_prompts(trace: Trace) -> None:
    row = evaluate(trace, COSTS, {"fixed:1": FixedLength(1)}, compared=Compared(best_fixed=1))[-1]
    assert (row["best_fixed_gamma"], row["gain"]) == (1, 0.0)
    with pytest.raises(DraftgaugeError, match="0 to 6"):
        evaluate(trace, COSTS, {}, compared=Compared(best_fixed=7))


def test_acceptance_by_depth_counts_positions_that_reached_it(trace: Trace) -> None:
    rows = {(row["task"], row["depth"]): row for row in acceptance_by_depth(trace)}
    assert len(rows) == 5 * GAMMA_MAX
    for task in ("code", "all"):
        for depth in range(1, GAMMA_MAX + 1):
            reached = accepted = 0
            for i, prompt in enumerate(trace.prompts):
                if task not in (prompt.task, "all"):
                    continue
                for row in range(trace.offsets[i], trace.offsets[i + 1]):
                    inside = row + depth <= trace.offsets[i + 1] and trace.drafted[row] >= depth
                    if inside and trace.accepted[row] >= depth - 1:
                        reached += 1
                        accepted += trace.draft_token[row, depth - 1] == trace.token[row + depth - 1]
            found = rows[task, depth]
            assert found["positions"] == reached
            assert found["alpha"] == pytest.approx(accepted / reached)
            assert found["alpha_low"] <= found["alpha"] <= found["alpha_high"]


def test_rows_name_their_sources_and_both_bounds() -> None:
    trace = repeating_trace(5, prompts=12, length=60, gamma_max=GAMMA_MAX, vocabulary=5)
    design = Design("all", trace, None)
    arms = {"lookup": make_policy("lookup:least=1,tokens=4", GAMMA_MAX), "model": make_policy("fixed:3", GAMMA_MAX)}
    rows = {row["policy"]: row for row in evaluate_design(design, COSTS, arms) if row["task"] == "all"}
    for name in arms:
        outcome = replay(trace, make_policy({"lookup": "lookup:least=1,tokens=4", "model": "fixed:3"}[name], 6), COSTS)
        accepted = outcome.accepted.sum() / outcome.steps.sum()
        assert rows[name]["source_model"] + rows[name]["source_text"] == pytest.approx(accepted)
        assert rows[name]["appended_per_step"] == outcome.appended.sum() / outcome.steps.sum()
    assert rows["lookup"]["source_model"] == 0 < rows["lookup"]["source_text"]
    assert rows["model"]["source_text"] == 0 < rows["model"]["source_model"]
    assert 0 < rows["model"]["distinct_4grams"] < 1
    assert rows["hindsight"]["captured"] == pytest.approx(1)
    assert rows["hindsight"]["tokens_per_second"] <= rows["hindsight-two-sources"]["tokens_per_second"]
    assert rows["hindsight-two-sources"]["p_holm"] is None
    alone = evaluate_design(design, COSTS, {"model": make_policy("fixed:3", GAMMA_MAX)})
    assert "hindsight-two-sources" not in {row["policy"] for row in alone}


def test_baselines_are_always_there_and_gains_are_over_the_length_chosen_on_training_prompts() -> None:
    design = design_of(synthetic_trace(4, prompts=36, length=50, gamma_max=GAMMA_MAX))
    assert design.train is not None
    arms = {name: make_policy(name, GAMMA_MAX) for name in ("hf-heuristic", "cumulative-confidence", "fixed:5")}
    rows = {row["policy"]: row for row in evaluate_design(design, COSTS, arms) if row["task"] == "all"}
    best = best_fixed_gamma(design.train, COSTS)
    assert list(rows) == list(dict.fromkeys(["no-draft", f"fixed:{best}", *arms, "hindsight"]))
    assert {(row["split"], row["best_fixed_gamma"], row["best_fixed_from"]) for row in rows.values()} == {
        ("test", best, "train")
    }
    base = replay(design.trace, FixedLength(best), COSTS).tokens_per_second
    outcome = replay(design.trace, make_policy("cumulative-confidence", GAMMA_MAX), COSTS)
    assert rows["cumulative-confidence"]["gain"] == pytest.approx(outcome.tokens_per_second / base - 1)
    tested = {name for name, row in rows.items() if row["p_holm"] is not None}
    assert tested == {"hf-heuristic", "cumulative-confidence"}


class LeavesOutTheLast(FixedLength):
    """Drafts a fixed length, and leaves out the last token."""

    def drops_last(self) -> bool:
        return True


def test_a_token_that_was_left_out_was_not_proposed(trace: Trace) -> None:
    outcome = replay(trace, LeavesOutTheLast(4), COSTS)
    assert outcome.dropped.sum() > 20
    row = evaluate(trace, COSTS, {"leaves out": outcome})[-1]
    assert row["acceptance_rate"] == outcome.accepted.sum() / (outcome.drafted - outcome.dropped).sum()
    assert row["drafted_per_step"] == outcome.drafted.sum() / outcome.steps.sum()


def test_the_simplest_policy_that_is_level_with_the_fastest_is_recommended(trace: Trace) -> None:
    def chosen(*specs: str) -> str:
        policies = {spec: make_policy(spec, GAMMA_MAX, COSTS) for spec in specs}
        rows = evaluate(trace, COSTS, policies)
        (name,) = {str(row["policy"]) for row in rows if row["recommended"]}
        return name

    near = "cumulative-confidence:threshold=0.3"
    assert chosen(near, "stopping") == near  # level, or ahead
    assert chosen("no-draft", near) == near  # nothing to tune, and far behind
    assert chosen("fixed:1", "fixed:2", "fixed:3") == max(
        ("fixed:1", "fixed:2", "fixed:3"),
        key=lambda spec: replay(trace, make_policy(spec, GAMMA_MAX), COSTS).tokens_per_second,
    )


FITTED_FILE = str(Path(fitted.__file__).parent / "bundled" / "two-source.json")
FROM_THE_SIMPLEST = ("no-draft", "fixed:2", "two-source", "two-source, fitted", "speckv", "mine")
SIMPLER = [*pairwise(FROM_THE_SIMPLEST), ("two-source", FITTED_FILE), (FITTED_FILE, "speckv"), ("speckv", "away.json")]


@pytest.mark.parametrize(("simpler", "faster"), SIMPLER)
def test_of_two_that_are_level_the_simpler_is_recommended(simpler: str, faster: str) -> None:
    tokens = np.full(9, 10.0)
    speeds = {faster: Speed(tokens, 1.0 / tokens), simpler: Speed(tokens, 1.005 / tokens)}
    assert recommended(speeds, "fixed:2") == simpler


LONGEST = 3


def record(index: int, context: int, chance: float) -> PromptRecord:
    """An output of 60 tokens behind a prompt of ``context``, whose drafted tokens are right with this chance."""
    rng, output = np.random.default_rng(index), list(range(1, 61))
    right = rng.random((60, LONGEST)) < chance
    drafts = [
        [token if ok else 0 for token, ok in zip(output[at : at + LONGEST], right[at], strict=False)]
        for at in range(60)
    ]
    return make_record(PromptInfo(index, str(index), "chat", "", context, 60, "stop"), output, drafts, LONGEST)


def trace_of(*groups: tuple[int, float]) -> Trace:
    return make_trace([record(10 * at + i, *of) for at, of in enumerate(groups) for i in range(10)], 60)


def curve(slope: float, draft_slope: float, contexts: tuple[int, ...], noise: float = 0.0) -> CostCurve:
    rng, k, at = np.random.default_rng(0), np.arange(LONGEST + 1), np.array(contexts)[:, None]
    verify = (0.02 + 0.001 * k + slope * at) * (1 + noise * rng.normal(size=(len(contexts), LONGEST + 1)))
    draft = (0.001 + draft_slope * at) * k
    plain = tuple((0.02 + slope * np.array(contexts)).tolist())
    return CostCurve(contexts, tuple(map(tuple, verify)), tuple(map(tuple, draft)), plain, "", "cpu", "")


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_law_predicts_contexts_that_it_was_not_fitted_on(noise: float) -> None:
    known, whole = curve(4e-6, 2e-7, (256, 1024, 4096), noise), curve(4e-6, 2e-7, (2048, 8192))
    verify, _ = laws_of(known)  # type: ignore[misc]
    assert verify.slope == pytest.approx(4e-6, rel=0.1)
    assert verify.error <= 3 * noise + 1e-9
    longer = extended(known)
    assert longer.contexts[:3] == known.contexts
    for tokens in range(1, LONGEST + 2):
        for context in (2048, 8192):
            expected = whole.verify_seconds(tokens, context)
            assert longer.verify_seconds(tokens, context) == pytest.approx(expected, rel=0.05)
    assert longer.draft_seconds(3, 8192) == pytest.approx(whole.draft_seconds(3, 8192), rel=0.05)
    assert laws_of(curve(4e-6, 0, (256,))) is None
    assert extended(curve(4e-6, 0, (256,))).contexts == (256,)
    batched = fit_law([[256, 1024], [8 * 256, 8 * 1024]], [[0.021, 0.024], [0.028, 0.053]])  # 1 request, 8 requests
    assert batched.seconds([4096])[:, 0] == pytest.approx([0.0365, 0.0362], abs=0.001)


@pytest.mark.parametrize("run", ["bf16", "nf4", "int8"])
def test_measured_costs_follow_the_law(run: str) -> None:
    """Fitted at the shortest and the longest context measured, it predicts verification at the one between, in
    the mean over numbers of tokens: on these CPUs, where a pass of several tokens reads a text once too."""
    measured = CostCurve.load(Path("docs/results/real/runs") / run / "costs.json")
    ends = [0, len(measured.contexts) - 1]
    law = fit_law([measured.contexts[at] for at in ends], np.asarray(measured.verify).T[:, ends])
    between = np.asarray(measured.verify)[1]
    apart = law.seconds(measured.contexts[1]) / between - 1
    assert np.abs(apart).mean() < 0.05


def test_advice_ends_where_drafting_does_not_pay_any_more() -> None:
    texts = trace_of((100, 0.8), (6000, 0.8))
    dear = curve(1e-6, 5e-6, (256, 4096))  # the drafter reads the text for every token: at 4k that takes as long
    said = advice_by_context(texts, dear)
    assert said is not None
    assert re.match(r"draft 3 up to \d+, .* up to 2048 tokens of context, none beyond \(costs", said)
    lengths = lengths_by_context(texts, dear)
    assert [lengths[256], lengths[2048] > 0, lengths[4096], max(lengths)] == [3, True, 0, 8 * 4096]
    assert "within 0%" in said
    assert "recorded up to 6059" in said
    assert advice_by_context(texts, curve(1e-6, 0, (256, 4096))) is None  # the same length everywhere
    assert advice_by_context(texts, curve(1e-6, 5e-6, (256,))) is None  # nothing is known of other lengths
    fading = trace_of((100, 0.9), (6000, 0.02))
    lengths = lengths_by_context(fading, curve(1e-6, 0, (256, 4096)))
    assert lengths[1 << 9] == 3
    assert lengths[1 << 14] == 0
    assert max(lengths) <= 8 * 4096


def test_lengths_by_context_are_those_of_replay() -> None:
    """In one range of contexts, and at costs that hardly grow, the best length is the one that replay finds."""
    hard = [[3] * 30 + [0] * 30] * 10  # right up to depth 3 over half of an output, then never
    drafts = [[[at + 1 + d if d < of[at] else 0 for d in range(LONGEST)] for at in range(60)] for of in hard]
    records = [
        make_record(PromptInfo(i, str(i), "chat", "", 100, 60, "stop"), list(range(1, 61)), rows, LONGEST)
        for i, rows in enumerate(drafts)
    ]
    trace, costs = make_trace(records, 60), curve(1e-9, 1e-9, (64, 256))
    costs = replace(costs, draft=tuple(tuple(0.007 * n for n in range(LONGEST + 1)) for _ in costs.contexts))
    speeds = [run.tokens_per_second for run in replay_fixed_all(trace, costs)]
    assert lengths_by_context(trace, costs)[256] == int(np.argmax(speeds)) == 0


def test_what_fades_with_the_text_is_named() -> None:
    rates = acceptance_by_context(trace_of((100, 0.9), (6000, 0.3)))
    assert list(rates) == ["under 1k", "4k to 16k"]
    assert rates["under 1k"][0] == pytest.approx(0.9, abs=0.05)
    assert rates["4k to 16k"][0] == pytest.approx(0.3, abs=0.05)
    for groups, status in ((((100, 0.9), (6000, 0.3)), "suspect"), (((100, 0.9), (6000, 0.9)), "well")):
        rows = {row["check"]: row for row in examine(Evidence(trace=trace_of(*groups)))}
        assert rows["long-context"]["status"] == status
        assert "4k to 16k" in rows["depth"]["evidence"]
    assert {row["check"]: row for row in examine(Evidence(trace=trace_of((100, 0.9))))}["long-context"][
        "status"
    ] == "unknown"


def test_an_engine_s_costs_may_name_what_texts_cost() -> None:
    costs = EngineCosts("vllm", (1, 4), (0.01, 0.012), ((0.01, 0.011), (0.012, 0.016)), ((0.0, 0.001), (0.0, 0.002)))
    costs = replace(costs, context=256, context_seconds=1e-6, draft_context_seconds=1e-7)
    costs.validate()
    alone, four = costs.curve(1), costs.curve(4)
    assert alone.verify_seconds(2, 256 + 5000) == pytest.approx(0.016)
    assert four.verify_seconds(2, 256 + 5000) == pytest.approx(0.016 + 4 * 0.005)
    assert four.draft_seconds(1, 256 + 5000) == pytest.approx(0.002 + 4 * 0.0005)
    assert costs.of_batches().verify_seconds(4, 8, 256 + 5000) == pytest.approx(0.016 + 4 * 0.005)
    assert alone.verify_seconds(2, 100) == pytest.approx(0.011)
