"""What is judged: prompts divided, rivals tuned, the optimum in hindsight, and what the verdict says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curves import linear_costs, random_costs
from draftgauge.api.replay import replay as replay_verb
from draftgauge.core.errors import TraceError
from draftgauge.judging import ranking
from draftgauge.judging.evaluate import evaluate_design
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.ranking import tune, tune_rivals
from draftgauge.judging.replay import replay, replay_fixed_all
from draftgauge.judging.splits import MIN_PROMPTS, Design, design_of, prompt_keys, split_trace, splits_of
from draftgauge.judging.verdict import Verdict, verdict_of
from draftgauge.policies import POLICIES, make_policy
from draftgauge.policies.ngrams import NgramIndex
from draftgauge.policies.spec import grid_specs, tunable_policies
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, select
from linear_costs import LinearCosts, curve
from synthetic import SPLITS, repeating_trace, replay_steps, same_rows, sampled_trace, synthetic_trace
from written_runs import write_run


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict("fixed:4", "fixed:4", 1.3, 1.2, 1.4, 20), "Draft with fixed:4: 1.30x plain decoding (95%: 1.20x to"),
        (Verdict("no-draft", "fixed:1", 0.9, 0.8, 0.95, 20), "Do not draft: the fastest policy, fixed:1, reaches 0.90"),
        (Verdict("no-draft", "svip", 1.004, 1.001, 1.01, 20), "svip, is level with not drafting, at 1.00x plain"),
        (
            Verdict("a", "a", 1.3, 1.2, 1.4, 20, fastest="b", top=1.304),
            "level with the fastest, b (1.30x), and simpler",
        ),
        (Verdict("a", "a", 1.3, 1.2, 1.4, 20, fastest="fixed:5", top=1.4), "fixed:5 happens to be faster (1.40x)"),
        (Verdict("no-draft", "", 1.0, 1.0, 1.0, 20), "Do not draft: no policy that drafts was tried."),
        (Verdict("fixed:4", "fixed:4", 1.3, 1.2, 1.4, 7, command="c"), "Not known yet: 7 of at least 8 prompts"),
        (Verdict("no-draft", "fixed:1", 1.0, 0.9, 1.1, 20), "Not known yet: the interval reaches both sides"),
        (
            Verdict("fixed:4", "fixed:4", 1.3, 1.2, 1.4, 7, unit="drafts of a server"),
            "7 of at least 8 drafts of a server are recorded. What would settle it: about 8 drafts of a server.",
        ),
        (Verdict("fixed:4", "fixed:4", 1.3, None, None, 9), "Not known yet: the prompts are turns of one conversation"),
        (Verdict("svip", "svip", 1.3, 1.2, 1.4, 20, "busy", "draftgauge c"), "run `draftgauge c --measure --cost-s"),
        (Verdict("svip", "svip", 1.3, 1.2, 1.4, 20, "busy", "api.py"), "busy. What would settle it: costs measured"),
        (
            Verdict("svip", "svip", 1.3, None, None, 1, "busy", "draftgauge profile --limit 1 --out a"),
            "run `draftgauge profile --limit 8 --out a-8 --measure --cost-seconds 60`, on 8 prompts, with nothing else "
            "on the machine. So far: Draft with svip: 1.30x plain decoding, modelled on 1 prompt.",
        ),
        (Verdict("svip", "svip", 1.3, 1.2, 1.4, 7, "", "api.py"), "recorded. What would settle it: about 8 prompts."),
        (
            Verdict("two-source", "two-source", 1.3, 1.2, 1.4, 20, text_only=True),
            "modelled on 20 prompts. All that it proposes is looked up in the text",
        ),
    ],
)
def test_what_is_said(verdict: Verdict, said: str) -> None:
    assert said in str(verdict)
    assert bool(verdict.unknown) == str(verdict).startswith("Not known yet")


@pytest.mark.parametrize(
    ("asked", "settles"),
    [
        ("profile --limit 20 --out a", "record about 80 prompts: `draftgauge profile --limit 80 --out a-80`."),
        ("profile --per-task=5 --seconds 9", "80 prompts: `draftgauge profile --per-task=20 --seconds 36`."),
        (
            "profile --out 'a b'",
            "`draftgauge profile --out 'a b'-80 --prompts MORE.jsonl`, where MORE.jsonl has as many.",
        ),
        (
            "profile --prompts p.jsonl --out a/",
            "80 prompts: `draftgauge profile --out a-80 --prompts MORE.jsonl`, where",
        ),
    ],
)
def test_what_settles_it_is_a_number_and_another_command(asked: str, settles: str) -> None:
    """Half the interval is twice what is between the figure and plain decoding, so four times the prompts tell."""
    verdict = Verdict("fixed:4", "fixed:4", 1.1, 0.9, 1.3, 20, command=f"draftgauge {asked}")
    assert settles in str(verdict)
    level = replace(verdict, speedup=1.0, low=0.75, high=1.25)  # nothing within 1% is worth telling
    assert "about 12500 prompts" in str(level)
    doubted = replace(verdict, doubt="busy", command=f"draftgauge {asked} --cost-seconds 90")
    assert "--measure --cost-seconds 180`" in str(doubted)


def test_where_drafting_does_not_pay_the_figure_is_of_the_fastest_policy_that_drafts() -> None:
    def row(policy: str, ratio: float) -> dict:
        ends = {"ratio_to_plain_low": ratio - 0.05, "ratio_to_plain_high": ratio + 0.02}
        row = {"policy": policy, "ratio_to_plain": ratio, "recommended": policy == "no-draft", "prompts": 9}
        return row | ends | {"cost_doubt": None}

    found = verdict_of([row("no-draft", 0.99), row("fixed:1", 0.9), row("svip", 0.95), row("hindsight", 1.2)])
    assert (found.setting, found.drafting, found.speedup, found.speculate) == ("no-draft", "svip", 0.95, False)
    assert (found.low, found.high, found.prompts, found.fastest) == (pytest.approx(0.9), pytest.approx(0.97), 9, "")


@pytest.mark.parametrize(("drafted", "text_only"), [(0.0, True), (0.2, False)])
def test_a_rule_that_only_looks_up_is_told_apart(drafted: float, text_only: bool) -> None:
    row = {"policy": "two-source", "recommended": True, "prompts": 9, "cost_doubt": None, "ratio_to_plain": 1.3}
    row |= {"ratio_to_plain_low": 1.2, "ratio_to_plain_high": 1.4, "drafted_per_step": drafted}
    found = verdict_of([row | {"appended_per_step": 1.5}])
    assert (found.text_only, found.low, found.high, found.fastest) == (text_only, 1.2, 1.4, "")


SPECS = ("no-draft", "fixed:2", "hf-heuristic", "hf-confidence", "hf-confidence:adaptive=true", "cumulative-confidence")
examples = settings(max_examples=50, deadline=None)


def every_path(trace: Trace, prompt: int, costs: CostCurve, text: bool) -> list[float]:
    """Modelled seconds of every sequence of drafts that decodes the prompt: the tree of choices, enumerated.

    Drafts hold the drafter's tokens and then, with ``text``, those that a live index predicts.
    """
    first, end = int(trace.offsets[prompt]), int(trace.offsets[prompt + 1])
    info = trace.prompts[prompt]
    output = trace.token[first:end].tolist()

    def agreed(proposed: list[int], position: int) -> int:
        count = 0
        while count < len(proposed) and position + count < len(output) and proposed[count] == output[position + count]:
            count += 1
        return count

    @cache
    def paths(position: int, backlog: int) -> tuple[float, ...]:
        if position == len(output):
            return (0.0,)
        index = NgramIndex()
        index.extend([*info.prompt_token, *output[:position]])
        room = trace.max_new_tokens - position - 1
        available = [token for token in trace.draft_token[first + position].tolist() if token >= 0]
        found: set[float] = set()
        for gamma in range(min(trace.gamma_max, len(available), room) + 1):
            for appended in range(min(trace.gamma_max, room) - gamma + 1 if text else 1):
                draft = available[:gamma]
                for _ in range(appended):
                    match = index.match([*index.text, *draft])
                    draft.append(-1 if match is None else match.token)  # without a match any wrong token will do
                accepted = agreed(draft, position)
                if gamma == 0:  # or as lookup copies
                    accepted = max(accepted, agreed(index.continuation(appended, least=1), position))
                here = float(costs.step_seconds(gamma, info.prompt_tokens + position, appended=appended))
                here += float(costs.rollback_seconds(len(draft), accepted))
                if gamma:
                    here += costs.catch_up[min(backlog, len(costs.catch_up)) - 1]
                    kept = min(accepted, gamma - 1) if costs.keeps_drafted else 0
                    left = accepted + 1 - kept
                else:
                    left = backlog + accepted + 1
                after = min(position + accepted + 1, len(output))
                found |= {here + rest for rest in paths(after, min(left, len(costs.catch_up)))}
        return tuple(found)

    return list(paths(0, 1))


@examples
@pytest.mark.parametrize("text", [False, True])
@given(seed=st.integers(0, 100_000), length=st.integers(1, 6), gamma_max=st.integers(1, 3))
def test_dynamic_programming_equals_enumeration(seed: int, length: int, gamma_max: int, text: bool) -> None:
    trace = synthetic_trace(seed, prompts=3, length=length + 1, gamma_max=gamma_max)
    if text:
        trace = repeating_trace(seed, prompts=2, length=length, gamma_max=gamma_max, vocabulary=2)
    costs = random_costs(seed, gamma_max)
    best = hindsight_optimum(trace, costs, text=text)
    for prompt in range(len(trace.prompts)):
        least = min(every_path(trace, prompt, costs, text))
        assert best.seconds[prompt] == pytest.approx(least, rel=1e-12)


@examples
@given(seed=st.integers(0, 100_000), length=st.integers(1, 60), gamma_max=st.integers(2, 8))
def test_no_policy_beats_hindsight_on_any_prompt(seed: int, length: int, gamma_max: int) -> None:
    trace = synthetic_trace(seed, prompts=4, length=length, gamma_max=gamma_max)
    costs = random_costs(seed, gamma_max)
    least = hindsight_optimum(trace, costs).seconds
    outcomes = [replay(trace, make_policy(spec, gamma_max), costs) for spec in SPECS] + replay_fixed_all(trace, costs)
    for outcome in outcomes:
        assert (least <= outcome.seconds * (1 + 1e-12)).all()


def test_the_best_path_has_the_seconds_of_its_steps() -> None:
    trace = synthetic_trace(7, prompts=5, length=80, gamma_max=6)
    costs = linear_costs(6)
    best = hindsight_optimum(trace, costs)
    record = best.record
    assert best.committed.tolist() == [prompt.output_tokens for prompt in trace.prompts]
    rows = record.rows(trace)
    np.testing.assert_allclose(replay_steps(trace, rows, record.drafted, costs).seconds, best.seconds)
    # Where longer drafts cost more, nothing is drafted in vain.
    np.testing.assert_array_equal(record.drafted, record.accepted)


def test_a_cost_curve_measured_less_far_is_refused() -> None:
    with pytest.raises(TraceError, match=r"measured for gamma 0\.\.2"):
        hindsight_optimum(synthetic_trace(1, prompts=2, length=9, gamma_max=4), linear_costs(2))


def test_the_text_is_no_source_of_sampled_decoding() -> None:
    trace = sampled_trace(1, prompts=2, length=9, gamma_max=3)
    with pytest.raises(TraceError, match="sampled decoding does not hold"):
        hindsight_optimum(trace, linear_costs(3), text=True)


GAMMA_MAX = 6
FEW = ("cumulative-confidence", "svip")


@pytest.fixture(scope="module")
def design() -> Design:
    train, test = (synthetic_trace(seed, prompts=12, length=80, gamma_max=GAMMA_MAX) for seed in (0, 1))
    return Design("test", test, train)


@pytest.mark.parametrize("name", tunable_policies())
def test_every_point_of_every_grid_can_be_made_and_the_defaults_are_near_one(name: str) -> None:
    specs = list(grid_specs(name))
    assert len(set(specs)) == len(specs) > 5
    for spec in specs:
        make_policy(spec, 20, LinearCosts())


def test_all_rules_of_the_field_have_a_grid() -> None:
    assert set(POLICIES) - set(tunable_policies()) == {"no-draft", "fixed", "stopping", "two-source"}


def test_rules_without_a_point_for_short_drafts_are_left_out() -> None:
    trace = synthetic_trace(0, prompts=4, length=20, gamma_max=1)
    rivals = tune_rivals(trace, curve(0.1, gamma_max=1))
    assert not any(spec.startswith("hf-heuristic") for spec in rivals.arms)
    assert rivals.best in rivals.arms


@pytest.mark.parametrize("name", FEW)
def test_no_point_of_the_grid_is_faster_on_the_training_prompts(name: str, design: Design) -> None:
    assert design.train is not None
    costs = curve(0.1, 0.0)
    _, speed = tune(name, design.train, costs)
    speeds = [
        replay(design.train, make_policy(spec, GAMMA_MAX, costs), costs).tokens_per_second for spec in grid_specs(name)
    ]
    assert speed == max(speeds)
    assert speed >= replay(design.train, make_policy(name, GAMMA_MAX), costs).tokens_per_second


def test_an_expensive_drafter_tunes_to_shorter_drafts(design: Design) -> None:
    assert design.train is not None
    drafted = []
    for drafting in (0.02, 0.4):
        costs = curve(drafting, 0.0)
        policy = make_policy(tune("cumulative-confidence", design.train, costs)[0], GAMMA_MAX)
        drafted.append(replay(design.train, policy, costs).record.drafted.mean())
    assert drafted[0] > drafted[1]


def test_rows_say_what_was_tuned_and_what_is_gained_over_the_best_of_it(design: Design) -> None:
    costs = curve(0.1, 0.0)
    policies = {"hf-confidence": make_policy("hf-confidence", GAMMA_MAX)}
    rows = evaluate_design(design, costs, policies, tune_rivals(design.training, costs, FEW))
    everywhere = {row["policy"]: row for row in rows if row["task"] == "all"}
    speeds = dict(tune(name, design.training, costs) for name in FEW)
    fixed = f"fixed:{everywhere['no-draft']['best_fixed_gamma']}"
    assert {policy for policy, row in everywhere.items() if row["tuned"]} == {*speeds, fixed}
    best = everywhere["hf-confidence"]["best_rival"]
    assert best == max(speeds, key=speeds.__getitem__)
    for row in everywhere.values():
        assert row["gain_over_rival"] == pytest.approx(
            row["tokens_per_second"] / everywhere[best]["tokens_per_second"] - 1
        )
        assert row["gain_over_rival_low"] <= row["gain_over_rival"] <= row["gain_over_rival_high"]
    assert everywhere[best]["gain_over_rival"] == 0.0


def test_without_tuning_there_is_no_rival(design: Design) -> None:
    rows = evaluate_design(design, curve(0.1, 0.0), {})
    assert {row["best_rival"] for row in rows} == {row["gain_over_rival"] for row in rows} == {None}


def test_the_verb_tunes_all_rules_of_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "grid_specs", lambda name: list(grid_specs(name))[:2])
    rows = replay_verb(write_run(tmp_path / "run", 24), policies=("hf-confidence",), tune=True)
    names = {row["policy"].partition(":")[0] for row in rows if row["tuned"]}
    assert names - {"no-draft", "fixed"} == set(tunable_policies())


def renamed(trace: Trace, split: str) -> Trace:
    """The same prompts, all of one split."""
    return replace(trace, prompts=tuple(replace(prompt, split=split) for prompt in trace.prompts))


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Of every task 10 prompts, 4, 3 and 3 of the splits."""
    return synthetic_trace(8, prompts=40, length=12, gamma_max=4)


def test_prompts_that_name_training_ones_are_taken_at_their_word(trace: Trace) -> None:
    assert splits_of(trace).tolist() == [prompt.split for prompt in trace.prompts]
    train = split_trace(trace, "train")
    assert {prompt.split for prompt in train.prompts} == {"train"}
    assert same_rows(train, select(trace, splits_of(trace) == "train"))


@pytest.mark.parametrize("name", ["", "test"])
def test_others_are_divided_within_every_task(trace: Trace, name: str) -> None:
    found = splits_of(renamed(trace, name))
    counts = Counter((prompt.task, split) for prompt, split in zip(trace.prompts, found.tolist(), strict=True))
    assert len(counts) == 12
    for (_, split), count in counts.items():
        assert count == {"train": 6, "validation": 2, "test": 2}[split]


def test_the_division_follows_the_prompts_wherever_they_stand(trace: Trace) -> None:
    unnamed = renamed(trace, "")
    known = dict(zip(prompt_keys(unnamed), splits_of(unnamed).tolist(), strict=True))
    one_task = select(unnamed, [prompt.task == "math" for prompt in unnamed.prompts])
    assert dict(zip(prompt_keys(one_task), splits_of(one_task).tolist(), strict=True)).items() <= known.items()
    backwards = replace(unnamed, prompts=unnamed.prompts[::-1])
    assert dict(zip(prompt_keys(backwards), splits_of(backwards).tolist(), strict=True)) == known
    assert list(known.values()) != sorted(known.values())


def test_turns_of_a_conversation_stay_together(trace: Trace) -> None:
    prompts = tuple(
        replace(prompt, task="chat", identifier=f"{prompt.index // 2}" + "/2" * (prompt.index % 2))
        for prompt in renamed(trace, "").prompts
    )
    split = splits_of(replace(trace, prompts=prompts, turns=2))
    assert (split[::2] == split[1::2]).all()
    assert Counter(split.tolist()) == {"train": 24, "validation": 8, "test": 8}
    apart = splits_of(replace(trace, prompts=prompts))
    assert (apart[::2] != apart[1::2]).any()


@pytest.mark.parametrize(
    ("prompts", "expected"), [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (2, 0, 1)), (4, (2, 1, 1)), (5, (3, 1, 1))]
)
def test_few_prompts_of_a_task_are_trained_and_tested_on_first(prompts: int, expected: tuple[int, ...]) -> None:
    few = renamed(synthetic_trace(1, prompts=prompts, length=5, gamma_max=2), "")
    one_task = replace(few, prompts=tuple(replace(prompt, task="code") for prompt in few.prompts))
    counts = Counter(splits_of(one_task).tolist())
    assert tuple(counts[split] for split in SPLITS) == expected


def test_a_split_of_too_few_prompts_is_refused_with_their_number() -> None:
    small = synthetic_trace(8, prompts=19, length=12, gamma_max=4)  # 8, 7 and 4
    assert len(split_trace(small, "train").prompts) == MIN_PROMPTS
    with pytest.raises(TraceError, match=r"4 of the 19 recorded prompts are test prompts, .* 8 or more: record more"):
        split_trace(small, "test")
    assert len(split_trace(small, "test", least=4).prompts) == 4
    unnamed = renamed(synthetic_trace(8, prompts=5, length=12, gamma_max=4), "")
    with pytest.raises(TraceError, match=r"^3 of the 5 .*: record some 14 prompts \(.* 60% train, 20%"):
        split_trace(replace(unnamed, prompts=tuple(replace(p, task="code") for p in unnamed.prompts)), "train")
    with pytest.raises(TraceError, match=r"fitted on some of these prompts.*, but 4 of .* with --split all"):
        design_of(small, None, prompt_keys(small)[:1])
    assert split_trace(small, "all") is small
    with pytest.raises(TraceError, match=r"no split 'dev'.*train, validation, test"):
        split_trace(small, "dev")


def test_what_is_evaluated_on_by_default(trace: Trace) -> None:
    design = design_of(trace)
    assert (design.split, {prompt.split for prompt in design.trace.prompts}) == ("test", {"test"})
    assert design.train is not None
    assert {prompt.split for prompt in design.train.prompts} == {"train"}

    for split, named in ((None, "all"), ("test", "test")):
        together = design_of(renamed(trace, "test"), split)
        assert (together.split, together.train) == (named, None)
        assert len(together.trace.prompts) == len(trace.prompts)
    assert len(design_of(renamed(trace, "test"), "test", ["math/p1"]).trace.prompts) == 8  # fitted on the others

    fitted = design_of(renamed(trace, ""), trained_on=["math/p1", "elsewhere/p9"])
    assert fitted.split == "test"
    assert fitted.train is not None
    assert not set(prompt_keys(fitted.train)) & set(prompt_keys(fitted.trace))
    assert design_of(renamed(trace, ""), trained_on=["elsewhere/p9"]).split == "all"
    assert design_of(select(trace, splits_of(trace) != "validation")).split == "test"


@pytest.mark.parametrize("split", ["train", "all"])
def test_prompts_that_the_fixed_length_is_chosen_on_are_not_set_against_themselves(trace: Trace, split: str) -> None:
    design = design_of(trace, split)
    assert design.split == split
    assert design.train is None
    chosen = [prompt for prompt in trace.prompts if split in ("all", prompt.split)]
    assert list(design.trace.prompts) == chosen != []
