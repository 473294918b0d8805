"""The gguf engine: logits of transformers, a cache that rolls back, branches, and the same speculation, on the bundled
pair written as GGUF.

Needs libllama and the package gguf (``pip install 'draftgauge[gguf]'``).
"""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import rows_of, succeeds
from draftgauge.core.errors import ModelError
from draftgauge.core.prompts import Prompt, read_prompts
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.dense import draft_densely
from draftgauge.models.engines.gguf import BRANCHES, GgufModel
from draftgauge.models.engines.gguf_library import check_gguf_vocabulary
from draftgauge.models.folder import PAIR_FOLDER, reference_path
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.taps import TapPlan, attach_taps
from draftgauge.models.tokenizer import encode_with
from draftgauge.pair.loading import load_pair
from draftgauge.policies.spec import make_policy
from draftgauge.traces.run import Run
from gguf_files import need_libllama, write_gguf
from linear_costs import LinearCosts
from tiny import tiny_tokenizer

pytestmark = pytest.mark.slow
NEAR = 1e-3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_libllama()
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = load_tokenizer("reference")
    return {part: write_gguf(reference_path(part), folder / f"{part}.gguf", tokenizer) for part in ("target", "draft")}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer("reference")
    chosen: list[Prompt] = read_prompts(PAIR_FOLDER / "prompts" / "validation.jsonl")[::24]
    return [encode_with(tokenizer, prompt) for prompt in chosen]


@pytest.mark.parametrize("part", ["target", "draft"])
def test_logits_are_those_of_transformers(files: dict[str, Path], prompts: list[list[int]], part: str) -> None:
    ours, theirs = GgufModel(files[part]), load_model(f"reference/{part}")
    for tokens in prompts:
        text = torch.tensor(tokens)
        ours.reset()
        theirs.reset()
        here, there = ours.forward(text), theirs.forward(text)
        assert (here - there).abs().max() < NEAR
        assert (here.argmax(-1) == there.argmax(-1)).all()
        assert ours.length == len(tokens)


def test_the_cache_appends_and_rolls_back(files: dict[str, Path], prompts: list[list[int]]) -> None:
    model, text = GgufModel(files["draft"]), torch.tensor(prompts[0][:40])
    whole = model.forward(text)
    model.truncate(25)
    assert model.length == 25
    again = torch.cat([model.forward(text[25:30]), model.forward(text[30:])])
    assert (again - whole[25:]).abs().max() < NEAR
    model.truncate(39)
    assert (model.forward(text[39:], last_only=True) - whole[-1:]).abs().max() < NEAR


def test_a_text_longer_than_a_pass(files: dict[str, Path], prompts: list[list[int]]) -> None:
    model = GgufModel(files["draft"])
    text = torch.tensor((prompts[0] * 100)[:700])
    whole = model.forward(text)
    assert whole.shape == (700, model.spec.vocabulary)
    model.reset()
    last = model.forward(text, last_only=True)
    assert last.shape == (1, model.spec.vocabulary)
    assert (last - whole[-1:]).abs().max() < NEAR


def test_branches_are_continuations_of_their_prefixes(files: dict[str, Path], prompts: list[list[int]]) -> None:
    model, text = GgufModel(files["draft"]), torch.tensor(prompts[0][:60])
    model.forward(text)
    starts = torch.arange(5, 60, 5)
    tokens = [torch.randint(100, 2000, (len(starts),), generator=torch.Generator().manual_seed(s)) for s in range(3)]
    session = model.branches(starts)
    first, second = session.step(tokens[0]), session.step(tokens[1])
    kept = torch.tensor([7, 2])
    session.keep(kept)
    third = session.step(tokens[2][kept])
    after = model.forward(tokens[0][:1])  # the text goes on, and the branches are gone
    reference = GgufModel(files["draft"])
    for row, start in enumerate(starts.tolist()):
        reference.reset()
        reference.forward(text[:start])
        path = torch.stack([one[row] for one in tokens])
        expected = reference.forward(path)
        assert (first[row] - expected[0]).abs().max() < NEAR
        assert (second[row] - expected[1]).abs().max() < NEAR
        if row in kept:
            assert (third[kept.tolist().index(row)] - expected[2]).abs().max() < NEAR
    reference.reset()
    reference.forward(text)
    assert (after - reference.forward(tokens[0][:1])).abs().max() < NEAR


def test_many_sessions_leave_no_cells_taken(files: dict[str, Path], prompts: list[list[int]]) -> None:
    model, text = GgufModel(files["draft"]), torch.tensor(prompts[0][:20])
    model.forward(text)
    starts = torch.full((BRANCHES,), 20)
    for _ in range(6):
        session = model.branches(starts)
        for _ in range(40):
            session.step(torch.full((BRANCHES,), 7))
        model.truncate(20)
    assert model.length == 20


def test_dense_drafts_are_those_of_the_lean_engine(files: dict[str, Path], prompts: list[list[int]]) -> None:
    ours, lean = GgufModel(files["draft"]), load_model("reference/draft")
    target = load_model("reference")
    settings = DecodingSettings(max_new_tokens=40)
    for tokens in prompts[:1]:
        output = plain_decode(target, tokens, settings).tokens
        here, there = (draft_densely(model, tokens, output, 8) for model in (ours, lean))
        assert (here.tokens == there.tokens).all()
        np.testing.assert_allclose(here.shown, there.shown, atol=1e-3)


@pytest.mark.parametrize("policy", ["fixed:4", "stopping"])
def test_speculation_is_lossless_and_accepts_as_the_lean_engine_does(
    files: dict[str, Path], prompts: list[list[int]], policy: str
) -> None:
    gguf = load_pair(files["target"], files["draft"], tokenizer=str(reference_path("target")))
    lean = load_pair("reference")
    assert gguf.end_tokens == lean.end_tokens
    settings = DecodingSettings(max_new_tokens=24, end_tokens=lean.end_tokens)
    costs = LinearCosts(gamma_max=16)
    for tokens in prompts[:1]:
        plain = plain_decode(gguf.target, tokens, settings).tokens
        assert plain == plain_decode(lean.target, tokens, settings).tokens
        ours, theirs = (
            speculative_decode(pair.target, pair.drafter(), make_policy(policy, 16, costs), tokens, settings)
            for pair in (gguf, lean)
        )
        assert ours.tokens == theirs.tokens == plain
        assert [(s.drafted, s.accepted) for s in ours.steps] == [(s.drafted, s.accepted) for s in theirs.steps]


def test_quantised_files_decode_losslessly(files: dict[str, Path], prompts: list[list[int]], tmp_path: Path) -> None:
    small = tmp_path / "target-Q8_0.gguf"
    from benchmarks.quantise_gguf import quantise  # which needs the package gguf

    quantise(files["target"], small)
    assert small.stat().st_size < 0.4 * files["target"].stat().st_size
    pair = load_pair(small, files["draft"], tokenizer=str(reference_path("target")))
    settings = DecodingSettings(max_new_tokens=32, end_tokens=pair.end_tokens)
    for tokens in prompts[:1]:
        speculated = speculative_decode(pair.target, pair.drafter(), make_policy("fixed:3", 16), tokens, settings)
        assert speculated.tokens == plain_decode(pair.target, tokens, settings).tokens


def test_the_fast_engine_is_near_the_exact_one(files: dict[str, Path], prompts: list[list[int]]) -> None:
    exact, fast = GgufModel(files["target"]), GgufModel(files["target"], "gguf-fast")
    assert fast.spec.engine == "gguf-fast"
    assert fast.spec.kernels == exact.spec.kernels.replace("as in the file", "repacked")
    text = torch.tensor(prompts[0])
    assert (exact.forward(text) - fast.forward(text)).abs().max() < 0.1


def test_the_files_own_tokenizer(files: dict[str, Path]) -> None:
    own, original = load_tokenizer(str(files["target"])), load_tokenizer("reference")
    line = "def add(a, b):\n    return a + b  # 12 cats"
    assert own(line)["input_ids"] == original(line)["input_ids"]


def test_a_file_of_another_tokenizer_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="another vocabulary than the tokenizer"):
        load_pair(files["target"], tokenizer=str(tmp_path))
    with pytest.raises(ModelError, match="to the draft"):
        check_gguf_vocabulary(tiny_tokenizer(), files["draft"], "draft")


def test_drafters_that_read_the_target_are_refused(files: dict[str, Path]) -> None:
    plan = TapPlan(hidden_layers=(0,), kv_layers=())
    with pytest.raises(ModelError, match="shows no hidden states"):
        attach_taps(GgufModel(files["target"]), plan)


def test_damaged_files_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(files["draft"].read_bytes()[:5000])
    with pytest.raises(ModelError, match="cannot load"):
        GgufModel(broken)


def test_the_verbs_take_gguf_files(files: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    models = ["--target", str(files["target"]), "--drafter", str(files["draft"])]
    models += ["--tokenizer", str(reference_path("target"))]
    small = ["--limit", "2", "--max-new-tokens", "24", "--gamma-max", "4", "--cost-seconds", "0.5"]
    shown = succeeds("profile", "--out", str(run), *models, *small)
    kernels = Run(run).manifest.environment["llama.cpp"]
    assert kernels.endswith("; weights as in the file")
    assert f"llama.cpp: {kernels}." in " ".join(shown.stdout.split())
    succeeds("advise", str(run), "--engine", "gguf", "--json", str(tmp_path / "advice.json"))
    rows = rows_of(tmp_path / "advice.json")
    assert [row["policy"] for row in rows[:5]] == ["plain", *(f"fixed:{length}" for length in range(1, 5))]
    assert {row["engine"] for row in rows} == {"gguf"}
    assert all(row["ratio_to_plain_low"] <= row["ratio_to_plain"] <= row["ratio_to_plain_high"] for row in rows)
    (advised,) = [row for row in rows if row["recommended"]]
    program, *words = shlex.split(advised["flags"])
    assert program == "draftgauge"
    words.remove("--chat")
    pasted = dict(zip(words[2::2], words[3::2], strict=True))
    assert (pasted["--target"], pasted["--tokenizer"]) == (str(files["target"]), str(reference_path("target")))
    succeeds(*words, "--max-new-tokens", "8", "--cost-seconds", "0")
    succeeds("generate", "hello", *models, "--max-new-tokens", "8", "--policy", "fixed:2")
