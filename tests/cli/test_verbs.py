"""The verbs from the command line, on tiny saved models: they run, write what they say, and refuse what is wrong."""

from __future__ import annotations

import io
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from command_line import invoke, refusal, succeeds
from draftgauge.cli import generate as cli_generate
from draftgauge.core.errors import DraftgaugeError
from tiny import save_tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Llama target, and a draft with fewer layers."""
    folder = tmp_path_factory.mktemp("pair")
    draft = save_tiny(folder / "draft", "llama", num_hidden_layers=1)
    return {"target": save_tiny(folder / "target", "llama"), "draft": draft}


def test_generate_with_and_without_speculation_agree(pair: dict[str, Path]) -> None:
    common = ("generate", "abc def", "--target", pair["target"], "--drafter", pair["draft"], "--device", "cpu")
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
    models = ["--target", pair["target"], "--drafter", pair["draft"]]
    assert "not UTF-8" in refusal("generate", given, *models, "--device", "cpu")


def test_a_dash_is_standard_input_as_the_prompt_alone(pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Mock(side_effect=DraftgaugeError("noted"))
    monkeypatch.setattr("draftgauge.api.generate.generate", noted)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"typed"), encoding="utf-8"))
    assert invoke("generate", "-", "--stop", "-", "--stop", "b", "--system", "-").exit_code == 2
    (asked,) = noted.call_args.args
    assert (asked.prompt, asked.stop, asked.conversation.system) == ("typed", ("-", "b"), "-")
