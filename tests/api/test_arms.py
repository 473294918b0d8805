"""Live arms: their order, what is left when the time is over, a bench as a gate, and what transformers decodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from command_line import draftgauge, invoke, refusal, rows_of
from draftgauge.api import bench as module
from draftgauge.api.bench import DEFAULTS, _compared, bench
from draftgauge.api.runs import Run
from draftgauge.benching.arms import Arm, ArmRun, BenchPrompt, bench_arms, own_arm, transformers_arms, without_failed
from draftgauge.benching.bench_rows import ASKED, SAME_RUNS, Reference, bench_rows, hold_to, note_near_ties
from draftgauge.core import verb as verbs
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.signals import NO_SIGNALS
from draftgauge.decoding import DecodingSettings, plain_decode
from draftgauge.pair.loading import load_pair
from draftgauge.policies.base import PolicyBase, Step
from draftgauge.requests import PLAIN, BenchRequest, PairSpec
from tiny import save_tiny, tokens

NAMES = (PLAIN, "b", "c")
PROMPTS = [BenchPrompt([n], "ab"[n % 2]) for n in range(6)]


def watched_arms(order: list[tuple[str, int]]) -> list[Arm]:
    def arm(name: str) -> Arm:
        def decode(tokens: list[int]) -> ArmRun:
            order.append((name, tokens[0]))
            return ArmRun([1, 2], 1, 2, 0.5 if name == PLAIN else 0.25, 0.1)

        return Arm(name, decode)

    return [arm(name) for name in NAMES]


def decoded(seed: int, rounds: int = 40) -> list[tuple[str, int]]:
    order: list[tuple[str, int]] = []
    arms = watched_arms(order)
    bench_arms(arms, PROMPTS, rounds, np.random.default_rng(seed), lambda done, total: None)
    assert all(len(runs) == rounds for each in arms for runs in each.runs)
    return order[len(NAMES) :]  # without the warm-up


def test_the_order_is_drawn_anew_for_every_prompt_and_round_from_the_seed() -> None:
    order = decoded(seed=0)
    assert order == decoded(seed=0)
    assert order != decoded(seed=1)
    visits = [order[at : at + len(NAMES)] for at in range(0, len(order), len(NAMES))]
    assert all({name for name, _ in visit} == set(NAMES) for visit in visits)
    assert all(len({prompt for _, prompt in visit}) == 1 for visit in visits)
    first = Counter(visit[0][0] for visit in visits)
    assert min(first.values()) > len(visits) / 3 * 0.7  # every arm begins about a third of the visits
    followers = Counter((a[0], b[0]) for visit in visits for a, b in pairwise(visit))
    assert min(followers.values()) > len(visits) / 3 * 0.7  # and none always runs behind the same other


@pytest.mark.parametrize(("visits", "prompts", "rounds"), [(4, 4, 1), (6, 6, 1), (9, 6, 1), (13, 6, 2)])
def test_what_is_left_when_the_time_is_over(
    visits: int, prompts: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, int]] = []
    arms = watched_arms(order)
    monkeypatch.setattr(time, "monotonic", lambda: float(len(order) // len(NAMES) - 1))  # one for each visit
    kept = bench_arms(arms, PROMPTS, 3, np.random.default_rng(0), lambda done, total: None, seconds=visits + 0.5)
    assert len(kept) == prompts
    assert all(len(runs) == rounds for arm in arms for runs in arm.runs[:prompts])
    rows = {row["policy"]: row for row in bench_rows(arms, kept, "uncompressed") if row["task"] == "all"}
    assert rows["b"]["prompts"] == prompts
    assert rows["b"]["ratio_to_plain"] == 2


@pytest.mark.parametrize(("rounds", "took"), [(None, 1), (2, 2)])
def test_unless_asked_for_no_round_begins_after_three_minutes(
    rounds: int | None, took: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    order: list[tuple[str, int]] = []
    arms = watched_arms(order)
    monkeypatch.setattr(time, "monotonic", lambda: 20.0 * len(order))  # 60 seconds a prompt
    with caplog.at_level("INFO", "draftgauge"):
        bench_arms(arms, PROMPTS, rounds, np.random.default_rng(0), lambda done, total: None)
    assert {len(runs) for arm in arms for runs in arm.runs} == {took}
    assert "3 ways of decoding, 6 prompts: about 360 s a round" in caplog.text


def timed_arms(**seconds: float) -> list[Arm]:
    """Arms that took so long for each prompt, ``_`` in a name for its colon."""
    arms = [Arm(name.replace("_", ":"), lambda tokens: ArmRun([1], 1, 1, 1.0, 0.1)) for name in seconds]
    for arm, each in zip(arms, seconds.values(), strict=True):
        arm.runs = [[ArmRun([1, 2], 1, 2, each, 0.1)] for _ in PROMPTS]
    return arms


@pytest.mark.parametrize(
    ("over", "arm", "chosen_from"),
    [
        (None, "fixed:2", SAME_RUNS),  # the fastest of the fixed lengths
        (Reference("fixed:4", "train"), "fixed:4", "train"),
        (Reference(PLAIN, ASKED), PLAIN, ASKED),
    ],
)
def test_gains_are_over_the_reference(over: Reference | None, arm: str, chosen_from: str) -> None:
    seconds = {PLAIN: 1.0, "fixed_2": 0.5, "fixed_4": 0.8, "svip": 0.4}
    rows = [row for row in bench_rows(timed_arms(**seconds), PROMPTS, "uncompressed", over) if row["task"] == "all"]
    assert {(row["over"], row["over_from"]) for row in rows} == {(arm, chosen_from)}
    base = seconds[arm.replace(":", "_")]
    for row in rows:
        gain = base / seconds[row["policy"].replace(":", "_")] - 1
        assert (row["gain_low"], row["gain"], row["gain_high"]) == pytest.approx((gain, gain, gain))


@pytest.mark.parametrize(
    ("seconds", "over", "said"),
    [
        ({"svip": 0.5, "fixed_4": 0.502}, Reference("fixed:4", "train"), "Draft with fixed:4: 1.99x"),  # level
        ({"svip": 0.4, "fixed_4": 0.5, "fixed_2": 0.3}, Reference("fixed:4", "train"), "Draft with svip: 2.50x"),
        ({"svip": 0.4, "fixed_4": 0.5, "fixed_2": 0.3}, Reference(PLAIN, ASKED), "Draft with fixed:2: 3.33x"),
        ({"fixed_4": 1.5, "transformers": 0.1}, None, "Do not draft: the fastest policy, fixed:4, reaches 0.67x"),
    ],
)
def test_the_verdict_is_on_the_arms_of_draftgauge(seconds: dict[str, float], over: Reference | None, said: str) -> None:
    arms = timed_arms(**{PLAIN: 1.0} | seconds)
    for arm in arms:
        arm.outside, arm.runs = arm.name == "transformers", arm.runs * 2
    rows = bench_rows(arms, PROMPTS * 2, "uncompressed", over)
    (verdict,) = [row["verdict"] for row in rows if "verdict" in row]
    assert verdict.startswith(said), verdict
    assert "measured on 12 prompts" in verdict


def test_tokens_that_are_not_plain_decodings_are_counted() -> None:
    arms = timed_arms(**{PLAIN: 1.0, "svip": 0.5})
    for prompt, output in ((1, [1, 3]), (2, [1, 2, 4]), (4, [3, 3])):
        arms[1].runs[prompt] = [ArmRun(output, 1, 2, 0.5, 0.1)]
    rows = {(row["policy"], row["task"]): row for row in bench_rows(arms, PROMPTS, "uncompressed")}
    counts = {key: (row["mismatches"], row["mismatched_prompts"]) for key, row in rows.items()}
    assert counts["svip", "all"] == (4, 3)
    assert (counts["svip", "a"], counts["svip", "b"], counts[PLAIN, "all"]) == ((3, 2), (1, 1), (0, 0))


@pytest.mark.parametrize(("dtype", "ties"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_a_first_difference_is_a_near_tie_where_the_target_was_undecided(dtype: torch.dtype, ties: int) -> None:
    logits = torch.tensor([1.0, 2.0, 1.9995, 1.7, 0.0])
    target = Mock(**{"spec.dtype": dtype, "spec.engine": "lean", "spec.device": torch.device("cpu")})
    target.forward.side_effect = lambda text, last_only: logits[None] if text.tolist() == [7, 1] else None
    arms, prompts = timed_arms(**{PLAIN: 1.0, "svip": 0.5}), [BenchPrompt([7], "a")] * 4
    assert bench_rows(arms, prompts, "bf16")[0]["near_ties"] is None
    for n, token in enumerate((2, 3, 4, 1)):  # nothing is asked where outputs agree
        arms[0].runs[n], arms[1].runs[n] = ([ArmRun([1, each, 0], 1, 2, 0.5, 0.1)] for each in (1, token))
    note_near_ties(target, arms, prompts)
    counts = [bench_rows(arms, prompts, "bf16")[-1][key] for key in ("mismatched_prompts", "near_ties")]
    assert [*counts, target.forward.call_count] == [3, ties, 3]


def test_turns_of_a_conversation_are_drawn_together() -> None:
    arms = timed_arms(**{PLAIN: 1.0, "svip": 0.5})
    arms[1].runs = [[ArmRun([1, 2], 1, 2, 0.3 + 0.1 * (n // 2), 0.1)] for n in range(6)]
    both = [BenchPrompt([n], "a", n // 2) for n in range(6)]
    single = [Arm(arm.name, arm.decode, arm.runs[::2]) for arm in arms]
    rows = [bench_rows(arms, both, "uncompressed")[-1], bench_rows(single, both[::2], "uncompressed")[-1]]
    for name in ("gain", "tokens_per_second", "ratio_to_plain"):
        ends = [[row[f"{name}{end}"] for end in ("", "_low", "_high")] for row in rows]
        assert ends[0] == pytest.approx(ends[1])


def test_an_output_that_is_over_with_its_first_pass_has_no_speed() -> None:
    """transformers' clock begins with the second one."""
    arms = timed_arms(**{PLAIN: 1.0, "transformers": 0.5})
    arms[1].runs[0] = [ArmRun([1], 1, 0, 0.0, 0.1)]
    rows = {row["policy"]: row for row in bench_rows(arms, PROMPTS, "uncompressed") if row["task"] == "all"}
    assert {row["prompts"] for row in rows.values()} == {len(PROMPTS)}
    assert rows["transformers"]["tokens_per_second"] == pytest.approx(4.0)
    assert rows["transformers"]["ratio_to_plain"] == rows["transformers"]["ratio_to_plain_low"] == 2.0
    assert rows["transformers"]["gain_low"] == pytest.approx(1.0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_where_every_output_is_over_with_its_first_pass_there_is_no_speed_of_0(tmp_path: Path) -> None:
    """Nor a loss of 100%: transformers' seconds behind its only token are not the time of a token."""
    folder = save_tiny(tmp_path)
    pair = load_pair(folder, folder, device="cpu")
    arms = [own_arm(pair, DecodingSettings(1)), *transformers_arms(pair, 1)]
    prompts = [BenchPrompt([5, 6, 7], "a")]
    bench_arms(arms, prompts, 1, np.random.default_rng(0), lambda done, total: None)
    rows = {row["policy"]: row for row in bench_rows(arms, prompts, "uncompressed") if row["task"] == "all"}
    assert len(rows) == 5
    for name, row in rows.items():
        assert (row["tokens_per_second"] is not None and row["gain"] is not None) == (name == PLAIN), row


def test_outputs_without_any_timed_token_are_an_error() -> None:
    """Those of servers, which time no first token."""
    arms = [Arm(name, Mock(), [[ArmRun([1], 1, 0, 0.0, 0.1)]]) for name in (PLAIN, "fixed:4")]
    with pytest.raises(DraftgaugeError, match="no output has a token that was timed"):
        bench_rows(arms, PROMPTS[:1], "uncompressed")


def test_a_policy_that_learns_begins_every_round_anew(tmp_path: Path) -> None:
    class Longer(PolicyBase):
        reads, gamma = NO_SIGNALS, 1

        def observe(self, step: Step) -> None:
            self.gamma += 1

    folder = save_tiny(tmp_path)
    pair, prompts = load_pair(folder, folder, device="cpu"), [BenchPrompt([5, 6, 7], "a"), BenchPrompt([9], "a")]
    arms = [own_arm(pair, DecodingSettings(12), "longer", Longer())]
    bench_arms(arms, prompts, 2, np.random.default_rng(0), lambda done, total: None)
    first, second = arms[0].runs
    assert [run.steps for run in first] == [4, 4]  # drafts of 1, 2, 3 and 2 tokens
    assert second[0].steps == second[1].steps < 4


@pytest.mark.parametrize("fails_at", [0, 4])
def test_an_outside_baseline_that_fails_drops_out_with_a_warning(fails_at: int) -> None:
    order: list[tuple[str, int]] = []
    arms = watched_arms(order)
    decode = arms[1].decode

    def failing(tokens: list[int]) -> ArmRun:
        if tokens[0] == fails_at:
            raise ValueError("main and assistant differ")
        return decode(tokens)

    arms[1].decode, arms[1].outside = failing, True
    assert bench_arms(arms, PROMPTS, 1, np.random.default_rng(0), lambda done, total: None) == PROMPTS
    with pytest.warns(UserWarning, match="b fails on this pair and is left out .ValueError: main and assistant differ"):
        kept = without_failed(arms)
    assert [arm.name for arm in kept] == [PLAIN, "c"]
    assert {row["policy"] for row in bench_rows(kept, PROMPTS, "uncompressed")} == {PLAIN, "c"}


def test_a_bench_that_names_no_policy_asks_for_no_longer_drafts_than_it_may() -> None:
    named = [policy.text for policy in _compared(BenchRequest(), {}, DEFAULTS, 4, None).named]
    assert "fixed:4" in named
    assert "fixed:6" not in named


def test_runs_of_a_folder_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("draftgauge.api.bench.Run.find", lambda _: [Run(tmp_path / name) for name in "ab"])
    done, gone = {"policy": "plain", "task": "all", "prompts": 2}, TraceError("its models are gone")
    monkeypatch.setattr("draftgauge.api.bench._bench_run", benched := Mock(return_value=[done]))
    assert bench(tmp_path) == [done | {"run": name} for name in "ab"]
    benched.side_effect = [gone, [done]] * 2
    with pytest.warns(UserWarning, match="a is left out: its models are gone$"):
        assert bench(tmp_path) == [done | {"run": "b"}, {"run": "a", "error": "its models are gone"}]
    assert invoke("bench", tmp_path).exit_code == 1
    benched.side_effect = gone
    refused = pytest.raises(DraftgaugeError, match=r"could be benched; the last was .*are gone$")
    with pytest.warns(UserWarning, match="left out"), refused:
        bench(tmp_path)


TEN = [BenchPrompt([n], "task") for n in range(10)]


def arms_of(seconds: Callable[[int, int], float]) -> list[Arm]:
    """Plain decoding, and an arm that takes ``seconds(prompt, visit)`` for 4 tokens behind a first one."""
    visits: dict[tuple[str, int], int] = {}

    def arm(name: str) -> Arm:
        def decode(prompt: list[int]) -> ArmRun:
            visit = visits[name, prompt[0]] = visits.get((name, prompt[0]), -1) + 1
            taken = 4.0 if name == PLAIN else seconds(prompt[0], visit)
            return ArmRun([1, 2, 3, 4, 5], 5, 4, taken, 0.1 * (1 + prompt[0]))

        return Arm(name, decode)

    return [arm(PLAIN), arm("fixed:2")]


@pytest.mark.parametrize(("rounds", "runs"), [(None, 4), (3, 3)])
def test_rounds_that_differ_are_decoded_again_by_all_unless_their_number_was_asked_for(
    rounds: int | None, runs: int
) -> None:
    arms = arms_of(lambda prompt, visit: 20.0 if (prompt, visit) == (7, 2) else 2.0)
    bench_arms(arms, TEN, rounds, np.random.default_rng(0), lambda done, total: None)
    for arm in arms:
        assert [len(of) for of in arm.runs] == [3] * 7 + [runs] + [3] * 2


def test_rows_have_percentiles_over_prompts_and_say_what_was_reached() -> None:
    arms = arms_of(lambda prompt, visit: 1.0 + 0.2 * prompt)
    bench_arms(arms, TEN, 1, np.random.default_rng(0), lambda done, total: None)
    rows = hold_to(bench_rows(arms, TEN, ""), 2.0)
    row = next(row for row in rows if (row["task"], row["policy"]) == ("all", "fixed:2"))
    each = 1e3 * (1.0 + 0.2 * np.arange(10)) / 4
    assert [row[f"tpot_p{p}_ms"] for p in (50, 90, 99)] == pytest.approx(np.percentile(each, (50, 90, 99)))
    assert [row[f"ttft_p{p}_ms"] for p in (50, 90)] == pytest.approx(np.percentile(100.0 * np.arange(1, 11), (50, 90)))
    assert row["ratio_to_plain"] == pytest.approx(40 / 19)
    assert [row["reached"] for row in rows if "verdict" in row] == [row["ratio_to_plain"] >= 2.0] == [True]
    assert not any("reached" in row for row in hold_to(bench_rows(arms, TEN, ""), None))


def test_less_than_asked_for_is_exit_code_1_and_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = arms_of(lambda prompt, visit: 2.0)
    bench_arms(arms, TEN, 1, np.random.default_rng(0), lambda done, total: None)

    def measured(request: Any, progress: Any) -> list[dict[str, Any]]:
        return hold_to(bench_rows(arms, TEN, "bf16"), request.at_least)

    monkeypatch.setattr(module, "bench", measured)
    file = tmp_path / "bench.json"
    shown = draftgauge(["bench", "--at-least", "2.5", "--json", str(file)])
    assert shown.exit_code == 1
    assert "below --at-least 2.5: fixed:2 at 2.00x (bf16)" in shown.message
    assert any(row.get("reached") is False for row in rows_of(file))  # kept all the same
    passed = draftgauge(["bench", "--at-least", "1.9"])
    assert (passed.exit_code, "below" in passed.message) == (0, False)
    for verb in (["bench"], ["bench-servers", "plain=http://127.0.0.1:9"]):
        assert "--at-least must be" in refusal(*verb, "--at-least", "0")


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
