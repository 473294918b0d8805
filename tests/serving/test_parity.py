"""Servers beside each other, and servers that are started: what differs is named, and none is left behind."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgauge as dg
from command_line import refusal, succeeds
from draftgauge import __main__
from draftgauge.models.folder import reference_path
from draftgauge.serving.parity import acceptance, first_difference, sampled_tokens
from draftgauge.traces.engine_costs import read_costs
from engine_server import error_page, llama_answer, models_page, serving, vllm_answer, vllm_metrics
from fake_llama_server import ALONE, TEXT, step
from forked import ended, fork

VOCABULARY, END = 12, 0
TIE = 5  # after which the target is undecided


class Model:
    """A Markov chain behind the protocol of an engine; ``wrong`` says what drafting changes in its answers."""

    def __init__(self, seed: int, drafts: bool, wrong: str = "") -> None:
        chances = np.random.default_rng(7).dirichlet(np.full(VOCABULARY, 0.5), VOCABULARY)
        chances[:, END] = 1e-3
        ordered = np.sort(chances[TIE])
        chances[TIE, chances[TIE].argmax()] = chances[TIE, chances[TIE].argsort()[-2]] = ordered[-1]
        chances[TIE, chances[TIE].argmax()] *= 1.01
        self.chances = chances / chances.sum(axis=1, keepdims=True)
        self.rng, self.drafts, self.wrong = np.random.default_rng(seed), drafts, wrong

    def answer(self, prompt: list[int], count: int, temperature: float) -> list[int]:
        tokens: list[int] = []
        for place in range(count):
            row = self.chances[(tokens or prompt)[-1]]
            order = row.argsort()[::-1]
            if temperature:
                sharp = row**4 / (row**4).sum() if self.wrong == "sampled" and place else row
                tokens.append(int(self.rng.choice(VOCABULARY, p=sharp)))
            elif self.wrong == "tie" and (tokens or prompt)[-1] == TIE:
                tokens.append(int(order[1]))
            else:
                tokens.append(int(order[int(self.wrong == "greedy" and place == 9)]))
        return tokens

    def likeliest(self, prompt: list[int], tokens: list[int], count: int) -> list[dict[int, float]]:
        rows = [np.log(self.chances[last]) for last in (prompt[-1], *tokens[:-1])]
        return [{int(token): float(row[token]) for token in row.argsort()[::-1][:count]} for row in rows]

    def llama(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = self.answer(body["prompt"], body["n_predict"], body["temperature"])
        shown = self.likeliest(body["prompt"], tokens, body.get("n_probs", 0))
        drafts = {"drafted": 40, "accepted": 4 if body["temperature"] and self.wrong else 20} if self.drafts else {}
        probabilities = [{"top_logprobs": [{"id": t, "logprob": p} for t, p in at.items()]} for at in shown]
        return llama_answer(80.0, tokens, **drafts) | {"completion_probabilities": probabilities}

    def vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = self.answer(body["prompt"], body["max_tokens"], body["temperature"])
        answer = vllm_answer(80.0, tokens)
        shown = self.likeliest(body["prompt"], tokens, body.get("logprobs", 0))
        answer["choices"][0]["logprobs"] = {
            "top_logprobs": [{f"token_id:{t}": p for t, p in at.items()} for at in shown]
        }
        return answer


@contextmanager
def served(engine: str, model: Model, name: str = "folder/m", more: int = 0) -> Iterator[str]:
    text = {"/apply-template": lambda body: {"prompt": body["messages"][-1]["content"]}}
    read = {"/tokenize": lambda body: {"tokens": [1 + more, 1 + len(str(body.get("content", body))) % 11]}}
    metrics = {"/metrics": (200, vllm_metrics(100, 300, 200, (90, 70, 40)))} if model.drafts else {}
    path, page = ("/completion", model.llama) if engine == "llama-server" else ("/v1/completions", model.vllm)
    with serving({"/v1/models": (200, models_page(name)), path: page, **read, **text, **metrics}) as url:
        yield url


def compared(engine: str, wrong: str) -> dict[str, dict[str, Any]]:
    with served(engine, Model(1, True, wrong)) as url, served(engine, Model(2, False)) as against:
        samples = 25 if wrong == "sampled" else 10
        rows = dg.doctor(url=url, against=against, server=engine, samples=samples, max_new_tokens=12)
    return {row["check"]: row for row in rows}


@pytest.mark.filterwarnings("ignore:counters are not looked at")
@pytest.mark.parametrize(
    ("engine", "wrong"), [("llama-server", ""), ("vllm", "greedy"), ("llama-server", "tie"), ("vllm", "sampled")]
)
def test_what_drafting_changes_is_named(engine: str, wrong: str) -> None:
    rows = compared(engine, wrong)
    status = {check: rows[check]["status"] for check in ("parity-greedy", "parity-sampled", "sampled-acceptance")}
    counted = "unknown" if engine == "vllm" else "suspect" if wrong else "well"  # one of vLLM's without its metrics
    assert status == {
        "parity-greedy": {"greedy": "wrong", "tie": "suspect"}.get(wrong, "well"),
        "parity-sampled": "wrong" if wrong == "sampled" else "well",
        "sampled-acceptance": counted,
    }
    seen = rows["parity-greedy"]["evidence"]
    if wrong == "greedy":
        assert "20 of 20 greedy answers differ, 0 of them" in seen
        assert "token 10: " in seen
    if wrong == "tie":
        assert "0.01 nats apart" in seen
    assert ("depth" in rows) == (engine == "vllm")  # the page of counters is vLLM's


def test_first_differences_and_bounds() -> None:
    likely = [{1: -0.1, 2: -3.0}, {3: -0.7, 4: -0.75}]
    assert first_difference(1, [1, 3], [1, 3], likely) is None
    assert not first_difference(1, [2, 3], [1, 3], likely).undecided  # type: ignore[union-attr]
    assert first_difference(1, [1, 4], [1, 3], likely).undecided  # type: ignore[union-attr]
    assert first_difference(1, [1], [1, 3], likely).undecided  # type: ignore[union-attr]
    assert str(first_difference(4, [1, 9], [1, 3], likely)).endswith("9 with drafting, 3 without, no near-tie")
    assert not first_difference(1, [1, 3, 5], [1, 3], likely).undecided  # type: ignore[union-attr]
    alike = 0
    for seed in range(40):  # of one distribution: refused in 1% of the cases
        tokens = np.random.default_rng(seed).integers(0, 6, (2, 3, 40, 2))
        alike += next(sampled_tokens(*tokens))[1] == "well"
    assert alike >= 37
    other = np.random.default_rng(0).integers(0, 6, (2, 3, 40, 2))
    other[0, :, :, 1] = np.maximum(other[0, :, :, 1], 2)
    assert next(sampled_tokens(*other))[1] == "wrong"
    assert acceptance((60, 100), (20, 100), 1.0)[1:] == (
        "suspect",
        "60% of 100 drafted tokens accepted at temperature 0, 20% of 100 at 1",
    )
    assert acceptance((60, 100), (40, 100), 1.0)[1] == "well"


def test_servers_that_cannot_be_compared() -> None:
    with ExitStack() as stack:
        url, plain, other, reads, drafting = (
            stack.enter_context(served("llama-server", model, name, more))
            for model, name, more in (
                (Model(1, True), "m", 0),
                (Model(1, False), "m", 0),
                (Model(1, False), "other/n", 0),
                (Model(1, False), "m", 1),
                (Model(1, True), "m", 0),
            )
        )
        refuses = stack.enter_context(
            serving({"/v1/models": (200, models_page("m")), "/apply-template": (400, error_page("no template", 400))})
        )
        for against, message in (
            (url, "is named twice"),
            (other, "serve m and other/n: serve one model in both"),
            (reads, "read the first prompt as other tokens"),
            (drafting, "drafted 40 tokens: start it without"),
            (refuses, "no template"),
        ):
            assert message in refusal("doctor", "--url", url, "--against", against, "--server", "llama-server")
        assert "name that with --url" in refusal("doctor", "--against", plain)
        assert "leave out --drafter" in refusal("doctor", "--url", url, "--against", plain, "--drafter", "lookup")


FAKE = [sys.executable, str(Path(__file__).parents[1] / "fake_llama_server.py")]


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """What starts the fake server; its models lie in the test's folder."""
    models = [tmp_path / "target.gguf", tmp_path / "draft.gguf"]
    for model in models:
        model.write_bytes(b"")
    words = ["-e", "llama-server", "--target", str(models[0]), "--drafter", str(models[1])]
    return [*words, "--program", shlex.join(FAKE)]


def left(folder: Path) -> list[str]:
    """Fake servers of a folder's models that still run."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_text())
        except OSError:  # it has ended
            continue
    return [line for line in lines if str(folder) in line and FAKE[1] in line and "costs" not in line]


def test_costs_of_a_started_server_are_what_its_steps_take(asked: list[str], tmp_path: Path) -> None:
    shape = ["--lengths", "2", "--batches", "1,2", "--contexts", "64,4096", "--out", str(tmp_path / "costs.json")]
    asked[-1] += f" --slow {tmp_path / 'was-slow'}"  # two of three agree
    said = succeeds("costs", "--start", *asked, *shape).stdout
    assert (tmp_path / "was-slow").exists()
    assert "at 64 tokens of context" in said
    assert f"{TEXT:.3g} s a step and request" in said
    for batch, curve in read_costs(tmp_path / "costs.json", "llama-server").items():
        for context in (64, 1000):
            plain = np.interp(context, curve.contexts, curve.plain)
            assert plain == pytest.approx(step(0, batch, context), rel=1e-3)
            assert curve.step_seconds(2, context) == pytest.approx(step(2, batch, context), rel=1e-3)
        assert curve.draft_seconds(1, 64) == pytest.approx(ALONE)  # less than the step has beyond a plain one
    assert not left(tmp_path)


def test_a_server_that_ignores_its_length_is_refused_and_stopped(asked: list[str], tmp_path: Path) -> None:
    asked[-1] += " --ignores 3"
    said = refusal("costs", "--start", *asked, "--lengths", "4,8", "--batches", "1", "--out", tmp_path / "costs.json")
    assert "was started for drafts of 8 tokens drafts 3 on average, so it ignored the length" in said
    assert not left(tmp_path)
    missing = str(tmp_path / "none.gguf")
    for wrong, message in (
        (["--out", "x.json", *asked, "--drafter", missing], "serves GGUF files, and"),
        (["--out", "x.json", *asked, "--kind", "pard"], "has no drafter 'pard'"),
        (["--out", "x.json", *asked[:2]], "name what the servers serve"),
        (["--out", "x.json", *asked[2:], "-e", "sglang"], "choose --engine vllm or llama-server"),
        (asked, "name the file of costs"),
        (["--out", "x.json", *asked[:-1], str(tmp_path / "nothing")], "No such file or directory"),
        (["--out", "x.json", *asked[:-1], "false"], "ended with code 1"),
    ):
        assert message in refusal("costs", "--start", *wrong)


def test_vllm_beside_draftgauge_is_started_without_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    server.write_text("import sys\nsys.exit(' '.join(sys.argv[1:]))")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of the process that it starts
    asked = ("-e", "vllm", "--target", "T", "--drafter", "lookup", "--out", tmp_path / "costs.json")
    assert "--model T --max-num-seqs 16" in refusal("costs", "--start", *asked)
    assert f"--model {reference_path()} --max" in refusal("costs", "--start", *asked, "--target", "reference")


def test_ctrl_c_leaves_no_server(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draftgauge", "costs", "--start", *asked, "--out", str(tmp_path / "costs.json")])
    running = fork(tmp_path / "said", __main__.main)
    until = time.monotonic() + 60
    while not left(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    assert left(tmp_path)
    os.kill(running.pid or 0, signal.SIGINT)
    ended(running)
    assert running.exitcode == 130
    assert not left(tmp_path)
