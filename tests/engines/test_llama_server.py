"""llama.cpp's server on the bundled pair: outputs and accepted tokens of draftgauge, advice from what it counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from command_line import draftgauge, rows_of
from draftgauge.api.doctor import doctor
from draftgauge.api.export import export
from draftgauge.api.train import train
from draftgauge.core.prompts import read_prompts
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.models.folder import PAIR_FOLDER, reference_path
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.tokenizer import encode_with, end_tokens
from draftgauge.pair.loading import load_pair
from draftgauge.policies.spec import make_policy
from draftgauge.requests import PairSpec
from draftgauge.serving.client import complete
from draftgauge.serving.counters import read_counts
from engine_processes import llama_server, need_llama_server
from engine_steps import live_steps, trimmed
from gguf_files import convert, need_converter, need_libllama, write_gguf
from launching import ENGINES

pytestmark = pytest.mark.slow
LENGTH, OUTPUT = 4, 48


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_llama_server()
    need_libllama()
    folder, tokenizer = tmp_path_factory.mktemp("gguf"), load_tokenizer("reference")
    return {p: write_gguf(reference_path(p), folder / f"{p}.gguf", tokenizer) for p in ("target", "draft")}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer("reference")
    return [encode_with(tokenizer, p) for p in read_prompts(PAIR_FOLDER / "prompts" / "validation.jsonl")[::24]]


def test_outputs_counts_and_advice(files: dict[str, Path], prompts: list[list[int]], tmp_path: Path) -> None:
    target, draft = load_model("reference", device="cpu"), load_model("reference/draft", device="cpu")
    ends = end_tokens(target, load_tokenizer("reference"))
    settings = DecodingSettings(max_new_tokens=OUTPUT, end_tokens=ends)
    options = ("--spec-type", "draft-simple", "--spec-draft-model", str(files["draft"]))
    kinds = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32", "--spec-draft-n-max", str(LENGTH))
    expected = accepted = 0
    with llama_server(files["target"], *options, *kinds) as url:
        for prompt in prompts:
            answer = complete("llama-server", url, prompt, OUTPUT)
            plain = plain_decode(target, prompt, settings).tokens
            assert [t for t in answer.tokens if t not in ends] == [t for t in plain if t not in ends]
            drafter = LanguageModelDrafter(draft, ends, None, None, target.spec.vocabulary)
            first = DecodingSettings(max_new_tokens=OUTPUT - 1, end_tokens=ends)
            live = speculative_decode(target, drafter, make_policy(f"fixed:{LENGTH}", 16), [*prompt, plain[0]], first)
            expected += sum(step.accepted for step in live.steps)
            accepted += answer.accepted
        counts = read_counts("llama-server", url)
        result = draftgauge(["advise", "-e", "llama-server", "--url", url, "--json", str(tmp_path / "rows.json")])
    assert abs(accepted - expected) <= 0.02 * expected  # ends of outputs are counted differently
    assert counts.accepted == accepted
    assert len(counts.by_position) == LENGTH
    assert sum(counts.by_position) == counts.accepted
    assert result.exit_code == 0, result.output
    rows = rows_of(tmp_path / "rows.json")
    assert rows[LENGTH]["tokens_per_step"] == pytest.approx(1 + counts.accepted / counts.drafts)


@ENGINES
def test_drafting_changes_no_answer(files: dict[str, Path]) -> None:
    options = ("--spec-type", "draft-simple", "--spec-draft-model", str(files["draft"]))
    kinds = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32", "--spec-draft-n-max", str(LENGTH))
    with llama_server(files["target"], *options, *kinds) as url, llama_server(files["target"]) as plain:
        rows = doctor(url=url, against=plain, server="llama-server", samples=15, max_new_tokens=OUTPUT, limit=4)
    status = {row["check"]: row["status"] for row in rows}
    assert status["parity-greedy"] in ("well", "suspect"), rows
    assert status["parity-sampled"] == "well", rows


@ENGINES
def test_an_exported_drafter_is_accepted_step_by_step(
    files: dict[str, Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    """Trained without the norms that llama.cpp has no place for."""
    need_converter()
    sizes = {"questions": 96, "new_tokens": 32, "length": 192, "steps": 120, "batch": 2, "depths": LENGTH}
    train(out=tmp_path / "hidden", target="reference", reuse="hidden", llama_cpp=True, **sizes)
    export(tmp_path / "hidden", out=tmp_path / "eagle3")
    drafter = convert(
        tmp_path / "eagle3", tmp_path / "eagle3.gguf", "--target-model-dir", str(reference_path("target"))
    )
    pair = load_pair(PairSpec(target="reference", drafter=str(tmp_path / "hidden")))
    options = ("--spec-type", "draft-eagle3", "--spec-draft-model", str(drafter), "--spec-draft-n-max", str(LENGTH))
    kinds = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32")
    by_position = Counter[int]()
    with llama_server(files["target"], *options, *kinds) as url:
        for prompt in prompts:
            answer = complete("llama-server", url, prompt, OUTPUT)
            steps = live_steps(pair, f"fixed:{LENGTH}", None, prompt, answer.tokens, drafts_end=False)
            steps = trimmed(steps, OUTPUT)
            assert (answer.drafted, answer.accepted) == (sum(d for d, _ in steps), sum(a for _, a in steps))
            by_position.update(depth for _, accepted in steps for depth in range(accepted))
        counts = read_counts("llama-server", url)
    assert counts.by_position == tuple(by_position[depth] for depth in range(LENGTH))
    assert counts.accepted > 0


def test_a_server_without_speculation(files: dict[str, Path]) -> None:
    with llama_server(files["target"]) as url:
        complete("llama-server", url, [5, 6, 7], 4)
        result = draftgauge(["advise", "-e", "llama-server", "--url", url])
    assert result.exit_code == 2
    assert "--spec-type draft-simple" in result.stderr
