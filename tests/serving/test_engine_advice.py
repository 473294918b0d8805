"""Advice for an engine from its costs: steps at fixed lengths, DSpark's tables, and what would change it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from command_line import refusal, succeeds
from draftgauge.judging.replay import plain_replay, replay, replay_lengths
from draftgauge.judging.splits import Design
from draftgauge.policies.spec import make_policy
from draftgauge.serving.advice import acceptance_to_pay, advise_settings, advised_length, best_length, thresholds
from draftgauge.serving.engines import ENGINES, PLAIN, Deployment, engine_of, settings_document
from draftgauge.traces.engine_costs import LONGEST, EngineCosts, costs_of_steps, load_engine_costs
from draftgauge.traces.trace import Trace
from synthetic import synthetic_trace

GAMMA_MAX = 4
FIXED = [f"fixed:{length}" for length in range(1, GAMMA_MAX + 1)]


def engine_costs(draft: float, verify: float = 0.0, plain: float = 1.0, batches: tuple[int, ...] = (1,)) -> EngineCosts:
    """A step takes 1, ``draft`` for each drafted token and ``verify`` for each verified one, times the batch."""
    columns = np.arange(GAMMA_MAX + 1)
    return EngineCosts(
        engine="vllm",
        batches=batches,
        plain=(plain,) * len(batches),
        verify=tuple(tuple((1 + verify * batch * columns).tolist()) for batch in batches),
        draft=tuple(tuple((draft * columns).tolist()) for _ in batches),
    )


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(0, 40, 30, GAMMA_MAX)


def test_the_cheaper_drafting_is_the_further_it_is_advised(trace: Trace) -> None:
    design, best = Design("all", trace, None), []
    for draft in (0.01, 0.2, 3.0):
        costs = engine_costs(draft).curve()
        _, verdict = advise_settings(design, costs, [PLAIN, *FIXED])
        best.append(best_length(design, costs))
        assert verdict.setting == (f"fixed:{best[-1]}" if best[-1] else PLAIN)
        assert verdict.speculate == (best[-1] > 0)
    assert best[0] > best[1] > best[2] == 0


def test_costs_of_servers_that_differ_are_doubted(trace: Trace) -> None:
    costs = replace(engine_costs(0.1), half_width=0.2).curve()
    _, verdict = advise_settings(Design("all", trace, None), costs, [PLAIN, *FIXED], measure="run `costs`")
    assert "known to within 20% only. To settle it, with nothing else on the machine, run `costs`" in str(verdict)


def test_speed_is_that_of_replay_over_plain_decoding(trace: Trace) -> None:
    costs = engine_costs(0.1).curve()
    outcomes, _ = advise_settings(Design("all", trace, None), costs, [PLAIN, *FIXED])
    outcome = replay_lengths(trace, np.full(trace.positions, 2), costs)
    two = next(o for o in outcomes if o["policy"] == "fixed:2")
    assert two["ratio_to_plain"] == pytest.approx(plain_replay(trace, costs).seconds.sum() / outcome.seconds.sum())
    assert two["ratio_to_plain_low"] < two["ratio_to_plain"] < two["ratio_to_plain_high"]
    plain = outcomes[0]
    ratio = [plain[f"ratio_to_plain{end}"] for end in ("", "_low", "_high")]
    assert (ratio, plain["acceptance_rate"]) == ([1, 1, 1], None)


def test_the_fixed_length_is_chosen_on_training_prompts(trace: Trace) -> None:
    train, test = synthetic_trace(1, 12, 30, GAMMA_MAX), synthetic_trace(2, 12, 30, GAMMA_MAX)
    costs = engine_costs(0.25).curve()
    there, here = (
        advise_settings(design, costs, [PLAIN, *FIXED])[1]
        for design in (Design("all", train, None), Design("test", test, train))
    )
    assert here.setting == there.setting
    assert here.speedup != pytest.approx(there.speedup)


def test_acceptance_to_pay_is_where_a_length_breaks_even(trace: Trace) -> None:
    draft = 0.3
    chance = acceptance_to_pay(trace, engine_costs(draft).curve())
    assert chance == pytest.approx(draft, abs=1e-9)  # one token: 1 + a = 1 + draft; longer drafts need more
    assert acceptance_to_pay(trace, engine_costs(0.6, verify=0.5).curve()) is None
    assert acceptance_to_pay(trace, engine_costs(0.0, verify=-0.1).curve()) == 0


def test_p_min_drafts_the_doubtful_token_in_vain(trace: Trace) -> None:
    """Every position by itself: drafted is what llama.cpp verifies, charged is what it drafts."""
    costs = engine_costs(0.2).curve()
    outcomes, _ = advise_settings(Design("all", trace, None), costs, [PLAIN, "p-min:0.6,3"])
    outcome = next(o for o in outcomes if o["policy"] == "p-min:0.6,3")
    seconds = steps = committed = 0.0
    for prompt in range(len(trace.prompts)):
        row, end = int(trace.offsets[prompt]), int(trace.offsets[prompt + 1])
        start = row
        while row < end:
            room = min(int(trace.drafted[row]), trace.max_new_tokens - 1 - (row - start))
            length = 0
            while length < min(3, room) and trace.confidence[row, length] >= 0.6:
                length += 1
            drafted_in_vain = length < min(3, int(trace.drafted[row])) and trace.confidence[row, length] < 0.6
            seconds += 1 + 0.2 * (length + drafted_in_vain)
            accepted = min(length, int(trace.accepted[row]))
            steps, committed = steps + 1, committed + min(accepted + 1, end - row)
            row += accepted + 1
    assert outcome["tokens_per_step"] == pytest.approx(committed / steps)
    assert outcome["ratio_to_plain"] == pytest.approx(trace.positions / seconds)


def test_a_rule_is_advised_only_where_it_is_clearly_faster(trace: Trace) -> None:
    design = Design("all", trace, None)
    costs = engine_costs(0.2).curve()
    _, fixed = advise_settings(design, costs, [PLAIN, *FIXED])
    rule = f"hf-confidence:threshold=0.01,tokens={fixed.setting[-1]}"
    _, never = advise_settings(design, costs, [PLAIN, *FIXED, rule])
    assert never.setting == fixed.setting


def test_best_lengths_by_batch(trace: Trace) -> None:
    costs = engine_costs(0.05, verify=0.04, batches=(1, 4, 16, 64))
    lengths = {batch: best_length(Design("all", trace, None), costs.curve(batch)) for batch in costs.batches}
    assert lengths[1] >= lengths[4] >= lengths[16] >= lengths[64] == 0
    assert lengths[1] > 0


def test_a_length_that_is_level_with_plain_decoding_is_not_advised(trace: Trace) -> None:
    for a_token, best, said in ((0.2, 2, 2), (0.5, 1, 0), (0.8, 0, 0)):
        design, costs = Design("all", trace, None), engine_costs(a_token).curve()
        assert (best_length(design, costs), advised_length(design, costs)) == (best, said)
        _, verdict = advise_settings(design, costs, [PLAIN, *FIXED])
        assert verdict.setting == (f"fixed:{said}" if said else PLAIN)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_flags_name_the_setting() -> None:
    deployment = Deployment("big", "small", gamma_max=8, costs="costs.json")
    vllm = shlex.split(engine_of("vllm").flags("fixed:3", deployment))
    config = json.loads(option(vllm, "--speculative-config"))
    assert config == {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}
    measured = Deployment("big", "small", gamma_max=8, proposer=True)
    proposed = shlex.split(engine_of("vllm").flags("fixed:3", measured))
    assert json.loads(option(proposed, "--speculative-config"))["num_speculative_tokens"] == 3
    assert json.loads(option(proposed, "--additional-config"))["draftgauge"]["policy"] == "fixed:3"
    ours = shlex.split(engine_of("vllm").flags("hf-confidence:threshold=0.5", deployment))
    assert json.loads(option(ours, "--speculative-config"))["method"] == "custom_class"
    own = {"drafter": "small", "policy": "hf-confidence:threshold=0.5", "costs": "costs.json"}
    assert json.loads(option(ours, "--additional-config"))["draftgauge"] == own
    looked_up = shlex.split(engine_of("vllm").flags("fixed:3", Deployment("big", drafter="prompt_lookup")))
    own = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, "num_speculative_tokens": 3}
    assert json.loads(option(looked_up, "--speculative-config")) == own
    assert "--additional-config" not in looked_up
    breadth = "--speculative-ngram-max-bfs-breadth 1"
    for kind, words in (("prompt_lookup", breadth), ("dflash", "DFLASH"), ("dspark", "DSPARK")):
        flags = engine_of("sglang").flags("fixed:3", Deployment("big", "it", drafter=kind))
        assert words in flags
        assert ("--speculative-draft-model-path it" in flags) == (kind != "prompt_lookup")
        assert flags.endswith("--speculative-num-draft-tokens 4")
        assert "--speculative-num-steps" not in flags
    # A draft shorter than the n-gram is dropped there.
    for setting, sizes in (("fixed:3", (2, 3)), ("fixed:1", (1, 1))):
        flags = engine_of("llama-server").flags(setting, Deployment("big", drafter="prompt_lookup"))
        assert flags.endswith("ngram-simple --spec-ngram-simple-size-n {} --spec-ngram-simple-size-m {}".format(*sizes))
    sglang = shlex.split(engine_of("sglang").flags("fixed:3", deployment))
    assert [option(sglang, f"--speculative-num-{name}") for name in ("steps", "draft-tokens")] == ["3", "4"]
    llama = shlex.split(engine_of("llama-server").flags("p-min:0.8,16", deployment))
    found = [option(llama, f"--spec-{name}") for name in ("type", "draft-n-max", "draft-p-min")]
    assert found == ["draft-simple", "16", "0.8"]
    ours = shlex.split(engine_of("draftgauge").flags("stopping", deployment))
    assert [option(ours, f"--{name}") for name in ("target", "drafter", "policy")] == ["big", "small", "stopping"]
    assert option(ours, "--gamma-max") == "8"
    assert "policy='stopping', gamma_max=8)" in engine_of("transformers").flags("stopping", deployment)
    assert "gamma" not in engine_of("draftgauge").flags("fixed:3", deployment)
    assert "gamma" not in engine_of("draftgauge").flags("stopping", replace(deployment, gamma_max=16))
    assert "--gamma-max 20" in engine_of("draftgauge").flags("fixed:20", replace(deployment, gamma_max=24))
    lookup = Deployment("big", drafter="prompt_lookup")
    assert option(shlex.split(engine_of("draftgauge").flags("fixed:3", lookup)), "--drafter") == "prompt_lookup"
    assert "speculative('prompt_lookup'" in engine_of("transformers").flags("fixed:3", lookup)
    trained = Deployment("big", "runs/hidden", drafter="reuse")
    assert option(shlex.split(engine_of("draftgauge").flags("fixed:3", trained)), "--drafter") == "runs/hidden"
    assert "speculative('runs/hidden'" in engine_of("transformers").flags("fixed:3", trained)
    files = Deployment("big.gguf", "small.gguf")
    gguf = shlex.split(engine_of("gguf").flags("fixed:3", files))
    assert (option(gguf, "--target"), option(gguf, "--drafter")) == ("big.gguf", "small.gguf")
    assert option(shlex.split(engine_of("gguf").flags("fixed:3", deployment)), "--target") == "TARGET.gguf"
    assert "--tokenizer" not in gguf
    llama = shlex.split(engine_of("llama-server").flags("fixed:3", files))
    assert [option(llama, f"--{name}") for name in ("model", "spec-draft-model")] == ["big.gguf", "small.gguf"]
    of_bf16 = replace(deployment, options=("--compression", "bf16", "--chat"))
    assert shlex.split(engine_of("gguf").flags("plain", of_bf16))[-3:] == ["--chat", "--policy", "plain"]
    assert "--compression bf16" in engine_of("draftgauge").flags("plain", of_bf16)
    assert "--compression" not in engine_of("gguf").flags("plain", of_bf16)
    named = Deployment("big.gguf", "small.gguf", tokenizer="folder")
    for setting in (PLAIN, "fixed:3"):
        for name, words in (("gguf", "--tokenizer"), ("vllm", "--tokenizer"), ("sglang", "--tokenizer-path")):
            assert option(shlex.split(engine_of(name).flags(setting, named)), words) == "folder"
    for name, engine in ENGINES.items():
        plain = engine.flags(PLAIN, deployment)
        assert "spec" not in plain, name
        assert "small" not in plain, name


def test_the_docs_name_what_engines_run_as_their_table_does() -> None:
    pages = [*Path("docs").glob("*.md"), Path("README.md")]
    served = {name: engine for name, engine in ENGINES.items() if not engine.loop}
    lines = [line.strip("| ").split(" | ") for line in Path("docs/serving.md").read_text().splitlines()]
    at = next(number for number, cells in enumerate(lines) if cells[0] == "drafter")
    engines, rows = lines[at][1:], lines[at + 2 :]
    rows = rows[: next(number for number, cells in enumerate(rows) if len(cells) < 2)]
    assert engines == [f"{name} ({engine.version})" for name, engine in served.items()]
    for column, (name, engine) in enumerate(served.items(), start=1):
        assert {cells[0]: cells[column] for cells in rows if cells[column] != "none"} == engine.drafters, name
        assert set(engine.drafters.values()) <= set(engine.runs), name
        assert engine.source, name
    named = {name for engine in served.values() for name in engine.runs}
    for page in pages:
        used = re.findall(r'(?:--spec-type |"method": "|--speculative-algorithm )([\w-]+)', page.read_text())
        assert set(used) <= named, page


def test_drafters_of_a_target_s_own_and_those_that_fill_masks() -> None:
    mtp, pard = Deployment("big", "big", drafter="mtp"), Deployment("big", "masks", drafter="pard")
    config = json.loads(option(shlex.split(engine_of("vllm").flags("fixed:2", mtp)), "--speculative-config"))
    assert config == {"method": "mtp", "num_speculative_tokens": 2}
    sglang = shlex.split(engine_of("sglang").flags("fixed:2", mtp))
    assert option(sglang, "--speculative-algorithm") == "NEXTN"
    assert "--speculative-draft-model-path" not in sglang
    llama = shlex.split(engine_of("llama-server").flags("fixed:2", mtp))
    assert (option(llama, "--spec-type"), option(llama, "--spec-draft-n-max")) == ("draft-mtp", "2")
    assert "--spec-draft-model" not in llama
    config = json.loads(option(shlex.split(engine_of("vllm").flags("fixed:6", pard)), "--speculative-config"))
    assert config == {"method": "draft_model", "model": "masks", "parallel_drafting": True, "num_speculative_tokens": 6}


def test_throughput_is_said_either_side_of_a_change_of_length(trace: Trace) -> None:
    design, costs = Design("all", trace, None), engine_costs(0.05, 0.02, batches=(1, 4, 32))
    curves = {batch: costs.curve(batch) for batch in costs.batches}
    lengths = {batch: best_length(design, curve) for batch, curve in curves.items()}
    said = thresholds(design, curves, lengths)
    assert said is not None
    assert lengths[1] > lengths[32]
    run = replay_lengths(trace, np.full(trace.positions, lengths[4]), curves[4])
    rate = 4 * run.committed.sum() / run.seconds.sum()
    assert f"{rate:.0f} with {lengths[4]} and" in said
    assert "at 32 requests" in said
    assert thresholds(design, curves, dict.fromkeys(curves, 2)) is None


def test_settings_as_files() -> None:
    deployment = Deployment("big", "small")
    vllm = settings_document(engine_of("vllm"), "fixed:4", {1: 4, 4: 4, 8: 2, 32: 0}, deployment)
    assert vllm["num_speculative_tokens_per_batch_size"] == [[1, 7, 4], [8, 31, 2], [32, 32, 0]]
    assert settings_document(engine_of("vllm"), PLAIN, {1: 0}, deployment) == {}
    rising = settings_document(engine_of("vllm"), PLAIN, {1: 0, 8: 3}, deployment)  # vLLM cuts ranges to the longest
    assert rising["num_speculative_tokens"] == 3
    assert rising["num_speculative_tokens_per_batch_size"] == [[1, 7, 0], [8, 8, 3]]
    by_batch = "num_speculative_tokens_per_batch_size"
    assert by_batch not in settings_document(engine_of("vllm"), "svip", {1: 4, 8: 2}, deployment)
    steps = settings_document(engine_of("sglang"), "fixed:4", {1: 4, 8: 2, 32: 0}, deployment)
    assert steps == {"candidate_steps": [2, 4]}
    measured = settings_document(engine_of("vllm"), "fixed:4", {1: 4, 8: 2}, Deployment("big", "small", proposer=True))
    assert measured["method"] == "custom_class"
    llama = settings_document(engine_of("llama-server"), "p-min:0.8,16", {1: 4}, deployment)
    assert llama == {"spec-type": "draft-simple", "spec-draft-n-max": 16, "spec-draft-p-min": 0.8}


def test_looked_up_tokens_count_as_proposed(trace: Trace) -> None:
    costs, setting = engine_costs(0.1).curve(), "lookup:least=1"
    run = replay(trace, make_policy(setting, GAMMA_MAX, costs), costs)
    assert run.appended.sum() > 0
    (lookup,), _ = advise_settings(Design("all", trace, None), costs, [setting])
    assert lookup["acceptance_rate"] == pytest.approx(run.accepted.sum() / run.appended.sum())


STEPS = {1: [0.012, 0.013, 0.014], 4: [0.016], 8: [0.030]}
WHOLE = [0.010, 0.013, 0.014, 0.015, 0.016, 0.0195, 0.023, 0.0265, 0.030]


@pytest.mark.parametrize("draft", [(), (1e-9,), (0.0005,), (0.002,), (0.003,), (0.1,)])
def test_the_parts_add_up_to_the_step(draft: tuple[float, ...]) -> None:
    costs = costs_of_steps("llama-server", [0.010], STEPS, draft)
    drafting, verify = np.array(costs.draft[0]), np.array(costs.verify[0])
    assert (drafting + verify)[: len(WHOLE)] == pytest.approx(WHOLE)
    assert (np.diff(verify) >= 0).all()
    assert (np.diff(drafting) >= 0).all()
    assert drafting[0] == 0 < drafting[1]
    assert costs.plain == (0.010,)


def test_a_draft_served_alone_says_what_is_drafting_at_most_what_a_step_adds() -> None:
    costs = costs_of_steps("llama-server", [0.010], STEPS, [0.0005])
    assert costs.draft[0] == pytest.approx([0.0005 * length for length in range(LONGEST + 1)])
    slow = costs_of_steps("llama-server", [0.010], {4: [0.014]}, [0.003])
    assert slow.draft[0][:5] == pytest.approx([0, 0.001, 0.002, 0.003, 0.004])
    assert slow.verify[0] == pytest.approx([0.010] * (LONGEST + 1))
    level = costs_of_steps("llama-server", [0.010], {2: [0.020], 4: [0.030], 6: [0.030]}, [0.001])
    assert level.verify[0][2:7:2] == pytest.approx([0.018, 0.024, 0.024])  # whatever the line beyond 6 tokens says
    equal = costs_of_steps("llama-server", [0.010], {4: [0.009]})
    assert all(seconds > 0 for seconds in equal.draft[0][1:])


TABLE = {
    "bias_seconds": 0.01,
    "bs_probes": [1, 4],
    "alpha_seconds": [0.0, 0.003],
    "m_probes": [1, 8, 16],
    "theta_seconds": [0.0, 0.0014, 0.006],
}
RATES = {"sample_batch_tokens": [1, 4, 10], "sample_steps_per_sec": [100.0, 80.0, 40.0], "max_batch_tokens": 16}


def costs_of(path: Path, table: object, served: float) -> EngineCosts:
    path.write_text(json.dumps(table))
    out, shape = path.with_name("costs.json"), ("--batches=1,2,4", "--lengths=1,3")
    succeeds("costs", "-e", "sglang", "--dspark-table", path, "--served", served, *shape, "--out", out)
    made = load_engine_costs(out, "sglang")
    assert made is not None
    return made


def test_a_table_and_a_served_step_give_plain_verification_and_drafting(tmp_path: Path) -> None:
    costs = costs_of(tmp_path / "table.json", TABLE, served=0.008)
    assert costs.draft == ((0.0, 0.002, 0.002, 0.002),) * 3  # a block at once
    assert costs.plain == pytest.approx((0.008, 0.008 + 0.001 + 0.0002, 0.008 + 0.003 + 0.0006))
    # two requests and six tokens stand between probes
    assert costs.verify[1][2] + costs.draft[1][2] == pytest.approx(0.01 + 0.001 + 0.001)
    older = costs_of(tmp_path / "older.json", RATES, served=0.008)
    steps = {(b, k): older.verify[i][k] + older.draft[i][1] for (i, b), k in product(enumerate((1, 2, 4)), (0, 1, 3))}
    assert steps == pytest.approx(
        {(1, 0): 0.01, (1, 1): 0.01, (1, 3): 0.0125}
        | {(2, 0): 0.01, (2, 1): 0.0125, (2, 3): 0.0125}
        | {(4, 0): 0.0125, (4, 1): 0.0125, (4, 3): 0.025}
    )  # the sample below


def test_costs_written_as_a_table_give_themselves_back(tmp_path: Path) -> None:
    costs, out = costs_of(tmp_path / "table.json", TABLE, served=0.008), tmp_path / "written.json"
    said = succeeds("costs", "-e", "sglang", "--from-costs", tmp_path / "costs.json", "--out", out).stdout
    assert "off by 0.0% at most" in said
    again = costs_of(out, json.loads(out.read_text()), served=0.008)
    assert again.plain == pytest.approx(costs.plain)
    assert [s for row in again.verify for s in row] == pytest.approx([s for row in costs.verify for s in row])


@pytest.mark.parametrize(
    ("table", "served", "message"),
    [
        (TABLE, 0.02, "served 0.02 s"),
        (TABLE | {"m_probes": [1, 1, 2]}, 0.008, "probes must increase"),
        (TABLE | {"theta_seconds": [0.0]}, 0.008, "is no table of DSpark steps"),
        (TABLE | {"more": 1}, 0.008, "unknown key 'more'"),
        (RATES | {"sample_steps_per_sec": [0.0, 1.0, 1.0]}, 0.008, "is no table of DSpark steps"),
        ([], 0.008, "is no table of DSpark steps"),
        (TABLE, 0.008, "ends at 4 requests and 16 tokens"),  # beyond it steps would look free
    ],
)
def test_other_files_are_refused(tmp_path: Path, table: object, served: float, message: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    asked = ("costs", "-e", "sglang", "--dspark-table", path, "--out")
    shape = () if message.startswith("ends at") else ("--batches=1,4", "--lengths=3")
    assert message in refusal(*asked, tmp_path / "costs.json", "--served", served, *shape)
    assert "--served" in refusal(*asked, tmp_path / "costs.json")
    assert "a new --out" in refusal(*asked, path, "--served", "0.008")  # which would replace the table
    assert "--engine sglang" in refusal(*asked, tmp_path / "costs.json", "--served", 1, "--cases", tmp_path / "x.json")
    assert "--engine sglang" in refusal("costs", "--dspark-table", path, "--served", 1, "--out", tmp_path / "c.json")
