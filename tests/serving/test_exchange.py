"""Acceptance in the forms of others: what engines and planners take, and results of aiperf and guidellm."""

from __future__ import annotations

import json
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgauge as dg
from command_line import refusal, succeeds
from draftgauge.core.prompts import read_prompts
from draftgauge.judging.replay import replay_lengths
from draftgauge.pair.prompts import prompt_file
from draftgauge.serving.counters import read_counts
from draftgauge.serving.exchange import acceptance_document, acceptance_of
from draftgauge.serving.requests_trace import import_requests
from draftgauge.traces.run import Run
from draftgauge.traces.trace import PromptInfo, make_record
from draftgauge.traces.writer import make_trace
from engine_server import vllm_metrics
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
        (
            json.dumps({"metadata": {}, "metrics": {}, "spec_decode_acceptance": {"histogram": []}}),
            "no record of aiperf",
        ),
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
