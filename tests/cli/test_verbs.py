"""The verbs from the command line, on tiny saved models: they run, write what they say, and refuse what is wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from command_line import invoke, refusal, rows_of, succeeds
from draftgauge.api.requests import GenerateRequest
from draftgauge.cli import generate as cli_generate
from draftgauge.core.errors import DraftgaugeError
from tiny import save_tiny

PROMPTS = [
    {"prompt": "def add(a, b):", "task": "code", "split": "test"},
    {"turns": ["What is 2 + 2?", "And 3 + 3?"], "category": "math"},
    {"messages": [{"role": "user", "content": "Hello there"}]},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Llama target, a noised draft of it, and a prompt file."""
    folder = tmp_path_factory.mktemp("pair")
    save_tiny(folder / "target", "llama")
    save_tiny(folder / "draft", "llama", num_hidden_layers=1)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in PROMPTS))
    return {"target": folder / "target", "draft": folder / "draft", "prompts": folder / "prompts.jsonl"}


@pytest.fixture(scope="module")
def recorded(pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of the tiny pair."""
    out = tmp_path_factory.mktemp("run") / "trace"
    succeeds("profile", *profile_arguments(pair, out), "--json", out.with_suffix(".json"))
    return out


def profile_arguments(pair: dict[str, Path], out: Path) -> list[object]:
    return [
        *("--target", pair["target"], "--draft", pair["draft"], "--prompts", pair["prompts"], "--out", out),
        *("--max-new-tokens", 12, "--gamma-max", 4, "--device", "cpu", "--cost-seconds", 0),
    ]


def test_bench_equals_plain_decoding_and_replay(recorded: Path, tmp_path: Path) -> None:
    policies = ("--policy", "fixed:2", "--policy", "hf-heuristic")
    result = succeeds("bench", recorded, *policies, "--rounds", 1, "--json", tmp_path / "b.json")
    rows = {row["policy"]: row for row in rows_of(tmp_path / "b.json") if row["task"] == "all"}
    baselines = {"transformers-generate", "transformers-assisted", "transformers-assisted-constant:5"}
    assert {"plain", "fixed:2", *baselines} <= set(rows)
    assert all(row["mismatches"] == 0 for row in rows.values())
    assert rows["plain"]["ratio_to_plain"] == 1
    (verdict,) = [row["verdict"] for row in rows.values() if "verdict" in row]
    assert result.stdout.splitlines()[-1] == f"uncompressed: {verdict}"
    assert rows["fixed:2"]["ratio_to_best_transformers"] > 0
    invoke("replay", recorded, *policies, "--json", tmp_path / "r.json")
    replayed = {row["policy"]: row for row in rows_of(tmp_path / "r.json") if row["task"] == "all"}
    for policy in ("fixed:2", "hf-heuristic"):
        assert replayed[policy]["tokens_per_step"] == rows[policy]["tokens_per_step"]


def test_generate_with_and_without_speculation_agree(pair: dict[str, Path]) -> None:
    common = ("generate", "abc def", "--target", pair["target"], "--draft", pair["draft"], "--device", "cpu")
    plain, drafted = (succeeds(*common, "--max-new-tokens", 10, "-p", policy) for policy in ("plain", "fixed:3"))
    assert plain.stdout.strip()
    assert drafted.stdout == plain.stdout
    assert " steps (1.00 a step)" in plain.stderr
    one = invoke(*common, "--max-new-tokens", 1, "-p", "plain")
    assert "1 token in 1 step (1.00 a step)" in one.stderr


def test_without_colours_drafts_are_shown_by_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = {"accepted": "The", "text": " lunch", "corrected": " is", "bonus": " in", "plain": " room"}
    shown = {}
    for colours in (None, "truecolor"):
        console = Console(color_system=colours, force_terminal=colours is not None)
        monkeypatch.setattr(cli_generate, "console", console)
        for origin, piece in pieces.items():
            cli_generate.show_text(piece, origin)
        shown[colours] = capsys.readouterr().out, str(cli_generate.legend())
    marked, legend = shown[None]
    assert marked == "·The~ lunch! is+ in room"
    assert "~ accepted from the text itself  ! the target's" in legend
    coloured, legend = shown["truecolor"]
    assert "\x1b[32mThe\x1b[0m" in coloured
    assert "accepted from the draft  accepted from the text itself" in legend


def test_tabs_and_line_ends_of_an_answer_stay(capsys: pytest.CaptureFixture[str]) -> None:
    for plain in (True, False):
        cli_generate.show_text("if x:\r\n\ty\t= 1", "plain", plain)
        assert capsys.readouterr().out == "if x:\r\n\ty\t= 1"


@pytest.mark.parametrize("given", ["caf\udce9", "-"])
def test_a_prompt_of_another_encoding_is_refused(
    given: str, pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    models = ["--target", pair["target"], "--draft", pair["draft"]]
    assert "not UTF-8" in refusal("generate", given, *models, "--device", "cpu")


def test_a_dash_is_standard_input_as_the_prompt_alone(pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[GenerateRequest] = []

    def noted(request: GenerateRequest, **_: object) -> None:
        asked.append(request)
        raise DraftgaugeError("noted")

    monkeypatch.setattr("draftgauge.api.generate.generate", noted)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"typed"), encoding="utf-8"))
    assert invoke("generate", "-", "--stop", "-", "--stop", "b", "--system", "-").exit_code == 2
    assert (asked[0].prompt, asked[0].stop, asked[0].conversation.system) == ("typed", ("-", "b"), "-")


def test_costs_that_are_noise_are_pointed_out(
    pair: dict[str, Path], recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row, *_) = json.loads(recorded.with_suffix(".json").read_text())["rows"]
    assert "cost_doubt" in row
    for doubt in (None, "all of them are noise"):
        monkeypatch.setattr("draftgauge.api.profile.profile", lambda *_, **__: [row | {"cost_doubt": doubt}] * 2)  # noqa: B023
        said = succeeds("profile", *profile_arguments(pair, tmp_path / "run"))
        assert " ".join(said.stderr.split()).count("are not to be trusted, all of them are noise: run") == bool(doubt)
