"""Acceptance, traces and costs in the forms of others: aiperf, guidellm, vLLM's metrics and its bench."""

from __future__ import annotations

import json
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import draftgauge as dg
from command_line import refusal, succeeds
from draftgauge.core.errors import TraceError
from draftgauge.core.prompts import read_prompts
from draftgauge.judging.replay import replay_fixed_all, replay_lengths
from draftgauge.pair.prompts import prompt_file
from draftgauge.serving.counters import read_counts
from draftgauge.serving.exchange import acceptance_document, acceptance_of
from draftgauge.serving.requests_trace import RequestSteps, import_requests, position_matches, trace_of_requests
from draftgauge.traces.engine_costs import read_costs
from draftgauge.traces.run import Run
from draftgauge.traces.trace import PromptInfo, Trace, make_record
from draftgauge.traces.writer import make_trace
from engine_server import vllm_answer, vllm_metrics
from written_runs import write_run

STEPS = ((3, 3), (3, 1), (3, 0), (3, 3), (2, 2))  # drafted and accepted, of 14 tokens


def counted(**more: Any) -> dict[str, Any]:
    drafted, accepted = zip(*STEPS, strict=True)
    counts = {"num_spec_steps": len(STEPS), "num_draft_tokens": sum(drafted), "num_spec_tokens": 3}
    histogram = [accepted.count(length) for length in range(4)]
    counts |= {"num_accepted_draft_tokens": sum(accepted), "acceptance_histogram": histogram}
    return counts | {"per_step_drafted": list(drafted), "per_step_accepted": list(accepted)} | more


def aiperf() -> str:
    sparse = {str(length): count for length, count in enumerate(counted()["acceptance_histogram"]) if count}
    record = counted(engine="vllm", acceptance_histogram=sparse, completion_tokens=15)
    metrics = {"input_sequence_length": {"value": 700, "unit": "tokens"}}
    other = {"metadata": {"session_num": 1}, "metrics": {}}  # that drafted nothing
    drafted = {"metadata": {"session_num": 0}, "metrics": metrics, "spec_decode_acceptance": record}
    return "".join(json.dumps(each) + "\n" for each in (drafted, other, drafted))


def guidellm() -> str:
    done = {"response_metrics": {"speculative_decoding": counted()}, "prompt_tokens": 700, "output_tokens": 15}
    requests = {"successful": [done, done | {"response_metrics": None}, done], "errored": [{"response_metrics": None}]}
    return json.dumps({"metadata": {}, "config": {}, "benchmarks": [{"requests": requests}]}, indent=2)


@pytest.mark.parametrize("text", [aiperf(), guidellm(), json.dumps(json.loads(guidellm()))])
def test_results_of_load_generators_are_read(text: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    counts = read_counts("vllm", str(file))
    assert (counts.drafts, counts.drafted, counts.accepted) == (10, 28, 18)
    assert counts.by_position == (8, 6, 4)
    imported = import_requests(file)
    assert [(info.prompt_tokens, info.output_tokens) for info in imported.trace.prompts] == [(701, 14)] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"benchmarks": [{"run_stats": {}}]}), "is no report of guidellm 0.8"),
        (json.dumps({"benchmarks": [{"requests": {"successful": [{"output": "x"}]}}]}), "holds no request with what"),
        (json.dumps({"metadata": {}, "metrics": {}, "spec_decode_acceptance": {}}), "no record of aiperf"),
        (json.dumps({"metadata": {}, "metrics": {}}), "holds no answers"),
        (guidellm().replace('"response_metrics": null', '"response_metrics": 5'), "is no report of guidellm 0.8"),
        (guidellm().replace('"prompt_tokens": 700', '"prompt_tokens": -700'), "-700 in place of a count"),
        (aiperf().replace('"value": 700', '"value": -700'), "-700 in place of a count"),
        (aiperf().replace('"num_spec_tokens": 3', '"num_spec_tokens": 1000000000000'), "more than 1024"),
    ],
)
def test_results_of_other_versions_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (file := tmp_path / "results.json").write_text(text)
    (costs := tmp_path / "costs.json").write_text("{}")
    assert message in refusal("advise", "-e", "vllm", "--requests", file, "--costs", costs)


def test_exported_acceptance_is_what_engines_and_planners_take(tmp_path: Path) -> None:
    out = tmp_path / "acceptance.json"
    run = write_run(tmp_path / "run", 24, length=200)
    succeeds("advise", run, "--export-acceptance", out, "--split", "all", "--policy", "fixed:2")
    document, trace = json.loads(out.read_text()), Run(run).trace
    length = document["length"]
    rates = acceptance_of(trace, length)
    assert set(document["categories"]) == set(rates)
    assert len(rates) > 2
    # As an engine at this length counts it: the steps of the replay, but for drafts past the outputs' ends.
    steps = replay_lengths(trace, np.full(trace.positions, length)).tokens_per_step
    assert document["categories"]["all"]["accepted_per_step"][-1] == pytest.approx(steps - 1, rel=0.03)
    for name, of in document["categories"].items():
        assert of["conditional"] == pytest.approx(rates[name])
        assert of["unconditional"] == pytest.approx(list(accumulate(rates[name], mul)))
        assert of["accepted_per_step"][1] == pytest.approx(sum(of["unconditional"][:2]))
        recipes = of["recipes"]
        config = json.loads("{" + recipes["vllm"] + "}")
        synthetic = config["synthetic_acceptance_rates"]
        assert synthetic == sorted(synthetic, reverse=True)
        assert recipes["llama-server"] == f"--spec-synth-rates {','.join(map(str, synthetic))}"
        nextn, accepted = recipes["aiconfigurator"].split()[1::2]
        assert int(nextn) == len(synthetic) > 0
        assert float(accepted) == pytest.approx(of["accepted_per_step"][len(synthetic) - 1], abs=1e-4)


def test_a_step_without_a_draft_accepts_nothing() -> None:
    """A drafter that proposes at some steps alone, as lookup does, commits no more in a planner's run."""
    drafts = [[at + 1, 0] if at % 3 == 2 else [] for at in range(60)]  # one token right, where there is any
    info = PromptInfo(0, "0", "chat", "", 100, 60, "stop")
    trace = make_trace([make_record(info, list(range(1, 61)), drafts, 2)], 60)
    rates = acceptance_of(trace, 2)["all"]
    steps = replay_lengths(trace, np.full(trace.positions, 2)).tokens_per_step
    assert sum(accumulate(rates, mul)) == pytest.approx(steps - 1, abs=0.03)
    assert rates[0] < 0.6


def test_counters_are_exported_too(tmp_path: Path) -> None:
    (page := tmp_path / "metrics.txt").write_text(vllm_metrics(100, 300, 160, (80, 60, 20)))
    dg.advise(engine="vllm", url=str(page), export_acceptance=tmp_path / "acceptance.json")
    (of,) = json.loads((tmp_path / "acceptance.json").read_text())["categories"].values()
    assert of["unconditional"] == pytest.approx([0.8, 0.6, 0.2])
    assert of["conditional"] == pytest.approx([0.8, 0.75, 1 / 3])
    assert of["recipes"]["aiconfigurator"] == "--nextn 3 --nextn-accepted 1.6000"
    assert acceptance_document("x", {"all": [0.5, 0.0, 0.9]}, 2)["categories"]["all"]["recipes"]["vllm"].endswith(
        '"synthetic_acceptance_rates": [0.5,0.0]'
    )


def test_prompts_of_tools_and_agents_are_bundled() -> None:
    prompts = read_prompts(prompt_file("reference:tools"))
    assert {prompt.task for prompt in prompts} == {"tool-call", "tool-result", "agent"}
    assert any("tools" in prompt.template_args for prompt in prompts)
    assert any("tool_calls" in message.more for prompt in prompts for message in prompt.messages)
    with pytest.raises(dg.DraftgaugeError, match="choose one of train, validation, test, tools"):
        prompt_file("reference:other")


LENGTH, WIDTH = 40, 4


def served(matches: NDArray[np.bool_], width: int = WIDTH) -> RequestSteps:
    """What a server that drafts ``width`` tokens reports of a request; ``matches[p]`` is of the token after the first.

    The first token comes from the prompt's pass, and the last step may run past the end, where it drafts on.
    """
    drafted, accepted, at = [], [], 0
    while at < len(matches):
        ahead = matches[at : at + width]
        right = int(ahead.argmin()) if not ahead.all() else len(ahead)
        drafted.append(width)
        accepted.append(right)
        at += right + 1
    return RequestSteps(7, len(matches) + 1, tuple(drafted), tuple(accepted), width)


def known_trace(matches: list[NDArray[np.bool_]], width: int = WIDTH) -> Trace:
    """The trace of a drafter that depends on the text alone."""
    records = []
    for index, right in enumerate(matches):
        token = list(range(1, len(right) + 1))
        drafts = []
        for row in range(len(right)):
            ahead = right[row : row + width]
            count = int(ahead.argmin()) if not ahead.all() else len(ahead)
            drafts.append([*token[row : row + count], *[0] * (width - count)])
        info = PromptInfo(index, str(index), "requests", "", 8, len(right), "stop")
        records.append(make_record(info, token, drafts, width))
    return make_trace(records, max(map(len, matches)))


def no_whole_draft(rng: np.random.Generator) -> NDArray[np.bool_]:
    """Runs of matches that are shorter than a draft, so that nothing has to be drawn."""
    pieces = [[*[True] * int(rng.integers(0, WIDTH)), False] for _ in range(LENGTH)]
    return np.array([match for piece in pieces for match in piece][:LENGTH])


def test_where_no_draft_is_accepted_whole_the_trace_is_exact() -> None:
    rng = np.random.default_rng(0)
    matches = [no_whole_draft(rng) for _ in range(12)]
    imported = trace_of_requests([served(right) for right in matches])
    assert imported.left_out == 0
    ends = sum(bool(right[-1]) for right in matches)  # drafts that run past the end
    assert imported.drawn <= ends / (12 * LENGTH)
    exact = known_trace(matches)
    for ours, theirs in zip(replay_fixed_all(imported.trace), replay_fixed_all(exact), strict=True):
        assert (ours.steps == theirs.steps).all()
        assert (ours.accepted == theirs.accepted).all()


def test_what_is_drawn_leaves_the_tokens_of_a_step_unbiased() -> None:
    rng = np.random.default_rng(1)
    matches = [rng.random(200) < 0.7 for _ in range(150)]
    imported = trace_of_requests([served(right) for right in matches])
    assert 0.02 < imported.drawn < 0.15
    exact = replay_fixed_all(known_trace(matches))
    for ours, theirs in zip(replay_fixed_all(imported.trace), exact, strict=True):
        assert ours.tokens_per_step == pytest.approx(theirs.tokens_per_step, rel=0.01)


def test_steps_that_do_not_account_for_the_tokens() -> None:
    assert position_matches(RequestSteps(5, 20, (4, 4), (1, 0), 4)) is None
    assert position_matches(RequestSteps(5, 1, (), (), 4)) is None
    whole = served(np.zeros(10, np.bool_))
    short = RequestSteps(5, 20, (4, 4), (1, 0), 4)
    assert trace_of_requests([whole, short]).left_out == 1
    with pytest.raises(TraceError, match="drafted nothing"):
        trace_of_requests([short])


def answer(**metrics: object) -> dict[str, Any]:
    steps = {"num_spec_steps": 2, "num_accepted_draft_tokens": 2, "num_draft_tokens": 8, "num_spec_tokens": 4}
    steps |= {"per_step_accepted": [2, 0], "per_step_drafted": [4, 4]}
    return vllm_answer(tokens=range(5), **steps | metrics)


def test_a_file_of_answers(tmp_path: Path) -> None:
    """Texts may hold other line separators; an answer without a step is left out."""
    path = tmp_path / "answers.jsonl"
    separated = answer() | {"task": "chat", "choices": [{"text": "a\u2028b"}]}
    short = answer(num_spec_steps=0)
    speculative = short["metrics"]["speculative_decoding"]
    del speculative["per_step_accepted"], speculative["per_step_drafted"]
    given = [json.dumps(each, ensure_ascii=False) for each in (separated, separated, short)]
    path.write_text("\n".join(given) + "\n", encoding="utf-8")
    imported = import_requests(path)
    assert (len(imported.trace.prompts), imported.left_out) == (2, 1)
    assert (imported.trace.prompts[0].task, imported.trace.prompts[0].prompt_tokens) == ("chat", 12)
    assert imported.trace.accepted[:4].tolist() == [2, 1, 0, 0]
    path.write_bytes(given[0].replace("\u2028", "\xe9").encode("latin-1"))
    with pytest.raises(TraceError, match="not UTF-8"):
        import_requests(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ("[1]", "line 1 is no answer of vLLM"),
        (json.dumps(answer(num_spec_tokens=10**9)), "more than 1024"),
        ('{"usage": {}, "metrics": null}', "--per-request-spec-decode-metrics detailed"),
        (json.dumps(answer(per_step_accepted=[5, 0])), "accepts more tokens than it drafts"),
        (json.dumps(answer(per_step_accepted=[1])), "accepts more tokens than it drafts"),
        ("", "holds no answers"),
    ],
)
def test_files_that_are_none(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match=message):
        import_requests(path)
    with pytest.raises(TraceError, match="there is no file of answers"):
        import_requests(tmp_path / "missing.jsonl")


def test_servers_of_different_lengths_are_not_mixed() -> None:
    matches = np.zeros(10, np.bool_)
    with pytest.raises(TraceError, match=r"up to \[2, 4\] tokens"):
        trace_of_requests([served(matches, 2), served(matches, 4)])


BATCHES, LENGTHS, CONTEXTS = (1, 8), (2, 4), (256, 4096)


def seconds(batch: int, length: int, context: int, drafter: bool) -> float:
    verify = 0.01 + 0.0002 * batch * (length + 1) + 1e-7 * batch * context
    return verify + drafter * 4 * (0.001 + 2e-9 * batch * context)  # which drafts 4 tokens whatever is verified


def results(document: dict[str, Any], drafter: bool) -> list[dict[str, Any]]:
    """As 0.33 writes them."""
    written = []
    for case in document["cases"]:
        (shape,) = case["requests"]
        shape = dict(shape)
        batch, length = shape.pop("count"), shape["num_draft_tokens"]
        taken = seconds(batch, length, shape["kv_len"] - shape["query_len"], drafter) * 1e6
        requests = [shape | {"chunked": False}] * batch
        ranks = [{"num_tokens": batch * (length + 1), "latency_us": {"median": taken}}]
        written.append({"case": case["name"], "requests": requests, "median_us": taken, "ranks": ranks})
    return written


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    listed = {name: tmp_path / f"{name}.json" for name in ("cases", "target", "drafter", "costs")}
    shape = [f"--{name}={','.join(map(str, of))}" for name, of in (("lengths", LENGTHS), ("batches", BATCHES))]
    said = succeeds("costs", "--cases", listed["cases"], *shape, f"--contexts={CONTEXTS[0]},{CONTEXTS[1]}").stdout
    assert "wrote 12 cases" in said
    assert said.count("vllm bench forward") == 2
    assert said.count("--exclude-drafter") == 1
    assert "--max-model-len 4106" in said.replace("\n", " ")
    document = json.loads(listed["cases"].read_text())
    assert document["cases"][3]["requests"] == [{"query_len": 3, "kv_len": 4099, "num_draft_tokens": 2, "count": 1}]
    for name in ("target", "drafter"):
        listed[name].write_text(json.dumps(results(document, name == "drafter")))
    return listed


def made(files: dict[str, Path], *more: object) -> str:
    both = ("--target-alone", files["target"], "--with-drafter", files["drafter"], "--out", files["costs"])
    return " ".join(succeeds("costs", *both, *more).stdout.split())


def test_two_results_give_verification_drafting_and_the_law(files: dict[str, Path]) -> None:
    said = made(files)
    assert "1e-07 s a step and request" in said
    assert "off by 0.0% at most" in said
    curves = read_costs(files["costs"], "vllm")
    for batch, curve in curves.items():
        for context in (256, 2000, 30_000):  # where nothing was measured too
            expected = seconds(batch, 3, context, False)
            assert curve.verify_seconds(4, context) == pytest.approx(expected, rel=1e-6)
            assert curve.draft_seconds(2, context) == pytest.approx(2 * (0.001 + 2e-9 * batch * context), rel=1e-6)
            assert curve.plain[0] == pytest.approx(seconds(batch, 0, 256, False))


def test_a_served_step_calibrates_every_step(files: dict[str, Path]) -> None:
    forward = seconds(1, 0, 256, False)
    said = made(files, "--served", forward + 0.002)
    assert f"takes 0.002 s ({0.002 / (forward + 0.002):.0%}) beyond its forward pass" in said
    assert read_costs(files["costs"], "vllm")[8].verify_seconds(5, 256) == pytest.approx(
        seconds(8, 4, 256, False) + 0.002
    )


def test_results_that_do_not_fit_are_refused(files: dict[str, Path]) -> None:
    good = json.loads(files["drafter"].read_text())
    both = ("--target-alone", files["target"], "--with-drafter", files["drafter"], "--out", files["costs"])
    for wrong, message in (
        (good[:-1], "are of other cases"),
        ({"results": good}, "is no result of vllm bench forward"),
        ([{"case": "x", "median_us": 1.0}], "is not one of `draftgauge costs --cases` (it lacks 'requests')"),
        ([{"requests": [None]}], "(it has another layout)"),
        ([good[0] | {"requests": []}], "requests of 0 shapes"),
        ([good[0] | {"requests": [{"query_len": 9, "kv_len": 9, "num_draft_tokens": 0}]}], "a query of 9 tokens"),
        ([good[0] | {"median_us": -1}], "in -1e-06 s"),
        ([good[0] | {"median_us": 0.01}], "in 1e-08 s"),  # seconds in place of microseconds
        ([good[0] | {"requests": [good[0]["requests"][0] | {"kv_len": 1e300}]}], "1e+300 in place of a count"),
        ([good[0] | {"requests": [good[0]["requests"][0] | {"kv_len": 0}]}], "-1 in place of a count"),
    ):
        files["drafter"].write_text(json.dumps(wrong))
        assert message in refusal("costs", *both)
    files["drafter"].write_text(json.dumps(good))
    assert "is shorter than its forward pass" in refusal("costs", *both, "--served", "0.001")
    files["target"].write_text(json.dumps(good[2:]))
    files["drafter"].write_text(json.dumps(good[2:]))
    assert "lacks cases" in refusal("costs", *both)
    assert "name --start to measure a server, --cases to write" in refusal("costs")
    assert "--contexts names a number twice" in refusal("costs", "--cases", files["cases"], "--contexts=1,1")
    assert "--batches must name" in refusal("costs", "--cases", files["cases"], "--batches=")
    assert "measure llama-server with --start" in refusal("costs", "-e", "llama-server")
