"""``draftgauge advise``: the same answer from a run, from answers and from a server; bad input is one line."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from command_line import draftgauge, refusal, rows_of, succeeds
from draftgauge.api.advise import advise
from draftgauge.api.replay import replay
from draftgauge.api.report import write_report
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import Rendering
from draftgauge.judging.fitting import FITTED, fit_stopping
from draftgauge.judging.splits import split_trace
from draftgauge.pair import deployed
from draftgauge.policies.fitted import load_fitted, save_fitted
from draftgauge.policies.spec import make_policy
from draftgauge.serving import provisional
from draftgauge.serving.engines import ENGINES, engine_of
from draftgauge.traces.costs import CostCurve, Measurement
from draftgauge.traces.engine_costs import EngineCosts
from draftgauge.traces.run import COSTS_NAME, Manifest, Run
from engine_server import llama_metrics, serving, sglang_metrics, vllm_answer, vllm_metrics
from linear_costs import curve
from reuse_nets import saved_drafter
from synthetic import overconfident, repeating_trace
from tiny import tiny_model
from written_runs import GAMMA_MAX, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", 36)


def costs_of(
    path: Path, engine: str, draft: float, batches: tuple[int, ...] = (1,), longest: int = GAMMA_MAX, **changes: Any
) -> Path:
    columns = range(longest + 1)
    costs = EngineCosts(
        engine,
        batches,
        plain=(0.01,) * len(batches),
        verify=tuple(tuple(0.01 + 0.0005 * batch * k for k in columns) for batch in batches),
        draft=tuple(tuple(draft * n for n in columns) for _ in batches),
        **changes,
    )
    costs.save(path)
    return path


def advised(arguments: list[str], out: Path) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """All rows, the advised one, which is empty where none is, and the page."""
    result = succeeds("advise", *arguments, "--json", str(out))
    rows = rows_of(out)
    chosen = [row for row in rows if row["recommended"]]
    assert len(chosen) <= 1
    return rows, chosen[0] if chosen else {}, result.stdout


def test_a_run_prices_the_engines_of_our_loop(run: Path, tmp_path: Path) -> None:
    for engine in ("draftgauge", "transformers"):
        rows, best, shown = advised([str(run), "--engine", engine], tmp_path / "rows.json")
        assert {"engine", "policy", "ratio_to_plain", "ratio_to_plain_low", "recommended"} <= set(rows[0])
        fixed = [f"fixed:{length}" for length in range(1, GAMMA_MAX + 1)]
        assert [row["policy"] for row in rows[: GAMMA_MAX + 1]] == ["plain", *fixed]
        assert best["flags"] in shown
        assert best["verdict"] in shown


def test_rules_judged_on_their_own_prompts_are_warned_of(run: Path, tmp_path: Path) -> None:
    trace, costs = Run(run).read()
    save_fitted(fit_stopping([split_trace(trace, "train")], [costs]), tmp_path / "rule.json")
    _, _, shown = advised([str(run), "--policy", str(tmp_path / "rule.json")], tmp_path / "rows.json")
    assert "was fitted on" not in shown
    with pytest.warns(UserWarning, match="was fitted on 12 of the 12 prompts that it is evaluated on"):
        advise(run, policies=[str(tmp_path / "rule.json")], split="train")
    save_fitted(fit_stopping([trace], [costs]), tmp_path / "rule.json")
    with pytest.warns(UserWarning, match="prompts that it is evaluated on"):
        write_report(run, tmp_path / "report.html", policies=[str(tmp_path / "rule.json")])


def test_one_prompt_settles_nothing_and_has_no_interval(tmp_path: Path) -> None:
    _, best, shown = advised([str(write_run(tmp_path / "one", 1))], tmp_path / "rows.json")
    assert (best["ratio_to_plain_low"], best["ratio_to_plain_high"], best["known"]) == (None, None, False)
    assert "Not known yet: 1 of at least 8 prompts" in shown
    assert "plain decoding, " in shown


def test_one_run_has_one_verdict(run: Path, tmp_path: Path) -> None:
    """``advise``, ``replay`` and the report name the same setting with the same figures, or all say what is missing."""
    doubted, vague = shutil.copytree(run, tmp_path / "run"), Measurement(1.0, (2,) * (GAMMA_MAX + 1), 7.19)
    replace(CostCurve.load(doubted / COSTS_NAME), measured=vague).save(doubted / COSTS_NAME)
    for folder, known in ((run, True), (doubted, False)):
        _, best, _ = advised([str(folder)], tmp_path / "rows.json")
        assert best["known"] == known
        replayed = draftgauge(["replay", str(folder)]).stdout
        assert best["verdict"] in replayed
        assert draftgauge(["report", str(folder), "--out", str(tmp_path / "report.html")]).exit_code == 0
        assert best["verdict"] in unescape((tmp_path / "report.html").read_text())
    assert best["verdict"].startswith("Not known yet: the costs are not to be trusted, a step's seconds are known to")
    assert "within 719% only. To settle it, run `draftgauge profile" in best["verdict"]


def test_a_weak_drafter_is_judged_with_a_rule_fitted_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, costs = overconfident(repeating_trace(3, 32, 90, GAMMA_MAX, vocabulary=12)), curve(0.3)
    trace = replace(trace, prompts=tuple(replace(prompt, split="") for prompt in trace.prompts))
    run = write_run(tmp_path / "run", 32)
    costs.save(run / COSTS_NAME)
    monkeypatch.setattr(Run, "read", lambda *_: (trace, costs))
    rows, best, _ = advised([str(run)], tmp_path / "rows.json")
    speeds = {row["policy"]: row["ratio_to_plain"] for row in rows}
    assert best["policy"] == FITTED
    assert speeds[FITTED] > 1.05 * max(speed for setting, speed in speeds.items() if setting != FITTED)
    replayed = succeeds("replay", str(run)).stdout
    assert best["verdict"] in replayed
    assert f"The rule lookup, without a draft model, reaches {speeds['lookup']:.2f}x." in best["verdict"]
    assert "draftgauge fit RUN --policy two-source --split all --out two-source.json" in replayed
    succeeds("report", run)
    page = unescape((run / "report.html").read_text())
    fit, use = best["flags"].splitlines()
    assert FITTED in page
    assert fit in page
    assert f"policy={FITTED!r}" not in page
    assert use.endswith(f"--policy two-source.json --gamma-max {GAMMA_MAX}")
    monkeypatch.chdir(tmp_path)
    succeeds(*shlex.split(fit)[1:])
    make_policy("two-source.json", GAMMA_MAX, costs)
    _, best, _ = advised([str(run), "--tasks", trace.prompts[0].task], tmp_path / "rows.json")
    assert f"--tasks {trace.prompts[0].task}" in best["flags"]
    for policy, use in (("two-source.json", "--policy two-source.json"), ("lookup", "--drafter prompt_lookup ")):
        named, best, _ = advised([str(run), "--policy", policy, "--split", "all"], tmp_path / "rows.json")
        assert FITTED not in {row["policy"] for row in named}  # beside what is named nothing is fitted
        assert use in best["flags"]


def test_costs_of_shorter_drafts_than_were_recorded_shorten_what_is_advised(run: Path, tmp_path: Path) -> None:
    copied, (trace, costs) = shutil.copytree(run, tmp_path / "run"), Run(run).read()
    save_fitted(fit_stopping([split_trace(trace, "train")], [costs]), copied / "rule.json")
    path = costs_of(tmp_path / "costs.json", "vllm", 0.001, longest=3, drafted_by="draftgauge")
    with pytest.warns(UserWarning, match="rule.json was not fitted for drafts of up to 3, as priced: not tried"):
        rows = advise(copied, engine="vllm", costs=path)
    (best,) = [row for row in rows if row["recommended"]]
    assert best["policy"] == "cumulative-confidence"
    assert '"num_speculative_tokens": 3' in best["flags"]
    assert not any("rule.json" in row["policy"] for row in rows)
    short = replace(load_fitted(copied / "rule.json"), gamma_max=3)
    save_fitted(short, copied / "rule.json")  # of no use for the run's own drafts, and none is asked for
    assert not any("rule.json" in row["policy"] for row in replay(copied))
    assert "rule.json" not in write_report(copied, tmp_path / "report.html").read_text()


def test_costs_of_an_engine_decide(run: Path, tmp_path: Path) -> None:
    cheap = costs_of(tmp_path / "cheap.json", "llama-server", 0.0005)
    expensive = costs_of(tmp_path / "expensive.json", "llama-server", 0.02)
    _, best, shown = advised([str(run), "-e", "llama-server", "--costs", str(cheap)], tmp_path / "rows.json")
    assert best["policy"] != "plain"
    assert "--spec-draft-n-max" in shown
    _, best, shown = advised([str(run), "-e", "llama-server", "--costs", str(expensive)], tmp_path / "rows.json")
    assert best["policy"] == "plain"
    assert "Do not draft" in shown


def test_policies_run_in_vllm_only_where_our_proposer_was_timed(run: Path, tmp_path: Path) -> None:
    for drafted_by, policies in (("engine", False), ("draftgauge", True)):
        costs = costs_of(tmp_path / "costs.json", "vllm", 0.001, drafted_by=drafted_by)
        result = draftgauge(["advise", str(run), "-e", "vllm", "--costs", str(costs), "-p", "svip", "-p", "fixed:2"])
        assert ("svip" in result.stdout) == policies
        assert ("vllm does not run svip with these costs" in " ".join(result.stderr.split())) != policies


def test_a_server_alone_says_what_a_step_may_cost(tmp_path: Path) -> None:
    with serving({"/metrics": (200, llama_metrics(100, 300, 110, (60, 35, 15)))}) as url:
        rows, _, shown = advised(["-e", "llama-server", "--url", url], tmp_path / "rows.json")
    assert [row["pays_below"] for row in rows] == pytest.approx([1, 1.6, 1.95, 2.1])
    assert rows[0]["best_from"] == pytest.approx(rows[1]["best_below"]) == pytest.approx(0.6)
    assert not any(row["ratio_to_plain"] or row["recommended"] for row in rows)
    assert "--costs" in shown


def test_a_server_with_costs_is_advised(tmp_path: Path) -> None:
    costs = costs_of(tmp_path / "costs.json", "vllm", 0.002)
    with serving({"/metrics": (200, vllm_metrics(1000, 3000, 1100, (600, 350, 150)))}) as url:
        rows, best, _ = advised(["-e", "vllm", "--url", url, "--costs", str(costs)], tmp_path / "rows.json")
    steps = [0.01 + 0.0025 * k for k in range(4)]
    expected = [1, *(tokens * 0.01 / step for tokens, step in zip((1.6, 1.95, 2.1), steps[1:], strict=True))]
    assert [row["ratio_to_plain"] for row in rows] == pytest.approx(expected)
    assert [row["tokens_per_second"] for row in rows] == pytest.approx([100 * ratio for ratio in expected])
    assert best["policy"] == f"fixed:{expected.index(max(expected))}"
    assert best["ratio_to_plain_low"] < best["ratio_to_plain"] < best["ratio_to_plain_high"]


def test_a_run_beside_its_server(run: Path, tmp_path: Path) -> None:
    costs = costs_of(tmp_path / "costs.json", "vllm", 0.001)
    with serving({"/metrics": (200, vllm_metrics(100, 200, 90, (60, 30)))}) as url:
        _, best, shown = advised([str(run), "-e", "vllm", "--costs", str(costs), "--url", url], tmp_path / "rows.json")
    assert best["server_tokens_per_step"] == pytest.approx(1.9)
    assert 1 < best["expected_tokens_per_step"] < 3
    assert "The server commits 1.90 tokens a step" in shown


def test_the_tokenizer_of_a_run_is_named(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    shutil.copytree(run, folder)
    manifest = Manifest.load(folder)
    assert manifest.draft is not None
    target = replace(manifest.target, source="big.gguf", engine="gguf")
    draft = replace(manifest.draft, source="small.gguf", engine="gguf")
    for tokenizer in (None, "their folder"):
        replace(manifest, target=target, draft=draft, tokenizer=tokenizer).save(folder)
        _, best, _ = advised([str(folder), "-e", "gguf"], tmp_path / "rows.json")
        words = shlex.split(best["flags"])
        assert words[words.index("--target") + 1] == "big.gguf"
        named = [words[at + 1] for at, word in enumerate(words) if word == "--tokenizer"]
        assert named == [tokenizer] * bool(tokenizer)


def test_how_a_run_was_recorded_is_repeated(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.load(run)
    for chat, options in ((None, ()), (False, ("--raw",))):
        assert deployed.recorded_with(replace(manifest, rendering=Rendering(chat=chat))) == options
    rendering = Rendering({"enable_thinking": False}, "Be brief.", chat=True)
    target = replace(manifest.target, compression="nf4")
    sampled = replace(manifest, target=target, rendering=rendering, temperature=0.7, top_k=5, top_p=0.9)
    words = ("--compression", "nf4", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--chat")
    words += ("--system", "Be brief.", "--chat-template-args", '{"enable_thinking": false}')
    assert deployed.recorded_with(sampled) == words
    assert "--compression" not in deployed.recorded_with(replace(sampled, target=replace(target, compression="awq")))
    fast = replace(manifest, target=replace(manifest.target, engine="gguf-fast"))
    assert deployed.recorded_with(fast) == ("--engine", "gguf-fast")
    fast.save(tmp_path)
    for engine, refused in (("gguf", False), ("draftgauge", False), ("transformers", True)):
        with pytest.raises(DraftgaugeError, match="whose costs are not") if refused else contextlib.nullcontext():
            provisional.refuse_costs(engine_of(engine), Run(tmp_path), run / "costs.json")
    _, best, _ = advised([str(run), "-e", "transformers"], tmp_path / "rows.json")
    assert best["recorded_with"] is None
    monkeypatch.setattr("draftgauge.pair.deployed.recorded_with", lambda _: words)
    _, best, shown = advised([str(run)], tmp_path / "rows.json")
    assert shlex.join(words) in best["flags"]
    assert tuple(shlex.split(best["recorded_with"])) == words
    assert "The run was recorded with" not in shown
    _, best, shown = advised([str(run), "-e", "transformers"], tmp_path / "rows.json")
    assert "The run was recorded with --compression nf4 --temperature 0.7" in shown


def answers_file(path: Path) -> Path:
    steps = {"num_spec_tokens": 4, "num_spec_steps": 6, "per_step_drafted": [4] * 6}
    answer = vllm_answer(tokens=range(18), per_step_accepted=[2, 1, 3, 0, 2, 3], **steps)
    path.write_text("\n".join([json.dumps(answer)] * 12))
    return path


def test_answers_of_vllm_are_advised_on(tmp_path: Path) -> None:
    answers, costs = answers_file(tmp_path / "answers.jsonl"), costs_of(tmp_path / "costs.json", "vllm", 0.001)
    rows, best, _ = advised(["-e", "vllm", "--requests", str(answers), "--costs", str(costs)], tmp_path / "rows.json")
    assert best["drawn"] == 0
    four = next(row for row in rows if row["policy"] == "fixed:4")
    assert four["tokens_per_step"] == pytest.approx(17 / 6)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-server"])
@pytest.mark.parametrize("given", ["requests", "url"])
def test_a_drafter_that_is_not_known_stays_and_only_its_length_changes(engine: str, given: str, tmp_path: Path) -> None:
    """Flags name no method, no model and nothing of draftgauge; lengths by batch reach the settings."""
    costs = costs_of(tmp_path / "costs.json", engine, 0.0005, batches=(1, 64))
    metrics = {"vllm": vllm_metrics, "llama-server": llama_metrics, "sglang": sglang_metrics}[engine]
    with serving({"/metrics": (200, metrics(1000, 4000, 2100, (800, 600, 400, 300)))}) as url:
        words = ["--url", url] if given == "url" else ["--requests", str(answers_file(tmp_path / "answers.jsonl"))]
        words += ["-e", engine, "--costs", str(costs), "--settings", str(tmp_path / "settings.json")]
        _, best, shown = advised(words, tmp_path / "rows.json")
    length = best["best_length"]
    assert length > 0
    assert "How the server drafts is not known here, so it stays as it is; change its length" in shown
    lengths = json.loads(best["by_batch"])
    assert lengths["1"] > lengths["64"]
    ranges = [[1, 63, lengths["1"]], [64, 64, lengths["64"]]]
    steps = sorted({value for value in lengths.values() if value})
    sglang = f"--speculative-num-steps {length} --speculative-eagle-topk 1 --speculative-num-draft-tokens {length + 1}"
    flags, document = {
        "vllm": (
            f'"num_speculative_tokens": {length}',
            {"num_speculative_tokens": length, "num_speculative_tokens_per_batch_size": ranges},
        ),
        "sglang": (sglang, {"candidate_steps": steps}),
        "llama-server": (f"--spec-draft-n-max {length}", {"spec-draft-n-max": length}),
    }[engine]
    assert (best["flags"], json.loads((tmp_path / "settings.json").read_text())) == (flags, document)


def test_a_server_that_had_better_not_speculate_is_told_so_without_flags(tmp_path: Path) -> None:
    costs = costs_of(tmp_path / "costs.json", "vllm", 0.5)
    answers = answers_file(tmp_path / "answers.jsonl")
    _, best, shown = advised(["-e", "vllm", "--requests", str(answers), "--costs", str(costs)], tmp_path / "rows.json")
    assert (best["policy"], best["flags"]) == ("plain", "")
    assert "Start the server without its options for speculation." in shown


BLOCKS: dict[str, Any] = {"block": 4, "mask_token": 95}


def drafter_run(folder: Path, run: Path, drafter: str, source: object, family: str = "") -> Path:
    """A run with such a drafter."""
    draft = replace(Manifest.load(run).draft, source=str(source), family=family)
    return write_run(folder, 36, drafter=drafter, draft=draft)


@pytest.mark.parametrize(
    ("engine", "format_", "settings"), [("vllm", "eagle3", {}), ("sglang", "eagle3", {}), ("vllm", "dflash", BLOCKS)]
)
def test_a_drafter_that_reads_the_target_is_advised_on_as_the_checkpoint_that_export_writes(
    engine: str, format_: str, settings: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    costs = costs_of(tmp_path / "costs.json", engine, 0.0005)
    saved_drafter(tmp_path / "it", tiny_model(num_hidden_layers=4), **settings)
    for kind, source in (("reuse", tmp_path / "it"), ("checkpoint", "org/checkpoint")):
        folder = drafter_run(tmp_path / kind, run, kind, source, format_)
        _, best, _ = advised([str(folder), "-e", engine, "--costs", str(costs)], tmp_path / "rows.json")
        export, _, serve = best["flags"].rpartition(" && ")
        exported = "org/checkpoint" if kind == "checkpoint" else f"{source}-{format_}"
        assert export == ("" if kind == "checkpoint" else f"draftgauge export {source} --out {exported}")
        if "vllm" in (words := shlex.split(serve)):
            config = json.loads(words[words.index("--speculative-config") + 1])
            assert (config["method"], config["model"]) == (format_, exported)
            assert config["num_speculative_tokens"] == best["best_length"] > 0
        else:
            named = [words[words.index(f"--speculative-{name}") + 1] for name in ("algorithm", "draft-model-path")]
            assert named == ["EAGLE3", exported]


def test_every_kind_that_an_engine_runs_has_flags(run: Path, tmp_path: Path) -> None:
    for engine in filter(lambda engine: not engine.loop, ENGINES.values()):
        costs = costs_of(tmp_path / "costs.json", engine.name, 0.0005)
        for kind, name in engine.drafters.items():
            own = kind if kind in ("language_model", "prompt_lookup", "pard") else "checkpoint"
            folder = drafter_run(tmp_path / f"{engine.name}-{own}-{kind}", run, own, "org/it", kind)
            _, best, _ = advised([str(folder), "-e", engine.name, "--costs", str(costs)], tmp_path / "rows.json")
            assert name in best["flags"]


def test_drafters_that_an_engine_does_not_run(run: Path, tmp_path: Path) -> None:
    target, block, kv = tiny_model(num_hidden_layers=4), tmp_path / "hidden", tmp_path / "kv"
    saved_drafter(block, target, **BLOCKS)
    saved_drafter(kv, target, "kv", block=4)
    for number, (engine, kind, source, family, words) in enumerate(
        (
            ("sglang", "reuse", block, "", "trained drafter (dflash), for which draftgauge writes no flags of sglang"),
            ("vllm", "reuse", kv, "", "the kv design has no DFlash layout"),
            ("vllm", "checkpoint", "org/it", "new", "checkpoint (new), for which draftgauge writes no flags of vllm"),
            ("vllm", "checkpoint", "org/it", "eagle3", "draftgauge's proposer, which does not draft with eagle3"),
        )
    ):
        folder = drafter_run(tmp_path / f"run{number}", run, kind, source, family)
        costs = costs_of(tmp_path / "costs.json", engine, 0.001, drafted_by="draftgauge")
        assert words in refusal("advise", folder, "-e", engine, "--costs", costs)


def test_bad_input_is_one_line_and_exit_code_2(run: Path, tmp_path: Path) -> None:
    other = costs_of(tmp_path / "other.json", "sglang", 0.001)
    broken, wrong, curve, short = (tmp_path / f"{name}.json" for name in ("broken", "wrong", "curve", "short"))
    broken.write_text("{")
    wrong.write_text(json.dumps(json.loads(other.read_text()) | {"plain": [0.0], "engine": "vllm"}))
    CostCurve.load(run / "costs.json").save(curve)
    EngineCosts("vllm", (1,), (0.01,), ((0.01, 0.011),), ((0.0, 0.001),)).save(short)
    answers = answers_file(tmp_path / "answers.jsonl")
    for arguments, message in (
        ([str(run), "-e", "tgi"], "unknown engine 'tgi'"),
        ([str(run), "-e", "gguf", "--policy", "stopping"], "recorded with the engine lean"),
        ([str(run), "-e", "vllm", "--batch", "8"], "what a step costs in vllm is not known"),
        ([str(run), "-e", "vllm", "--costs", str(other)], "holds the costs of sglang, not of vllm"),
        ([str(run), "-e", "vllm", "--costs", str(curve)], f"what a step costs in vllm is not known from {curve}"),
        ([str(run), "-e", "vllm", "--costs", str(broken)], "not JSON"),
        ([str(run), "-e", "vllm", "--costs", str(wrong)], "seconds greater than 0"),
        ([str(run), "-e", "vllm", "--costs", str(tmp_path / "none.json")], "there is no file of costs"),
        ([str(run), "-e", "vllm", "--url", "http://127.0.0.1:9"], "no server answers"),
        ([str(run), "--requests", "x.jsonl"], "not from both"),
        ([], "needs a recorded run"),
        (["-e", "vllm", "--requests", "x.jsonl"], "--costs"),
        (["-e", "transformers", "--requests", "x.jsonl"], "name the server's engine"),
        (["-e", "vllm", "--requests", str(answers), "--costs", str(short), "--batch", "8"], "hold no signals"),
        (["-e", "vllm", "--requests", str(answers), "--costs", str(short), "--tasks", "a"], "holds no task 'a'"),
        (["-e", "vllm", "--requests", str(answers), "--costs", str(curve)], "in draftgauge's own loop, not in vllm"),
        ([str(run), "-e", "transformers", "--settings", str(tmp_path / "s.json")], "as an argument"),
        ([str(run), "--policy", "clairvoyant"], "clairvoyant"),
    ):
        result = draftgauge(["advise", *arguments])
        assert result.exit_code == 2, (arguments, result.output)
        assert message in result.stderr, (arguments, result.stderr)
        assert result.stderr.count("\n") == 1
    succeeds("advise", str(run), "-e", "vllm", "--costs", str(short))
